# /// script
# requires-python = ">=3.11"
# dependencies = ["llama-index-llms-openai-like==0.8.1"]
# ///
"""LlamaIndex's OpenAILike."""

import os

os.environ["TIKTOKEN_CACHE_DIR"] = ""

import probe
from llama_index.core.base.llms.types import ChatMessage, ThinkingBlock
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel

model = OpenAILike(
    model=probe.MODEL,
    api_base=probe.URL,
    api_key=probe.KEY,
    is_chat_model=True,
    is_function_calling_model=True,
    should_use_structured_outputs=True,
    max_retries=0,
)
ASKED = [ChatMessage(role="user", content=probe.QUESTION)]


class Result(BaseModel):
    answer: int


def multiply(a: int, b: int) -> int:
    """Multiply two whole numbers."""
    return a * b


def chat():
    return model.chat(ASKED).message.content


def stream():
    return [chunk.delta for chunk in model.stream_chat(ASKED)]


def reasoning():
    blocks = model.chat(ASKED).message.blocks
    return "".join(block.content for block in blocks if isinstance(block, ThinkingBlock))


def structured():
    return model.as_structured_llm(Result).chat(ASKED).raw.model_dump()


def tools():
    reply = model.chat_with_tools(
        [FunctionTool.from_defaults(multiply)], user_msg=probe.TOOL_QUESTION
    )
    (call,) = model.get_tool_calls_from_response(reply)
    return call.tool_name, call.tool_kwargs


def history():
    turns = [ChatMessage(role="user", content=probe.EARLIER)]
    turns.append(model.chat(turns).message)
    turns.append(ChatMessage(role="user", content=probe.LATER))
    return model.chat(turns).message.content


probe.run(globals())
