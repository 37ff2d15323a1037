"""The body of `POST /v1/chat/completions`: a conversation, to be answered."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, Final, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    model_validator,
)
from pydantic_core import PydanticCustomError

from orchestrator.errors import InvalidRequest
from orchestrator.http.schemas import (
    EFFORT,
    MOST_LIKELY,
    Choices,
    Effort,
    GenerationRequest,
    StreamOptions,
    contradiction,
)
from orchestrator.http.structured_outputs import StructuredOutputs
from orchestrator.http.tools import (
    MAX_TOOLS,
    MessageToolCall,
    Tool,
    ToolChoice,
    ToolUse,
    check_arguments,
    function_tool,
)
from orchestrator.types import Message, ToolCall


class TextPart(BaseModel):
    """A part of a message's content; what to cache is a hint."""

    model_config = ConfigDict(strict=True, extra="forbid")
    type: Literal["text"]
    text: str
    prompt_cache_breakpoint: Any = None
    cache_control: Any = None


_PARTS: Final = TypeAdapter(list[TextPart])


def _flatten(content: object) -> object:
    """Text parts as one string, one line each."""
    if not isinstance(content, list):
        if content is None or isinstance(content, str):
            return content
        raise PydanticCustomError("invalid_type", "must be a string or an array of text parts")
    if not content:
        raise PydanticCustomError("invalid_value", "must hold at least one part")
    for part in content:
        if not isinstance(part, dict) or part.get("type") != "text":
            raise PydanticCustomError("unsupported_parameter", "only text parts are supported")
    return "\n".join(part.text for part in _PARTS.validate_python(content))


def _role(role: object) -> object:
    if role == "function":
        raise PydanticCustomError("unsupported_parameter", "say tool, and tool_calls before it")
    return "system" if role == "developer" else role


class ChatMessage(BaseModel):
    """One turn. The fields below `content` let a client send back a reply exactly as it came.

    Whether earlier reasoning is shown to a model again is decided by its chat template. A `name` is
    accepted, and shown for a tool alone; a gateway's own fields are accepted, and so is what the
    official client parsed of a reply (`parsed`). The rest must be empty.
    """

    model_config = ConfigDict(strict=True, extra="forbid")
    role: Annotated[
        Literal["system", "user", "assistant", "tool"],
        BeforeValidator(
            _role,
            json_schema_input_type=Literal["system", "developer", "user", "assistant", "tool"],
        ),
    ]
    content: Annotated[
        str | None, BeforeValidator(_flatten, json_schema_input_type=str | list[TextPart] | None)
    ] = None
    tool_calls: Annotated[list[MessageToolCall], Field(max_length=MAX_TOOLS)] | None = None
    tool_call_id: Annotated[str, Field(max_length=256)] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    reasoning_details: list[Any] | None = None
    provider_specific_fields: dict[str, Any] | None = None
    parsed: Any = None
    refusal: None = None
    audio: None = None
    name: Annotated[str, Field(max_length=256)] | None = None
    function_call: None = None
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


