# /// script
# requires-python = ">=3.11"
# dependencies = ["langchain-openai==1.7.3"]
# ///
"""LangChain's ChatOpenAI, responses."""

import probe
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

model = ChatOpenAI(
    model=probe.MODEL, base_url=probe.URL, api_key=probe.KEY, max_retries=0, use_responses_api=True
)


class Result(BaseModel):
    answer: int


@tool
def multiply(a: int, b: int) -> int:
    """Multiply two whole numbers."""
    return a * b


def chat():
    return model.invoke(probe.QUESTION).text


def stream():
    return [chunk.text for chunk in model.stream(probe.QUESTION)]


def reasoning():
    blocks = model.invoke(probe.QUESTION).content_blocks
    return "".join(block["reasoning"] for block in blocks if block["type"] == "reasoning")


def structured():
    return model.with_structured_output(Result).invoke(probe.QUESTION).model_dump()


def tools():
    (call,) = model.bind_tools([multiply]).invoke(probe.TOOL_QUESTION).tool_calls
    return call["name"], call["args"]


def history():
    turns = [("user", probe.EARLIER), model.invoke(probe.EARLIER), ("user", probe.LATER)]
    return model.invoke(turns).text


probe.run(globals())
