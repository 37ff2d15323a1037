# /// script
# requires-python = ">=3.11"
# dependencies = ["outlines[openai]==1.3.3"]
# ///
"""Outlines over an OpenAI server."""

import json

import openai
import outlines
import probe
from outlines.inputs import Chat
from pydantic import BaseModel

model = outlines.from_openai(
    openai.OpenAI(base_url=probe.URL, api_key=probe.KEY, max_retries=0), probe.MODEL
)


class Result(BaseModel):
    answer: int


def chat():
    return model(probe.QUESTION)


def stream():
    return list(model.stream(probe.QUESTION))


reasoning = "gives the answer alone"


def structured():
    return json.loads(model(probe.QUESTION, Result))


tools = "calls no tools"


def history():
    turns = Chat([{"role": "user", "content": probe.EARLIER}])
    turns.add_assistant_message(model(turns))
    turns.add_user_message(probe.LATER)
    return model(turns)


probe.run(globals())
