# /// script
# requires-python = ">=3.11"
# dependencies = ["llm==0.36"]
# ///
"""llm, Simon Willison's library, through its OpenAI model."""

import json

import llm
import probe
from llm.default_plugins.openai_models import Chat

model = Chat("baton", model_name=probe.MODEL, api_base=probe.URL, supports_schema=True)
model.supports_tools = True
model.key = probe.KEY


def multiply(a: int, b: int) -> int:
    """Multiply two whole numbers."""
    return a * b


def chat():
    return model.prompt(probe.QUESTION, stream=False).text()


def stream():
    return list(model.prompt(probe.QUESTION))


reasoning = "reads no field of the thought"


def structured():
    return json.loads(model.prompt(probe.QUESTION, schema=probe.SCHEMA, stream=False).text())


def tools():
    reply = model.prompt(probe.TOOL_QUESTION, tools=[llm.Tool.function(multiply)], stream=False)
    (call,) = reply.tool_calls()
    return call.name, call.arguments


def history():
    conversation = model.conversation()
    conversation.prompt(probe.EARLIER, stream=False).text()
    return conversation.prompt(probe.LATER, stream=False).text()


probe.run(globals())
