# /// script
# requires-python = ">=3.11"
# dependencies = ["autogen-agentchat==0.7.5", "autogen-ext[openai]==0.7.5"]
# ///
"""AutoGen's OpenAIChatCompletionClient, and its AssistantAgent for the history."""

import probe
from autogen_agentchat.agents import AssistantAgent
from autogen_core.models import ModelFamily, UserMessage
from autogen_core.tools import FunctionTool
from autogen_ext.models.openai import OpenAIChatCompletionClient
from pydantic import BaseModel


class Result(BaseModel):
    answer: int


async def multiply(a: int, b: int) -> int:
    """Multiply two whole numbers."""
    return a * b


def model():
    info = {
        "vision": False,
        "function_calling": True,
        "json_output": True,
        "structured_output": True,
        "family": ModelFamily.R1,
    }
    return OpenAIChatCompletionClient(
        model=probe.MODEL, base_url=probe.URL, api_key=probe.KEY, model_info=info, max_retries=0
    )


def asked(question):
    return [UserMessage(content=question, source="user")]


async def chat():
    return (await model().create(asked(probe.QUESTION))).content


async def stream():
    pieces = model().create_stream(asked(probe.QUESTION))
    return [piece async for piece in pieces if isinstance(piece, str)]


async def reasoning():
    return (await model().create(asked(probe.QUESTION))).thought


async def structured():
    reply = await model().create(asked(probe.QUESTION), json_output=Result)
    return Result.model_validate_json(reply.content).model_dump()


async def tools():
    tool = FunctionTool(multiply, description=probe.TOOL_ABOUT, strict=True)
    (call,) = (await model().create(asked(probe.TOOL_QUESTION), tools=[tool])).content
    return call.name, call.arguments


async def history():
    agent = AssistantAgent("solver", model_client=model())
    await agent.run(task=probe.EARLIER)
    return (await agent.run(task=probe.LATER)).messages[-1].content


probe.run(globals())
