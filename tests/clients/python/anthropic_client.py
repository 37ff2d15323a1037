# /// script
# requires-python = ">=3.11"
# dependencies = ["anthropic==2.11.0"]
# ///
"""anthropic-python."""

import json

import probe
from anthropic import Anthropic

api = Anthropic(base_url=probe.URL.removesuffix("/v1"), api_key=probe.KEY, max_retries=0).messages
ASKED = [{"role": "user", "content": probe.QUESTION}]
TOOL = {
    "name": probe.TOOL_NAME,
    "description": probe.TOOL_ABOUT,
    "input_schema": probe.TOOL_SCHEMA,
}


def create(messages, **more):
    return api.create(model=probe.MODEL, max_tokens=2048, messages=messages, **more)


def block(reply, kind):
    return next(one for one in reply.content if one.type == kind)


def chat():
    return block(create(ASKED), "text").text


def stream():
    with api.stream(model=probe.MODEL, max_tokens=2048, messages=ASKED) as made:
        return list(made.text_stream)


def reasoning():
    return block(create(ASKED), "thinking").thinking


def structured():
    form = {"type": "json_schema", "schema": probe.SCHEMA}
    return json.loads(block(create(ASKED, output_config={"format": form}), "text").text)


def tools():
    asked = [{"role": "user", "content": probe.TOOL_QUESTION}]
    call = block(create(asked, tools=[TOOL]), "tool_use")
    return call.name, json.dumps(call.input)


def history():
    turns = [{"role": "user", "content": probe.EARLIER}]
    turns.append(create(turns).to_param())
    turns.append({"role": "user", "content": probe.LATER})
    return block(create(turns), "text").text


probe.run(globals())
