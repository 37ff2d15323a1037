# /// script
# requires-python = ">=3.11"
# dependencies = ["openai==3.54.0"]
# ///
"""openai-python, responses."""

import json

import probe
from openai import OpenAI

create = OpenAI(base_url=probe.URL, api_key=probe.KEY, max_retries=0).responses.create


def chat():
    return create(model=probe.MODEL, input=probe.QUESTION).output_text


def stream():
    events = create(model=probe.MODEL, input=probe.QUESTION, stream=True)
    return [event.delta for event in events if event.type == "response.output_text.delta"]


def reasoning():
    (item,) = [
        one
        for one in create(model=probe.MODEL, input=probe.QUESTION).output
        if one.type == "reasoning"
    ]
    return item.summary[0].text


def structured():
    form = {"type": "json_schema", "name": "answer", "schema": probe.SCHEMA, "strict": True}
    return json.loads(
        create(model=probe.MODEL, input=probe.QUESTION, text={"format": form}).output_text
    )


def tools():
    tool = {
        "type": "function",
        "name": probe.TOOL_NAME,
        "description": probe.TOOL_ABOUT,
        "parameters": probe.TOOL_SCHEMA,
        "strict": True,
    }
    reply = create(model=probe.MODEL, input=probe.TOOL_QUESTION, tools=[tool])
    (call,) = [item for item in reply.output if item.type == "function_call"]
    return call.name, call.arguments


def history():
    turns = [{"role": "user", "content": probe.EARLIER}]
    turns += create(model=probe.MODEL, input=turns).output
    turns.append({"role": "user", "content": probe.LATER})
    return create(model=probe.MODEL, input=turns).output_text


probe.run(globals())
