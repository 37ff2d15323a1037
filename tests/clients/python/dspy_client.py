# /// script
# requires-python = ">=3.11"
# dependencies = ["dspy==3.4.1"]
# ///
"""DSPy's LM."""

import json

import dspy
import probe

lm = dspy.LM(
    f"openai/{probe.MODEL}",
    api_base=probe.URL,
    api_key=probe.KEY,
    cache=False,
    num_retries=0,
    max_tokens=None,
    temperature=None,
)


def chat():
    (reply,) = lm(probe.QUESTION)
    return reply if isinstance(reply, str) else reply["text"]


stream = "streams the fields of its programs, which ask in its own format"


def reasoning():
    (reply,) = lm(probe.QUESTION)
    return reply["reasoning_content"]


def structured():
    (reply,) = lm(probe.QUESTION, response_format=probe.FORM)
    return json.loads(reply if isinstance(reply, str) else reply["text"])


def tools():
    (reply,) = lm(probe.TOOL_QUESTION, tools=[probe.TOOL])
    made = reply["tool_calls"][0].function
    return made.name, made.arguments


def history():
    turns = [
        {"role": "user", "content": probe.EARLIER},
        {"role": "assistant", "content": probe.REPLY},
        {"role": "user", "content": probe.LATER},
    ]
    (reply,) = lm(messages=turns)
    return reply if isinstance(reply, str) else reply["text"]


probe.run(globals())