class ChatRequest(StructuredOutputs, GenerationRequest):
    """The body of `POST /v1/chat/completions`."""

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=2048)]
    max_tokens: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="cap on thought and answer together"
    )
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="the same"
    )
    n: Choices = Field(default=1, description="how many answers to give")
    logprobs: bool = Field(
        default=False, description="log-probabilities of the answer's tokens, by their authors"
    )
    top_logprobs: Annotated[int, Field(ge=0, le=MOST_LIKELY)] = Field(
        default=0, description="also of so many of the likeliest tokens in the place of each"
    )
    reasoning_effort: Effort | None = Field(
        default=None, description="cap on the thought, as a share of max_tokens; none: no thought"
    )
    thinking_token_budget: Annotated[int, Field(ge=-1)] | None = Field(
        default=None, description="cap on the thought in tokens; -1: no cap, 0: no thought"
    )
    stream_options: ChatStreamOptions | None = None
    tools: Annotated[
        list[Annotated[Tool, BeforeValidator(function_tool)]], Field(max_length=MAX_TOOLS)
    ] = Field(default_factory=list, description="functions that the answer may call")
    tool_choice: ToolChoice | None = Field(
        default=None, description="auto (the default), none, required, or a function by its name"
    )
    parallel_tool_calls: bool = Field(
        default=True, description="whether one answer may make several calls"
    )
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
        if self.continue_final_message and last.tool_calls:
            raise contradiction(
                f"{place}.tool_calls",
                "an answer that goes on has no calls of tools yet: leave them out, or have their "
                "results answered by messages of the role tool",
            )
        if self.continue_final_message and len(self.messages) == 1:
            raise contradiction("messages", "expected one before the assistant's: what it answers")
        if self.add_generation_prompt == self.continue_final_message and (
            "add_generation_prompt" in self.model_fields_set
        ):
            raise contradiction(
                "add_generation_prompt", "must be the opposite of continue_final_message"
            )
        if self.top_logprobs and not self.logprobs:
            raise contradiction("top_logprobs", "only allowed where logprobs is true")
        for name, given in (("stop", self.stop), ("tools", self.tools)):
            if self.logprobs and given:
                raise contradiction("logprobs", f"only allowed without {name}")
        self._check_turns()
        if last.role != "tool" and not (last.content or "").strip():
            raise contradiction(f"{place}.content", "the question is empty")
        caps = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(caps) > 1:
            raise contradiction("max_completion_tokens", "contradicts max_tokens")
        self.tool_use  # noqa: B018 (a choice without such a tool is refused here)
        return self

    @property
    def wants_events(self) -> bool:
        """Whether a stream is to tell what happens beside the accepted text."""
        return self.stream_options is not None and self.stream_options.include_events

    def _check_turns(self) -> None:
        """Every turn says something, and what a tool gave back answers a call before it."""
        called: set[str] = set()
        for i, message in enumerate(self.messages):
            place = f"messages[{i}]"
            if message.content is None and not message.tool_calls:
                given = "content" in message.model_fields_set
                raise InvalidRequest(
                    f"{place}.content: expected a text, since there are no tool_calls",
                    param=f"{place}.content",
                    code="invalid_type" if given else "missing_required_parameter",
                )
            if message.tool_calls and message.role != "assistant":
                raise contradiction(f"{place}.tool_calls", "only an assistant calls tools")
            for k, call in enumerate(message.tool_calls or ()):
                arguments = f"{place}.tool_calls[{k}].function.arguments"
                check_arguments(call.function.arguments, arguments)
            if message.role == "tool" and message.tool_call_id not in called:
                raise contradiction(
                    f"{place}.tool_call_id", "expected the id of a call that was made before"
                )
            called.update(call.id for call in message.tool_calls or ())

    @cached_property
    def tool_use(self) -> ToolUse:
        return ToolUse(
            [tool.function for tool in self.tools],
            self.tool_choice,
            parallel=self.parallel_tool_calls,
            form=self.form,
        )

    @property
    def choices(self) -> int:
        return self.n

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
        turns, called = list(self.tool_use.messages), dict[str, str]()
        for message in self.messages:
            turns.append(_turn(message, called))
            called |= {call.id: call.function.name for call in message.tool_calls or ()}
        return tuple(turns)


def _turn(message: ChatMessage, called: Mapping[str, str]) -> Message:
    """A message as models see it; `called`: the name of the tool by the id of its call."""
    name = message.name or called.get(message.tool_call_id or "", "")
    calls = tuple(
        ToolCall(call.id, call.function.name, call.function.arguments)
        for call in message.tool_calls or ()
    )
    return Message(
        message.role,
        message.content or "",
        calls=calls,
        reasoning=message.reasoning_content or message.reasoning or "",
        call_id=message.tool_call_id or "",
        name=name if message.role == "tool" else "",
    )
