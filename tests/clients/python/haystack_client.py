# /// script
# requires-python = ">=3.11"
# dependencies = ["haystack-ai==3.4.0"]
# ///
"""Haystack's OpenAIChatGenerator."""

import json

import probe
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import create_tool_from_function
from haystack.utils import Secret


def ask(turns, **more):
    model = OpenAIChatGenerator(
        Secret.from_token(probe.KEY), probe.MODEL, api_base_url=probe.URL, max_retries=0
    )
    return model.run(turns, **more)["replies"][0]


def multiply(a: int, b: int) -> int:
    """Multiply two whole numbers."""
    return a * b


ASKED = [ChatMessage.from_user(probe.QUESTION)]


def chat():
    return ask(ASKED).text


def stream():
    pieces = []
    ask(ASKED, streaming_callback=lambda chunk: pieces.append(chunk.content))
    return pieces


reasoning = "reads no field of the thought in chat"


def structured():
    return json.loads(ask(ASKED, generation_kwargs={"response_format": probe.FORM}).text)


def tools():
    asked = [ChatMessage.from_user(probe.TOOL_QUESTION)]
    (call,) = ask(asked, tools=[create_tool_from_function(multiply)]).tool_calls
    return call.tool_name, call.arguments


def history():
    turns = [ChatMessage.from_user(probe.EARLIER)]
    turns += [ask(turns), ChatMessage.from_user(probe.LATER)]
    return ask(turns).text


probe.run(globals())
