# /// script
# requires-python = ">=3.11"
# dependencies = ["langchain-openai==1.7.3"]
# ///
"""LangChain's ChatOpenAI, chat completions."""

import probe
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

model = ChatOpenAI(model=probe.MODEL, base_url=probe.URL, api_key=probe.KEY, max_retries=0)


class Result(BaseModel):
    answer: int


@tool
def multiply(a: int, b: int) -> int:
    """Multiply two whole numbers."""
    return a * b


def chat():
    return model.invoke(probe.QUESTION).content


def stream():
    return [chunk.content for chunk in model.stream(probe.QUESTION)]


reasoning = "reads no field of the thought in chat; through responses it does"


def structured():
    return model.with_structured_output(Result).invoke(probe.QUESTION).model_dump()


def tools():
    (call,) = model.bind_tools([multiply]).invoke(probe.TOOL_QUESTION).tool_calls
    return call["name"], call["args"]


def history():
    turns = [("user", probe.EARLIER), model.invoke(probe.EARLIER), ("user", probe.LATER)]
    return model.invoke(turns).content


probe.run(globals())
