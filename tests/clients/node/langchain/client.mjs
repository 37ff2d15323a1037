import { AIMessage, HumanMessage } from "@langchain/core/messages";
import { tool } from "@langchain/core/tools";
import { ChatOpenAI } from "@langchain/openai";
import { z } from "zod";

import * as probe from "../probe.mjs";

const model = new ChatOpenAI({
  model: probe.MODEL,
  apiKey: probe.KEY,
  maxRetries: 0,
  configuration: { baseURL: probe.URL },
});

await probe.run({
  chat: async () => (await model.invoke(probe.QUESTION)).content,
  stream: async () => {
    const pieces = [];
    for await (const chunk of await model.stream(probe.QUESTION)) pieces.push(chunk.content);
    return pieces;
  },
  reasoning: async () => (await model.invoke(probe.QUESTION)).additional_kwargs.reasoning_content,
  structured: async () => {
    const schema = z.object({ answer: z.number().int() });
    return await model.withStructuredOutput(schema, { method: "jsonSchema" }).invoke(probe.QUESTION);
  },
  tools: async () => {
    const schema = z.object({ a: z.number().int(), b: z.number().int() });
    const multiply = tool(({ a, b }) => a * b, {
      name: "multiply",
      description: probe.TOOL_ABOUT,
      schema,
    });
    const [call] = (await model.bindTools([multiply]).invoke(probe.TOOL_QUESTION)).tool_calls;
    return [call.name, call.args];
  },
  history: async () => {
    const first = await model.invoke([new HumanMessage(probe.EARLIER)]);
    const turns = [new HumanMessage(probe.EARLIER), new AIMessage(first), new HumanMessage(probe.LATER)];
    return (await model.invoke(turns)).content;
  },
});
