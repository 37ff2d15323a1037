"""The body of `POST /v1/chat/completions`: a conversation, to be answered."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from orchestrator.http.schemas import (
    EFFORT,
    Effort,
    GenerationRequest,
    StreamOptions,
    contradiction,
)
from orchestrator.types import Message


class TextPart(BaseModel):
    """A part of a message's content."""

    model_config = ConfigDict(strict=True, extra="forbid")
    type: Literal["text"]
    text: str


def _flatten(content: object) -> object:
    """Text parts as one string, one line each."""
    if not isinstance(content, list):
        if isinstance(content, str):
            return content
        raise PydanticCustomError("invalid_type", "must be a string or an array of text parts")
    if not content:
        raise PydanticCustomError("invalid_value", "must hold at least one part")
    for part in content:
        if not isinstance(part, dict) or part.get("type") != "text":
            raise PydanticCustomError("unsupported_parameter", "only text parts are supported")
    return "\n".join(TextPart.model_validate(part).text for part in content)


def _role(role: object) -> object:
    if role in ("tool", "function"):
        raise PydanticCustomError("unsupported_parameter", "tools are not supported")
    return "system" if role == "developer" else role


class ChatMessage(BaseModel):
    """One turn. The fields below `content` let a client send back a reply exactly as it came.

    Earlier reasoning is accepted and not shown to the models again, as reasoning models are
    trained to expect; so is a `name`, for which chat templates have no place. The rest must be
    empty.
    """

    model_config = ConfigDict(strict=True, extra="forbid")
    role: Annotated[
        Literal["system", "user", "assistant"],
        BeforeValidator(
            _role, json_schema_input_type=Literal["system", "developer", "user", "assistant"]
        ),
    ]
    content: Annotated[str, BeforeValidator(_flatten, json_schema_input_type=str | list[TextPart])]
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: None = None
    audio: None = None
    name: Annotated[str, Field(max_length=256)] | None = None
    function_call: None = None
    tool_calls: Annotated[list[Any], Field(max_length=0)] | None = None
    annotations: Annotated[list[Any], Field(max_length=0)] | None = None


class ChatStreamOptions(StreamOptions):
    include_events: bool = Field(
        default=False,
        description="chunks with `baton.events`: steps, rejected drafts, calls of the workers",
    )


class TemplateSettings(BaseModel):
    """`chat_template_kwargs`: the switches by which templates are told to think or not."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)
    enable_thinking: bool | None = None
    thinking: bool | None = None


class ChatRequest(GenerationRequest):
    """The body of `POST /v1/chat/completions`."""

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=2048)]
    max_tokens: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="cap on thought and answer together"
    )
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="the same"
    )
    reasoning_effort: Effort | None = Field(
        default=None, description="cap on the thought, as a share of max_tokens; none: no thought"
    )
    thinking_token_budget: Annotated[int, Field(ge=-1)] | None = Field(
        default=None, description="cap on the thought in tokens; -1: no cap, 0: no thought"
    )
    stream_options: ChatStreamOptions | None = None
    chat_template_kwargs: TemplateSettings = TemplateSettings()
    continue_final_message: bool = Field(
        default=False, description="the answer goes on with the last message, the assistant's"
    )
    add_generation_prompt: bool = Field(
        default=True, description="the opposite of continue_final_message, where it is given"
    )

    @model_validator(mode="after")
    def _consistent(self) -> ChatRequest:
        last, place = self.messages[-1], f"messages[{len(self.messages) - 1}]"
        if last.role == "assistant" and not self.continue_final_message:
            raise contradiction(
                "messages",
                "the last message is the assistant's: to have it continued, say "
                "continue_final_message: true; else the user's message must be last",
            )
        if self.continue_final_message and last.role != "assistant":
            raise contradiction("continue_final_message", "the last message is not the assistant's")
        if self.add_generation_prompt == self.continue_final_message and (
            "add_generation_prompt" in self.model_fields_set
        ):
            raise contradiction(
                "add_generation_prompt", "must be the opposite of continue_final_message"
            )
        if not last.content.strip():
            raise contradiction(f"{place}.content", "the question is empty")
        caps = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(caps) > 1:
            raise contradiction("max_completion_tokens", "contradicts max_tokens")
        return self

    @property
    def wants_events(self) -> bool:
        """Whether a stream is to tell what happens beside the accepted text."""
        return self.stream_options is not None and self.stream_options.include_events

    @property
    def cap(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def cap_name(self) -> str:
        return "max_completion_tokens" if self.max_tokens is None else "max_tokens"

    @property
    def thinking(self) -> bool:
        template = self.chat_template_kwargs
        switched_off = False in (template.enable_thinking, template.thinking)
        off = switched_off or self.reasoning_effort == "none" or self.thinking_token_budget == 0
        return not (off or self.continue_final_message)

    def thinking_cap(self, max_tokens: int) -> int | None:
        share = EFFORT[self.reasoning_effort] if self.reasoning_effort else None
        caps = [] if share is None else [max(1, int(share * max_tokens))]
        if self.thinking_token_budget is not None and self.thinking_token_budget > 0:
            caps.append(self.thinking_token_budget)
        return min(caps, default=None)

    @property
    def conversation(self) -> tuple[Message, ...]:
        return tuple(Message(message.role, message.content) for message in self.messages)
