# /// script
# requires-python = ">=3.11"
# dependencies = ["inspect-ai==0.3.285", "openai==3.54.0"]
# ///
"""Inspect AI's openai-api provider."""

import json
import os

import probe

os.environ |= {"BATON_BASE_URL": probe.URL, "BATON_API_KEY": probe.KEY}

from inspect_ai.model import ChatMessageUser, GenerateConfig, ResponseSchema, get_model
from inspect_ai.tool import tool
from inspect_ai.util import json_schema
from pydantic import BaseModel


class Result(BaseModel):
    answer: int


def model(**more):
    config = GenerateConfig(max_retries=0, **more)
    return get_model(f"openai-api/baton/{probe.MODEL}", config=config, memoize=False)


@tool
def multiply():
    async def execute(a: int, b: int) -> int:
        """Multiply two whole numbers.

        Args:
            a: one number
            b: the other number
        """
        return a * b

    return execute


async def chat():
    return (await model().generate(probe.QUESTION)).completion


stream = "gives whole answers"


async def reasoning():
    content = (await model().generate(probe.QUESTION)).message.content
    return "".join(part.reasoning for part in content if part.type == "reasoning")


async def structured():
    schema = ResponseSchema(name="answer", json_schema=json_schema(Result), strict=True)
    return json.loads((await model(response_schema=schema).generate(probe.QUESTION)).completion)


async def tools():
    reply = await model().generate(probe.TOOL_QUESTION, tools=[multiply()])
    (call,) = reply.message.tool_calls
    return call.function, call.arguments


async def history():
    turns = [ChatMessageUser(content=probe.EARLIER)]
    turns.append((await model().generate(turns)).message)
    turns.append(ChatMessageUser(content=probe.LATER))
    return (await model().generate(turns)).completion


probe.run(globals())
