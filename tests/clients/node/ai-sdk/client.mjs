import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateObject, generateText, streamText, tool } from "ai";
import { z } from "zod";

import * as probe from "../probe.mjs";

const provider = createOpenAICompatible({
  name: "baton",
  baseURL: probe.URL,
  apiKey: probe.KEY,
  supportsStructuredOutputs: true,
});
const common = { model: provider(probe.MODEL), maxRetries: 0 };

await probe.run({
  chat: async () => (await generateText({ ...common, prompt: probe.QUESTION })).text,
  stream: async () => {
    const pieces = [];
    for await (const piece of streamText({ ...common, prompt: probe.QUESTION }).textStream) pieces.push(piece);
    return pieces;
  },
  reasoning: async () => (await generateText({ ...common, prompt: probe.QUESTION })).reasoningText,
  structured: async () => {
    const schema = z.object({ answer: z.number().int() });
    return (await generateObject({ ...common, prompt: probe.QUESTION, schema })).object;
  },
  tools: async () => {
    const inputSchema = z.object({ a: z.number().int(), b: z.number().int() });
    const multiply = tool({ description: probe.TOOL_ABOUT, inputSchema });
    const made = await generateText({ ...common, prompt: probe.TOOL_QUESTION, tools: { multiply } });
    return [made.toolCalls[0].toolName, made.toolCalls[0].input];
  },
  history: async () => {
    const turns = [{ role: "user", content: probe.EARLIER }];
    const first = await generateText({ ...common, messages: turns });
    turns.push(...first.response.messages, { role: "user", content: probe.LATER });
    return (await generateText({ ...common, messages: turns })).text;
  },
});
