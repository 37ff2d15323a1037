import OpenAI from "openai";

import * as probe from "../probe.mjs";

const { completions } = new OpenAI({ baseURL: probe.URL, apiKey: probe.KEY, maxRetries: 0 }).chat;
const ask = async (content, more = {}) => {
  const messages = Array.isArray(content) ? content : [{ role: "user", content }];
  return (await completions.create({ model: probe.MODEL, messages, ...more })).choices[0].message;
};

await probe.run({
  chat: async () => (await ask(probe.QUESTION)).content,
  stream: async () => {
    const messages = [{ role: "user", content: probe.QUESTION }];
    const chunks = await completions.create({ model: probe.MODEL, messages, stream: true });
    const pieces = [];
    for await (const chunk of chunks) pieces.push(chunk.choices[0].delta.content ?? "");
    return pieces;
  },
  reasoning: async () => (await ask(probe.QUESTION)).reasoning_content,
  structured: async () => {
    const json_schema = { name: "answer", schema: probe.SCHEMA, strict: true };
    return JSON.parse(
      (await ask(probe.QUESTION, { response_format: { type: "json_schema", json_schema } })).content,
    );
  },
  tools: async () => {
    const named = { name: "multiply", description: probe.TOOL_ABOUT, parameters: probe.TOOL_SCHEMA };
    const tools = [{ type: "function", function: named }];
    const call = (await ask(probe.TOOL_QUESTION, { tools })).tool_calls[0].function;
    return [call.name, call.arguments];
  },
  history: async () => {
    const turns = [{ role: "user", content: probe.EARLIER }];
    turns.push(await ask(turns), { role: "user", content: probe.LATER });
    return (await ask(turns)).content;
  },
});
