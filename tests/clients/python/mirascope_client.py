# /// script
# requires-python = ">=3.11"
# dependencies = ["mirascope[openai]==2.8.2"]
# ///
"""Mirascope."""

import os

import probe

os.environ |= {"OPENAI_API_KEY": probe.KEY, "OPENAI_BASE_URL": probe.URL}

from mirascope import llm
from pydantic import BaseModel

NAME = f"openai/{probe.MODEL}:completions"


class Result(BaseModel):
    answer: int


@llm.tool
def multiply(a: int, b: int) -> int:
    """Multiply two whole numbers."""
    return a * b


def chat():
    return llm.model(NAME).call(probe.QUESTION).text()


def stream():
    return list(llm.model(NAME).stream(probe.QUESTION).text_stream())


reasoning = "reads no field of the thought in chat"


def structured():
    return llm.model(NAME).call(probe.QUESTION, format=Result).parse().model_dump()


def tools():
    (call,) = llm.model(NAME).call(probe.TOOL_QUESTION, tools=[multiply]).tool_calls
    return call.name, call.args


def history():
    first = llm.model(NAME).call(probe.EARLIER)
    return first.resume(probe.LATER).text()


probe.run(globals())
