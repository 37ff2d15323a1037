# /// script
# requires-python = ">=3.11"
# dependencies = ["aisuite[openai]==0.2.0", "mcp<2"]
# ///
"""aisuite."""

import json

import aisuite
import probe


def ask(turns, **more):
    client = aisuite.Client({"openai": {"base_url": probe.URL, "api_key": probe.KEY}})
    return client.chat.completions.create(model=f"openai:{probe.MODEL}", messages=turns, **more)


ASKED = [{"role": "user", "content": probe.QUESTION}]


def chat():
    return ask(ASKED).choices[0].message.content


def stream():
    return [chunk.choices[0].delta.content or "" for chunk in ask(ASKED, stream=True)]


def reasoning():
    return ask(ASKED).choices[0].message.reasoning_content


def structured():
    return json.loads(ask(ASKED, response_format=probe.FORM).choices[0].message.content)


def tools():
    asked = [{"role": "user", "content": probe.TOOL_QUESTION}]
    reply = ask(asked, tools=[probe.TOOL])
    made = reply.choices[0].message.tool_calls[0].function
    return made.name, made.arguments


def history():
    turns = [{"role": "user", "content": probe.EARLIER}]
    turns.append(ask(turns).choices[0].message)
    turns.append({"role": "user", "content": probe.LATER})
    return ask(turns).choices[0].message.content


probe.run(globals())
