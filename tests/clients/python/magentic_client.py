# /// script
# requires-python = ">=3.11"
# dependencies = ["magentic==0.41.1"]
# ///
"""Magentic."""

import probe
from magentic import AssistantMessage, Chat, FunctionCall, OpenaiChatModel, StreamedStr, UserMessage
from pydantic import BaseModel

model = OpenaiChatModel(probe.MODEL, base_url=probe.URL, api_key=probe.KEY)


class Result(BaseModel):
    answer: int


def multiply(a: int, b: int) -> int:
    """Multiply two whole numbers."""
    return a * b


def ask(question, **more):
    asked = Chat(messages=[UserMessage(question)], model=model, **more)
    return asked.submit().last_message.content


def chat():
    return ask(probe.QUESTION)


def stream():
    return list(ask(probe.QUESTION, output_types=[StreamedStr]))


reasoning = "reads no field of the thought"


def structured():
    return ask(probe.QUESTION, output_types=[Result]).model_dump()


def tools():
    call = ask(probe.TOOL_QUESTION, functions=[multiply], output_types=[FunctionCall])
    return call.function.__name__, call.arguments


def history():
    turns = [UserMessage(probe.EARLIER), AssistantMessage(probe.REPLY), UserMessage(probe.LATER)]
    return Chat(messages=turns, model=model).submit().last_message.content


probe.run(globals())
