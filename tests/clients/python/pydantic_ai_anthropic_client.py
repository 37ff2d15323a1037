# /// script
# requires-python = ">=3.11"
# dependencies = ["pydantic-ai-slim[anthropic]==2.68.0"]
# ///
"""Pydantic AI's AnthropicModel."""

import probe
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.messages import ThinkingPart, ToolCallPart
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.providers.anthropic import AnthropicProvider


class Result(BaseModel):
    answer: int


def multiply(a: int, b: int) -> int:
    """Multiply two whole numbers."""
    return a * b


def agent(**more):
    provider = AnthropicProvider(base_url=probe.URL.removesuffix("/v1"), api_key=probe.KEY)
    return Agent(AnthropicModel(probe.MODEL, provider=provider), retries=0, **more)


def parts(result, kind):
    return [
        part
        for message in result.all_messages()
        for part in message.parts
        if isinstance(part, kind)
    ]


async def chat():
    return (await agent().run(probe.QUESTION)).output


async def stream():
    async with agent().run_stream(probe.QUESTION) as reply:
        return [piece async for piece in reply.stream_text(delta=True, debounce_by=None)]


async def reasoning():
    return parts(await agent().run(probe.QUESTION), ThinkingPart)[0].content


async def structured():
    return (await agent(output_type=NativeOutput(Result)).run(probe.QUESTION)).output.model_dump()


async def tools():
    made = await agent(tools=[multiply]).run(probe.TOOL_QUESTION)
    call = parts(made, ToolCallPart)[0]
    return call.tool_name, call.args


async def history():
    first = await agent().run(probe.EARLIER)
    return (await agent().run(probe.LATER, message_history=first.all_messages())).output


probe.run(globals())
