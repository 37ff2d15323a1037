# /// script
# requires-python = ">=3.11"
# dependencies = ["semantic-kernel==1.45.0"]
# ///
"""Semantic Kernel's OpenAIChatCompletion."""

import json

import probe
from openai import AsyncOpenAI
from pydantic import BaseModel
from semantic_kernel import Kernel
from semantic_kernel.connectors.ai.function_choice_behavior import FunctionChoiceBehavior
from semantic_kernel.connectors.ai.open_ai import (
    OpenAIChatCompletion,
    OpenAIChatPromptExecutionSettings,
)
from semantic_kernel.contents import ChatHistory, FunctionCallContent
from semantic_kernel.functions import kernel_function


class Result(BaseModel):
    answer: int


class Calculator:
    @kernel_function(name="multiply", description="Multiply two whole numbers.")
    def multiply(self, a: int, b: int) -> int:
        return a * b


def model():
    client = AsyncOpenAI(base_url=probe.URL, api_key=probe.KEY, max_retries=0)
    return OpenAIChatCompletion(probe.MODEL, async_client=client)


def asked(*turns):
    history = ChatHistory()
    for turn in turns:
        if isinstance(turn, str):
            history.add_user_message(turn)
        else:
            history.add_message(turn)
    return history


async def ask(*turns, kernel=None, **settings):
    given = OpenAIChatPromptExecutionSettings(**settings)
    more = {"kernel": kernel} if kernel else {}
    return await model().get_chat_message_content(asked(*turns), given, **more)


async def chat():
    return (await ask(probe.QUESTION)).content


async def stream():
    settings = OpenAIChatPromptExecutionSettings()
    pieces = model().get_streaming_chat_message_content(asked(probe.QUESTION), settings)
    return [piece.content async for piece in pieces if piece is not None]


reasoning = "reads no field of the thought"


async def structured():
    return json.loads((await ask(probe.QUESTION, response_format=Result)).content)


async def tools():
    kernel = Kernel()
    kernel.add_plugin(Calculator(), "calculator")
    choice = FunctionChoiceBehavior.Auto(auto_invoke=False)
    reply = await ask(probe.TOOL_QUESTION, kernel=kernel, function_choice_behavior=choice)
    (call,) = [item for item in reply.items if isinstance(item, FunctionCallContent)]
    return call.function_name, call.arguments


async def history():
    return (await ask(probe.EARLIER, await ask(probe.EARLIER), probe.LATER)).content


probe.run(globals())
