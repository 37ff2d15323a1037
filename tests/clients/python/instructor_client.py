# /// script
# requires-python = ">=3.11"
# dependencies = ["instructor==1.17.0"]
# ///
"""Instructor, by JSON schema."""

import instructor
import probe
from openai import OpenAI
from pydantic import BaseModel

openai = OpenAI(base_url=probe.URL, api_key=probe.KEY, max_retries=0)
ASKED = [{"role": "user", "content": probe.QUESTION}]


class Result(BaseModel):
    answer: int


class multiply(BaseModel):  # noqa: N801 (its name is the tool's)
    """Multiply two whole numbers."""

    a: int
    b: int


def ask(mode, model, question, **more):
    client = instructor.from_openai(openai, mode=mode)
    return client.chat.completions.create(
        model=probe.MODEL,
        messages=[{"role": "user", "content": question}],
        response_model=model,
        max_retries=0,
        **more,
    )


def chat():
    return ask(instructor.Mode.JSON_SCHEMA, None, probe.QUESTION).choices[0].message.content


def stream():
    chunks = ask(instructor.Mode.JSON_SCHEMA, None, probe.QUESTION, stream=True)
    return [chunk.choices[0].delta.content or "" for chunk in chunks]


reasoning = "gives the parsed answer alone"


def structured():
    return ask(instructor.Mode.JSON_SCHEMA, Result, probe.QUESTION).model_dump()


def tools():
    made = ask(instructor.Mode.TOOLS, multiply, probe.TOOL_QUESTION)
    return type(made).__name__, made.model_dump()


history = "keeps no history of its own"


probe.run(globals())
