"""`POST /v1/messages`: Anthropic's Messages API; the request, its parsing, and its answer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, Tag, model_validator

from orchestrator.grammar import check
from orchestrator.http.api import MESSAGES, sse
from orchestrator.http.apis.answer_form import json_form
from orchestrator.http.apis.blocks import BlockEncoder, Kind
from orchestrator.http.apis.conversation import TextBlock, Turn, read_turns, signature
from orchestrator.http.apis.parameters import AnswerRequest, StopString, joined
from orchestrator.http.ask import Ask, AskedPolicy, Choice, Labels
from orchestrator.http.body import (
    Given,
    Json,
    by_type,
    contradiction,
    parse_request,
    read_json,
)
from orchestrator.http.rendering import baton, usage, usage_of
from orchestrator.http.settings import HttpSettings
from orchestrator.http.tools.offered import (
    MAX_TOOLS,
    FlatReference,
    FunctionTool,
    ToolName,
    ToolUse,
    check_type,
)
from orchestrator.loop.accumulator import ResponseAccumulator
from orchestrator.types import Constraint, Message


class MessagesTool(Given):
    """A tool that the client runs. Examples of its input become part of its schema; what the tool
    says about caching, loading and streaming is a hint."""

    type: Literal["custom"] | None = None
    name: ToolName
    description: str | None = None
    input_schema: dict[str, Any]
    strict: bool | None = None
    input_examples: list[dict[str, Any]] | None = None
    allowed_callers: list[Literal["direct"]] | None = None
    cache_control: Any = None
    defer_loading: bool | None = None
    eager_input_streaming: bool | None = None

    @property
    def function(self) -> FunctionTool:
        shown = {"examples": self.input_examples} if self.input_examples else {}
        return FunctionTool(
            name=self.name,
            description=self.description,
            parameters={**self.input_schema, **shown},
            strict=self.strict,
        )


class AdvisorTool(Given):
    """The tool by which a client asks for an advisor: the policy `advisor` answers, and its gate,
    not the model, asks for advice."""

    type: Literal["advisor_20260301"]
    name: Literal["advisor"]
    model: Literal["large-only"] = Field(description="who advises")
    max_uses: Annotated[int, Field(ge=0)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="cap on the tokens of one advice"
    )
    strict: bool | None = None
    allowed_callers: list[Literal["direct"]] | None = None
    cache_control: Any = None
    caching: Any = None
    defer_loading: bool | None = None

    @property
    def parameters(self) -> dict[str, int]:
        """Return the parameters of the policy that the tool sets."""
        given = {"max_uses": self.max_uses, "advice_tokens": self.max_tokens}
        return {name: value for name, value in given.items() if value is not None}


ADVISOR: Final = "advisor_20260301"
EXECUTORS: Final = ("small-only", "advisor")
"""The models that may be asked for beside an advisor."""

AnyTool = Annotated[
    Annotated[
        Annotated[MessagesTool, Tag("[custom]")] | Annotated[AdvisorTool, Tag(f"[{ADVISOR}]")],
        by_type("invalid_type", "expected a tool", default="custom"),
    ],
    BeforeValidator(lambda given: check_type(given, "tools", ("custom", ADVISOR))),
]


class MessagesToolChoice(Given):
    type: Literal["auto", "any", "tool", "none"]
    name: ToolName | None = None
    disable_parallel_tool_use: bool = False

    @model_validator(mode="after")
    def _named(self) -> MessagesToolChoice:
        if (self.type == "tool") != (self.name is not None):
            raise contradiction("tool_choice.name", "goes with the type tool, and only with it")
        return self

    @property
    def choice(self) -> Literal["none", "auto", "required"] | FlatReference:
        if self.name is not None:
            return FlatReference(type="function", name=self.name)
        return "required" if self.type == "any" else "none" if self.type == "none" else "auto"


class Thinking(Given):
    """`thinking`: if absent, there is still a thought. `display: omitted` hides the thought's
    text."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Annotated[int, Field(ge=1)] | None = None
    display: Literal["summarized", "omitted"] | None = None

    @model_validator(mode="after")
    def _budgeted(self) -> Thinking:
        if (self.type == "enabled") != (self.budget_tokens is not None):
            raise contradiction(
                "thinking.budget_tokens", "goes with the type enabled, and only with it"
            )
        return self


