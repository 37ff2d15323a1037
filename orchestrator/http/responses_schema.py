"""The body of `POST /v1/responses`: OpenAI's newer form of a conversation, kept nowhere.

Nothing is remembered between requests: a client sends the conversation so far as `input`, replies
with their reasoning items as they came (`responses_input`).
"""

from __future__ import annotations

import json
from functools import cached_property
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from orchestrator.grammar import check
from orchestrator.http.responses_input import read_input
from orchestrator.http.schemas import (
    EFFORT,
    HINTS,
    RESPONSE,
    UNSUPPORTED,
    Effort,
    GenerationRequest,
    contradiction,
)
from orchestrator.http.structured_outputs import ANY_OBJECT, StructuredOutputs
from orchestrator.http.tools import (
    MAX_TOOLS,
    AllowedChoice,
    FunctionTool,
    ToolChoice,
    ToolReference,
    ToolUse,
    function_tool,
)
from orchestrator.types import Constraint, Message

LOGPROBS: Final = "message.output_text.logprobs"


class Reasoning(BaseModel):
    """`reasoning`: how much thought. The summary is always the accepted thought itself."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)
    effort: Effort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None


class TextFormat(BaseModel):
    """`text.format`: as `response_format` of a chat completion, but flat."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)
    type: Literal["text", "json_object", "json_schema"] = "text"
    name: Annotated[str, Field(max_length=64)] | None = None
    description: str | None = None
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    strict: bool | None = None

    @property
    def constraint(self) -> Constraint | None:
        if self.type == "json_schema":
            return Constraint("json_schema", json.dumps(self.schema_))
        return Constraint("json_schema", ANY_OBJECT) if self.type == "json_object" else None


class TextSettings(BaseModel):
    """`text`: the form of the answer."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)
    format: TextFormat = TextFormat()
    verbosity: Literal["low", "medium", "high"] | None = None


class ResponsesTool(FunctionTool):
    """A function that may be called, as responses have it: flat."""

    type: Literal["function"]


def _choice(given: object) -> object:
    """The choice as a chat completion has it: the function's name a level below."""
    if not isinstance(given, dict):
        return given
    if given.get("type") == "function" and "name" in given:
        rest = {key: value for key, value in given.items() if key != "name"}
        return {**rest, "function": {"name": given["name"]}}
    if given.get("type") == "allowed_tools" and isinstance(tools := given.get("tools"), list):
        allowed = {"mode": given.get("mode"), "tools": list(map(_choice, tools))}
        return {"type": "allowed_tools", "allowed_tools": allowed}
    return given


class ResponsesRequest(GenerationRequest):
    """A response; what it says is as in a chat completion, but for the names."""

    hints: ClassVar[frozenset[str]] = (HINTS - {"verbosity"}) | {"max_tool_calls"}
    unsupported: ClassVar[dict[str, tuple[object, ...]]] = {
        **UNSUPPORTED,
        **dict.fromkeys(StructuredOutputs.model_fields, ()),
        "thinking_token_budget": (),
        "previous_response_id": (),
        "conversation": (),
        "prompt": (),
        "background": (False,),
        "truncation": ("disabled",),
        "n": (1,),
        "logprobs": (False,),
        "top_logprobs": (0,),
        "context_management": ([],),
    }

    question_name: ClassVar[str] = "input"
    id_prefix: ClassVar[str] = RESPONSE

    input: Annotated[
        tuple[Message, ...],
        Field(min_length=1, max_length=2048),
        BeforeValidator(read_input, json_schema_input_type=str | list[dict[str, Any]]),
    ] = Field(description="the question, or the conversation so far as items")
    instructions: str | None = Field(default=None, description="a system message before the input")
    max_output_tokens: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="cap on thought and answer together"
    )
    include: list[str] | None = Field(
        default=None,
        description="of what is not there nothing is added; log-probabilities are refused",
    )
    reasoning: Reasoning = Reasoning()
    text: TextSettings = TextSettings()
    tools: Annotated[
        list[Annotated[ResponsesTool, BeforeValidator(function_tool)]], Field(max_length=MAX_TOOLS)
    ] = Field(default_factory=list, description="functions that the answer may call")
    tool_choice: Annotated[
        ToolChoice | None,
        BeforeValidator(_choice, json_schema_input_type=str | dict[str, Any] | None),
    ] = Field(
        default=None, description="auto (the default), none, required, or a function by its name"
    )
    parallel_tool_calls: bool = Field(
        default=True, description="whether one answer may make several calls"
    )

    @model_validator(mode="after")
    def _ends_with_a_question(self) -> ResponsesRequest:
        last = self.input[-1]
        if last.role == "assistant":
            raise contradiction("input", "the last message must be the user's")
        if last.role != "tool" and not last.content.strip():
            raise contradiction("input", "the question is empty")
        if LOGPROBS in (self.include or ()):
            raise contradiction(
                "include", f"{LOGPROBS} is not supported here; chat completions have logprobs"
            )
        form = self.text.format
        if (form.type == "json_schema") != (form.schema_ is not None):
            raise contradiction(
                "text.format.schema", "must be given where the type is json_schema, and only there"
            )
        if form.constraint is not None:
            check(form.constraint, "text.format.schema")
        self.tool_use  # noqa: B018 (a choice without such a tool is refused here)
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

    @cached_property
    def tool_use(self) -> ToolUse:
        return ToolUse(
            self.tools,
            self.tool_choice,
            parallel=self.parallel_tool_calls,
            form=self.text.format.constraint,
            inner="",
        )

    @property
    def tool_choice_as_given(self) -> str | dict[str, Any]:
        """The choice in the form of responses."""
        if isinstance(self.tool_choice, ToolReference):
            return {"type": "function", "name": self.tool_choice.function.name}
        if isinstance(self.tool_choice, AllowedChoice):
            allowed = self.tool_choice.allowed_tools
            tools = [{"type": "function", "name": tool.function.name} for tool in allowed.tools]
            return {"type": "allowed_tools", "mode": allowed.mode, "tools": tools}
        return self.tool_choice or ("auto" if self.tools else "none")

    @property
    def conversation(self) -> tuple[Message, ...]:
        system = (Message("system", self.instructions),) if self.instructions else ()
        return (*self.tool_use.messages, *system, *self.input)
