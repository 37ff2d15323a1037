# /// script
# requires-python = ">=3.11"
# dependencies = ["strands-agents[openai]==1.62.0"]
# ///
"""Strands Agents' OpenAIModel."""

import probe
from pydantic import BaseModel
from strands import Agent, tool
from strands.models.openai import OpenAIModel


class Result(BaseModel):
    """The answer."""

    answer: int


calls = []


@tool
def multiply(a: int, b: int) -> int:
    """Multiply two whole numbers."""
    calls.append({"a": a, "b": b})
    return a * b


def agent(**more):
    client = {"base_url": probe.URL, "api_key": probe.KEY, "max_retries": 0}
    model = OpenAIModel(client_args=client, model_id=probe.MODEL)
    return Agent(model=model, callback_handler=None, retry_strategy=None, **more)


def texts(result, kind, inner):
    return [block[kind][inner] for block in result.message["content"] if kind in block]


def chat():
    return str(agent()(probe.QUESTION)).strip()


async def stream():
    events = agent().stream_async(probe.QUESTION)
    return [event["data"] async for event in events if "data" in event]


def reasoning():
    return texts(agent()(probe.QUESTION), "reasoningContent", "reasoningText")[0]["text"]


def structured():
    return agent().structured_output(Result, probe.QUESTION).model_dump()


def tools():
    agent(tools=[multiply])(probe.TOOL_QUESTION)
    return "multiply", calls[0]


def history():
    one = agent()
    one(probe.EARLIER)
    return str(one(probe.LATER))


probe.run(globals())