class JsonFormat(Given):
    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(Given):
    """`output_config`: `effort` means what `reasoning_effort` does."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: JsonFormat | None = None

    @property
    def form(self) -> Constraint | None:
        return None if self.format is None else json_form(self.format.schema_)


class MessagesMetadata(Given):
    user_id: Annotated[str, Field(max_length=512)] | None = None


class ContextEdit(Given):
    """An edit that changes nothing here: the chat template decides about earlier thoughts."""

    type: Literal["clear_thinking_20251015"]
    keep: Any = None


class ContextManagement(Given):
    edits: list[
        Annotated[
            ContextEdit,
            BeforeValidator(lambda one: check_type(one, "edits", ("clear_thinking_20251015",))),
        ]
    ] = Field(default_factory=list)


class MessagesRequest(AnswerRequest):
    """The body of `POST /v1/messages`."""

    hints = frozenset({
        "anthropic_beta", "anthropic_version", "cache_control", "diagnostics", "inference_geo",
        "service_tier", "speed", "user_profile_id", "workspace_id",
    })  # fmt: skip
    unsupported = {"mcp_servers": ([],)}  # noqa: RUF012 (a constant)

    messages: Annotated[list[Turn], Field(min_length=1, max_length=2048)] = Field(
        description="the conversation; if the assistant's turn is last, the answer continues it"
    )
    max_tokens: Annotated[int, Field(ge=1)] = Field(
        description="cap on thought and answer together"
    )
    system: Annotated[str | None, joined(TextBlock)] = None
    stop_sequences: Annotated[list[StopString], Field(max_length=16)] = Field(default_factory=list)
    thinking: Thinking = Thinking(type="adaptive")
    tools: Annotated[list[AnyTool], Field(max_length=MAX_TOOLS)] = Field(
        default_factory=list, description="tools that the answer may call"
    )
    tool_choice: MessagesToolChoice = MessagesToolChoice(type="auto")
    output_config: OutputConfig = OutputConfig()
    context_management: ContextManagement | None = None
    metadata: MessagesMetadata = MessagesMetadata()

    @model_validator(mode="after")
    def _consistent(self) -> MessagesRequest:
        if (form := self.output_config.form) is not None:
            check(form, "output_config.format.schema")
        if self.advisor is not None and self.model.partition("@")[0] not in EXECUTORS:
            expected = " or ".join(EXECUTORS)
            raise contradiction("model", f"an advisor needs {expected}, not {self.model}")
        return self

    @property
    def advisor(self) -> AdvisorTool | None:
        return next((one for one in self.tools if isinstance(one, AdvisorTool)), None)

    def asked_policy(self, thought_cap: int | None = None) -> AskedPolicy:
        """Return the policy that is asked for; the advisor tool asks for one as well."""
        asked = super().asked_policy(thought_cap)
        if self.advisor is None:
            return asked
        model = asked.model if asked.model.startswith("advisor") else "advisor"
        parameters = {**self.advisor.parameters, **asked.parameters}
        return replace(asked, model=model, parameters=parameters)

    @property
    def prefilled(self) -> bool:
        """Whether the answer continues the last turn."""
        return self.messages[-1].role == "assistant"

    def turns(self) -> tuple[Message, ...]:
        """Return the messages as models see them.

        Raises:
            InvalidRequest: as `read_turns`, or the last turn is no question or beginning.
        """
        turns = read_turns(self.messages)
        last, place = turns[-1], f"messages[{len(self.messages) - 1}].content"
        if last.calls:
            raise contradiction(place, "the results of its calls must follow, as tool_result")
        if last.role != "tool" and not last.content.strip():
            raise contradiction(place, "is empty")
        if self.prefilled and last.reasoning:
            raise contradiction(place, "an answer is continued without its thought: leave it out")
        if self.prefilled and len(turns) == 1:
            raise contradiction("messages", "expected a turn before the assistant's")
        return turns


class CountRequest(MessagesRequest):
    """The body of `POST /v1/messages/count_tokens`: the same, and needs no `max_tokens`."""

    max_tokens: Annotated[int, Field(ge=1)] = 1


def parse(
    given: bytes, settings: HttpSettings, kind: type[MessagesRequest] = MessagesRequest
) -> Ask:
    body, warnings = parse_request(given, kind, strict=settings.strict)
    turns = body.turns()
    tools = ToolUse(
        [tool.function for tool in body.tools if isinstance(tool, MessagesTool)],
        body.tool_choice.choice,
        parallel=not body.tool_choice.disable_parallel_tool_use,
        form=body.output_config.form,
        inner="input_schema",
    )
    system = (Message("system", body.system),) if body.system else ()
    limits = body.limits(
        settings,
        ("max_tokens", body.max_tokens),
        body.stop_sequences,
        tools.constraint,
        thinks=body.thinking.type != "disabled" and not body.prefilled,
        effort=body.output_config.effort,
    )
    return Ask(
        MESSAGES,
        ((*tools.messages, *system, *turns),),
        body.asked_policy(thought_cap=body.thinking.budget_tokens),
        body.sampling,
        limits,
        partial(MessagesEncoder, body),
        tools=tools,
        seed=body.seed,
        stream=body.stream,
        labels=Labels(body.metadata.user_id, {}, body.priority, warnings),
    )


_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class MessagesEncoder(BlockEncoder):
    """Encodes a message, whole or as a stream of its typed events."""

    def __init__(
        self, body: MessagesRequest, choice: Choice, response: ResponseAccumulator
    ) -> None:
        super().__init__(choice, response, begun=body.prefilled)
        self._body, self._hides = body, body.thinking.display == "omitted"

    def whole(self) -> Json:
        self.read_whole()
        message = {**self._message(), "content": self.blocks, **self._stop(), "usage": self._usage}
        return {**message, "baton": baton(self.choice, self.response)}

    def begin(self) -> bytes:
        message = {**self._message(), "stop_reason": None, "stop_sequence": None}
        return _event("message_start", message={**message, "usage": self._usage})

    def opened(self, kind: Kind) -> Iterator[bytes]:
        block = self._block(kind, "")
        if kind == "thought":
            block["signature"] = ""  # a delta follows
        yield _event("content_block_start", index=len(self.blocks), content_block=block)

    def added(self, kind: Kind, text: str) -> Iterator[bytes]:
        if kind == "call":
            yield self._delta("input_json_delta", partial_json=text)
        elif kind == "answer":
            yield self._delta("text_delta", text=text)
        elif not self._hides:
            yield self._delta("thinking_delta", thinking=text)

    def closed(self, kind: Kind, *, last: bool) -> Iterator[bytes]:
        block = self._block(kind, self.text)
        if kind == "thought":
            yield self._delta("signature_delta", signature=block["signature"])
        yield _event("content_block_stop", index=len(self.blocks))
        self.blocks.append(block)

    def finish(self) -> bytes:
        data = self.read_end()
        more = {"usage": self._usage, "baton": baton(self.choice, self.response)}
        return data + _event("message_delta", delta=self._stop(), **more) + _event("message_stop")

    def _block(self, kind: Kind, text: str) -> Json:
        if kind == "thought":
            shown = "" if self._hides else text
            return {"type": "thinking", "thinking": shown, "signature": signature(shown)}
        if kind == "answer":
            return {"type": "text", "text": text}
        assert self.call is not None
        head = {"type": "tool_use", "id": self.call.id, "name": self.call.name}
        given = read_json(text)  # of a call that was cut off the trace has the text
        # It may escape half a surrogate pair, which UTF-8 cannot encode.
        whole = json.loads(json.dumps(given, ensure_ascii=False).encode(errors="replace"))
        return {**head, "input": whole if isinstance(whole, dict) else {}}

    def _delta(self, kind: str, **more: str) -> bytes:
        delta = {"type": kind, **more}
        return _event("content_block_delta", index=len(self.blocks), delta=delta)

    def _message(self) -> Json:
        return {
            "id": self.choice.answer_id,
            "type": "message",
            "role": "assistant",
            "model": self._body.model,
            "content": [],
        }

    def _stop(self) -> Json:
        """Return why the message ended; no worker reports which of several strings it found."""
        reason, found = _STOP_REASONS[self.response.finish_reason or "stop"], None
        if reason == "end_turn" and self.response.stopped_by is not None:
            reason, found = "stop_sequence", self.response.stopped_by or None
        return {"stop_reason": reason, "stop_sequence": found}

    @property
    def _usage(self) -> Json:
        """The usage so far, or altogether; the prompt is the uncached and the cached input."""
        counted = usage(self.response) or usage_of(self.response, 0, 0)
        cached = counted["prompt_tokens_details"]["cached_tokens"]
        thought = counted["completion_tokens_details"]["reasoning_tokens"]
        return {
            "input_tokens": counted["prompt_tokens"] - cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
            "output_tokens": counted["completion_tokens"],
            "output_tokens_details": {"thinking_tokens": thought},
            "service_tier": "standard",
        }


def _event(kind: str, **more: Any) -> bytes:
    return sse({"type": kind, **more}, kind)
