# /// script
# requires-python = ">=3.11"
# dependencies = ["smolagents[openai]==1.26.0"]
# ///
"""smolagents' OpenAIModel."""

import json

import probe
from smolagents import OpenAIModel, tool


def model():
    return OpenAIModel(model_id=probe.MODEL, api_base=probe.URL, api_key=probe.KEY)


def user(text):
    return {"role": "user", "content": [{"type": "text", "text": text}]}


@tool
def multiply(a: int, b: int) -> int:
    """Multiply two whole numbers.

    Args:
        a: one number
        b: the other number
    """
    return a * b


def chat():
    return model().generate([user(probe.QUESTION)]).content


def stream():
    return [delta.content or "" for delta in model().generate_stream([user(probe.QUESTION)])]


def reasoning():
    return model().generate([user(probe.QUESTION)]).raw.choices[0].message.reasoning_content


def structured():
    return json.loads(model().generate([user(probe.QUESTION)], response_format=probe.FORM).content)


def tools():
    asked = [user(probe.TOOL_QUESTION)]
    (call,) = model().generate(asked, tools_to_call_from=[multiply]).tool_calls
    return call.function.name, call.function.arguments


def history():
    turns = [user(probe.EARLIER)]
    reply = model().generate(turns).content
    turns.append({"role": "assistant", "content": [{"type": "text", "text": reply}]})
    return model().generate([*turns, user(probe.LATER)]).content


probe.run(globals())
