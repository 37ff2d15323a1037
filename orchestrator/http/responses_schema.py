"""The body of `POST /v1/responses`: OpenAI's newer form of a conversation, kept nowhere.

Nothing is remembered between requests: a client sends the conversation so far as `input`, replies
with their reasoning items as they came. Reasoning items are not shown to the models again, as
reasoning models are trained to expect.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from orchestrator.http.schemas import (
    EFFORT,
    HINTS,
    Effort,
    GenerationRequest,
    contradiction,
)
from orchestrator.types import Message, Role

_PART_TYPES = ("input_text", "output_text", "text")


class Reasoning(BaseModel):
    """`reasoning`: how much thought. The summary is always the accepted thought itself."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)
    effort: Effort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None


class TextFormat(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)
    type: Literal["text"] = "text"


class TextSettings(BaseModel):
    """`text`: the form of the answer, which is plain text."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)
    format: TextFormat = TextFormat()
    verbosity: Literal["low", "medium", "high"] | None = None


def _items(given: object) -> object:
    """The messages of an `input`, each as its role and its text; reasoning items are left out."""
    if isinstance(given, str):
        return [("user", given)]
    if not isinstance(given, list):
        raise PydanticCustomError("invalid_type", "must be a string or an array of items")
    return [
        _message(item)
        for item in given
        if not isinstance(item, dict) or item.get("type") != "reasoning"
    ]


def _message(item: object) -> tuple[str, str]:
    if not isinstance(item, dict) or item.get("type", "message") != "message":
        kind = item.get("type") if isinstance(item, dict) else None
        named = f"{kind[:64]!r} items" if isinstance(kind, str) else "such items"
        raise PydanticCustomError(
            "unsupported_parameter",
            "{named} are not supported: messages and reasoning items are",
            {"named": named},
        )
    unknown = item.keys() - {"type", "role", "content", "id", "status", "phase"}
    if unknown:
        raise PydanticCustomError(
            "unknown_parameter",
            "unknown in a message: {names}",
            {"names": ", ".join(sorted(unknown))[:200]},
        )
    role = {"developer": "system"}.get(str(item.get("role")), item.get("role"))
    if role not in ("system", "user", "assistant"):
        raise PydanticCustomError(
            "invalid_value", "the role must be user, assistant, system or developer"
        )
    return str(role), _text(item.get("content"))


def _text(content: object) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        raise PydanticCustomError("invalid_type", "content must be a string or an array of parts")
    for part in content:
        if not isinstance(part, dict) or part.get("type") not in _PART_TYPES:
            raise PydanticCustomError("unsupported_parameter", "only text parts are supported")
        if not isinstance(part.get("text"), str):
            raise PydanticCustomError("invalid_type", "the text of a part must be a string")
    return "\n".join(part["text"] for part in content)


class ResponsesRequest(GenerationRequest):
    """A response; what it says is as in a chat completion, but for the names."""

    hints: ClassVar[frozenset[str]] = (HINTS - {"verbosity"}) | {"include", "max_tool_calls"}
    unsupported: ClassVar[dict[str, tuple[object, ...]]] = {
        "tools": ([],),
        "tool_choice": ("none", "auto"),
        "previous_response_id": (),
        "conversation": (),
        "prompt": (),
        "background": (False,),
        "truncation": ("disabled",),
        "top_logprobs": (0,),
        "context_management": ([],),
        "moderation": (),
    }

    question_name: ClassVar[str] = "input"

    input: Annotated[
        list[tuple[Literal["system", "user", "assistant"], str]],
        Field(min_length=1, max_length=2048),
        BeforeValidator(_items, json_schema_input_type=str | list[dict[str, Any]]),
    ] = Field(strict=False, description="the question, or the conversation so far as items")
    instructions: str | None = Field(default=None, description="a system message before the input")
    max_output_tokens: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="cap on thought and answer together"
    )
    reasoning: Reasoning = Reasoning()
    text: TextSettings = TextSettings()

    @model_validator(mode="after")
    def _ends_with_a_question(self) -> ResponsesRequest:
        role, text = self.input[-1]
        if role == "assistant":
            raise contradiction("input", "the last message must be the user's")
        if not text.strip():
            raise contradiction("input", "the question is empty")
        return self

    @property
    def cap(self) -> int | None:
        return self.max_output_tokens

    @property
    def cap_name(self) -> str:
        return "max_output_tokens"

    @property
    def thinking(self) -> bool:
        return self.reasoning.effort != "none"

    def thinking_cap(self, max_tokens: int) -> int | None:
        share = EFFORT[self.reasoning.effort] if self.reasoning.effort else None
        return None if share is None else max(1, int(share * max_tokens))

    @property
    def conversation(self) -> tuple[Message, ...]:
        turns: list[tuple[Role, str]] = [(role, text) for role, text in self.input]
        if self.instructions:
            turns.insert(0, ("system", self.instructions))
        return tuple(Message(role, text) for role, text in turns)
