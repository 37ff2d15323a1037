"""The conversation of `POST /v1/messages`: turns of content blocks, read as messages."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from hashlib import blake2b
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, Tag
from pydantic_core import PydanticCustomError

from orchestrator.http.apis.parameters import called_tool
from orchestrator.http.body import (
    UNSUPPORTED_ITEM,
    Given,
    by_type,
    contradiction,
    without_nulls,
)
from orchestrator.http.tools.offered import ToolName, check_type
from orchestrator.http.tools.tagged_arguments import dumped
from orchestrator.types import Message, ToolCall

FAILED = "Error: "
"""Stands before the result of a call that failed."""


def signature(thought: str) -> str:
    """Return the signature of a thinking block: a digest of its text.

    It shows that a client sends a thought back as it came. It has no secret: chat completions take
    any text as an earlier thought, so a secret would protect nothing, and replicas must share it.
    """
    digest = blake2b(thought.encode(), digest_size=24, person=b"baton thought")
    return b64encode(digest.digest()).decode()


class Block(Given):
    """A part of a turn; `cache_control` is a hint."""

    cache_control: Any = None


class TextBlock(Block):
    type: Literal["text"]
    text: str
    citations: Annotated[list[Any], Field(max_length=0)] | None = None
    parsed_output: Any = None  # the official client's reading of the text


class ThinkingBlock(Block):
    """An earlier answer's thought. The chat template decides whether a model sees it again."""

    type: Literal["thinking"]
    thinking: str
    signature: str


class ToolUseBlock(Block):
    """An earlier answer's call of a tool."""

    type: Literal["tool_use"]
    id: Annotated[str, Field(min_length=1, max_length=256)]
    name: ToolName
    input: dict[str, Any]
    caller: Any = None
    toolset_name: None = None


class ServerToolBlock(Block):
    """An earlier answer's question to an advisor, whose advice follows."""

    type: Literal["server_tool_use"]
    id: Annotated[str, Field(min_length=1, max_length=256)]
    name: Literal["advisor"]
    input: dict[str, Any] = Field(default_factory=dict)
    caller: Any = None


class Advice(Given):
    """What an advisor of another service said, or why it said nothing. Only that service reads
    `encrypted_content`."""

    type: Literal["advisor_result", "advisor_redacted_result", "advisor_tool_result_error"]
    text: str = ""
    encrypted_content: str = ""
    error_code: str = ""
    stop_reason: Any = None


class AdviceBlock(Block):
    """An earlier answer's advice, which the models read as its thought."""

    type: Literal["advisor_tool_result"]
    tool_use_id: Annotated[str, Field(min_length=1, max_length=256)]
    content: Advice


def _check_block(given: object, *allowed: str) -> object:
    """Refuse blocks of other types or server tools, and thoughts with another signature."""
    check_type(given, "blocks", allowed)
    block = given if isinstance(given, dict) else {}
    if block.get("type") == "server_tool_use" and block.get("name") != "advisor":
        raise PydanticCustomError(
            UNSUPPORTED_ITEM,
            "the only tool of a server that is supported here is advisor",
            {"kind": "server_tool_use of another tool"},
        )
    thought = block.get("thinking")
    if isinstance(thought, str) and block.get("signature", "") != signature(thought):
        raise PydanticCustomError(
            UNSUPPORTED_ITEM,
            "the signature is not this thought's: send the block as it came, or leave it out",
            {"kind": "thinking with another signature"},
        )
    return without_nulls(given)


def _as_blocks(content: object) -> object:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


ResultBlock = Annotated[TextBlock, BeforeValidator(lambda given: _check_block(given, "text"))]


class ToolResultBlock(Block):
    """The result of an earlier call."""

    type: Literal["tool_result"]
    tool_use_id: Annotated[str, Field(min_length=1, max_length=256)]
    content: Annotated[
        list[ResultBlock],
        BeforeValidator(_as_blocks, json_schema_input_type=str | list[ResultBlock]),
    ] = Field(default_factory=list)
    is_error: bool = False
    toolset_name: None = None


BLOCKS: Final = (
    "text", "thinking", "tool_use", "tool_result", "server_tool_use", "advisor_tool_result"
)  # fmt: skip
AnyBlock = Annotated[
    Annotated[
        Annotated[TextBlock, Tag("[text]")]
        | Annotated[ThinkingBlock, Tag("[thinking]")]
        | Annotated[ToolUseBlock, Tag("[tool_use]")]
        | Annotated[ToolResultBlock, Tag("[tool_result]")]
        | Annotated[ServerToolBlock, Tag("[server_tool_use]")]
        | Annotated[AdviceBlock, Tag("[advisor_tool_result]")],
        by_type("invalid_value", "expected a block with a type"),
    ],
    BeforeValidator(lambda given: _check_block(given, *BLOCKS)),
]


class Turn(Given):
    """One turn of the conversation."""

    role: Literal["user", "assistant", "system"]
    content: Annotated[
        list[AnyBlock], BeforeValidator(_as_blocks, json_schema_input_type=str | list[AnyBlock])
    ]

    @property
    def text(self) -> str:
        return _text(self.content)


def _text(blocks: Sequence[Block]) -> str:
    return "\n".join(one.text for one in blocks if isinstance(one, TextBlock))


_OF_ROLE: dict[type[Block], str] = {
    ThinkingBlock: "assistant",
    ToolUseBlock: "assistant",
    ServerToolBlock: "assistant",
    AdviceBlock: "assistant",
    ToolResultBlock: "user",
}


def read_turns(turns: Sequence[Turn]) -> tuple[Message, ...]:
    """Return the messages of a conversation. The results of calls come before a turn's text.

    Raises:
        InvalidRequest: a block is in another role's turn, or a result comes without its call.
    """
    messages: list[Message] = []
    called: dict[str, str] = {}
    for i, turn in enumerate(turns):
        calls, thoughts, results = list[ToolCall](), list[str](), list[Message]()
        for j, block in enumerate(turn.content):
            place = f"messages[{i}].content[{j}]"
            if (role := _OF_ROLE.get(type(block), turn.role)) != turn.role:
                raise contradiction(place, f"such a block belongs in the {role}'s turn")
            if isinstance(block, ThinkingBlock):
                thoughts.append(block.thinking)
            elif isinstance(block, AdviceBlock):
                thoughts.append(block.content.text)
            elif isinstance(block, ToolUseBlock):
                calls.append(ToolCall(block.id, block.name, dumped(block.input)))
            elif isinstance(block, ToolResultBlock):
                name = called_tool(called, block.tool_use_id, f"{place}.tool_use_id")
                text = FAILED * block.is_error + _text(block.content)
                results.append(Message("tool", text, call_id=block.tool_use_id, name=name))
        called |= {call.id: call.name for call in calls}
        messages += results
        if turn.text or not results:
            thought = "\n".join(filter(None, thoughts))
            messages.append(Message(turn.role, turn.text, calls=tuple(calls), reasoning=thought))
    return tuple(messages)
