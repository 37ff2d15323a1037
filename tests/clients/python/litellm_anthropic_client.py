# /// script
# requires-python = ">=3.11"
# dependencies = ["litellm==1.106.2", "mcp"]
# ///
"""LiteLLM, by its Anthropic route."""

import json
import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm
import probe

litellm.telemetry = False


def ask(messages, **more):
    return litellm.completion(
        model=f"anthropic/{probe.MODEL}",
        api_base=probe.URL.removesuffix("/v1"),
        api_key=probe.KEY,
        messages=messages,
        num_retries=0,
        **more,
    )


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
    turns.append(ask(turns).choices[0].message.model_dump())
    turns.append({"role": "user", "content": probe.LATER})
    return ask(turns).choices[0].message.content


probe.run(globals())
