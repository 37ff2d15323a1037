"""An agent of openai-agents: python -m tests.real.agents.openai_agents URL MODEL chat|responses."""

from __future__ import annotations

import asyncio
import json
import sys

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI

from tests.real.agents import tasks


async def main(url: str, name: str, api: str) -> None:
    set_tracing_disabled(True)
    client = AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=500)
    kinds = {"chat": OpenAIChatCompletionsModel, "responses": OpenAIResponsesModel}
    agent = Agent(
        name="shop",
        instructions=tasks.INSTRUCTIONS,
        model=kinds[api](name, client),
        model_settings=ModelSettings(
            temperature=0, max_tokens=tasks.MAX_TOKENS, parallel_tool_calls=False
        ),
        tools=[function_tool(tasks.price), function_tool(tasks.multiply)],
    )
    made = await Runner.run(agent, tasks.QUESTION, max_turns=tasks.TURNS)
    print(json.dumps({"calls": tasks.CALLS, "answer": made.final_output}))


asyncio.run(main(*sys.argv[1:]))
