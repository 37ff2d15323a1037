# /// script
# requires-python = ">=3.11"
# dependencies = ["openai-agents==0.24.0"]
# ///
"""openai-agents, chat completions."""

import probe
from agents import (
    Agent,
    OpenAIChatCompletionsModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from openai.types.responses import ResponseTextDeltaEvent
from pydantic import BaseModel

set_tracing_disabled(True)


class Result(BaseModel):
    answer: int


@function_tool
def multiply(a: int, b: int) -> int:
    """Multiply two whole numbers."""
    return a * b


def agent(**more):
    client = AsyncOpenAI(base_url=probe.URL, api_key=probe.KEY, max_retries=0)
    return Agent(name="solver", model=OpenAIChatCompletionsModel(probe.MODEL, client), **more)


async def chat():
    return (await Runner.run(agent(), probe.QUESTION)).final_output


async def stream():
    events = Runner.run_streamed(agent(), probe.QUESTION).stream_events()
    return [
        event.data.delta
        async for event in events
        if event.type == "raw_response_event" and isinstance(event.data, ResponseTextDeltaEvent)
    ]


async def reasoning():
    items = (await Runner.run(agent(), probe.QUESTION)).new_items
    (thought,) = [item.raw_item for item in items if item.type == "reasoning_item"]
    return thought.summary[0].text


async def structured():
    return (await Runner.run(agent(output_type=Result), probe.QUESTION)).final_output.model_dump()


async def tools():
    made = await Runner.run(agent(tools=[multiply]), probe.TOOL_QUESTION, max_turns=3)
    call = next(item.raw_item for item in made.new_items if item.type == "tool_call_item")
    return call.name, call.arguments


async def history():
    first = await Runner.run(agent(), probe.EARLIER)
    turns = [*first.to_input_list(), {"role": "user", "content": probe.LATER}]
    return (await Runner.run(agent(), turns)).final_output


probe.run(globals())
