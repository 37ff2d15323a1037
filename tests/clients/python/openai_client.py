# /// script
# requires-python = ">=3.11"
# dependencies = ["openai==3.54.0"]
# ///
"""openai-python, chat completions."""

import json

import probe
from openai import OpenAI

create = OpenAI(base_url=probe.URL, api_key=probe.KEY, max_retries=0).chat.completions.create
ASKED = [{"role": "user", "content": probe.QUESTION}]


def chat():
    return create(model=probe.MODEL, messages=ASKED).choices[0].message.content


def stream():
    chunks = create(
        model=probe.MODEL, messages=ASKED, stream=True, stream_options={"include_usage": True}
    )
    return [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]


def reasoning():
    return create(model=probe.MODEL, messages=ASKED).choices[0].message.reasoning_content


def structured():
    reply = create(model=probe.MODEL, messages=ASKED, response_format=probe.FORM)
    return json.loads(reply.choices[0].message.content)


def tools():
    reply = create(
        model=probe.MODEL,
        messages=[{"role": "user", "content": probe.TOOL_QUESTION}],
        tools=[probe.TOOL],
    )
    made = reply.choices[0].message.tool_calls[0].function
    return made.name, made.arguments


def history():
    turns = [{"role": "user", "content": probe.EARLIER}]
    turns.append(create(model=probe.MODEL, messages=turns).choices[0].message)
    turns.append({"role": "user", "content": probe.LATER})
    return create(model=probe.MODEL, messages=turns).choices[0].message.content


probe.run(globals())
