"""`POST /v1/responses`: OpenAI's newer form of a conversation; the service stores none of it.

A client sends the whole conversation as `input`, with the reasoning items of earlier answers.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Annotated, Any, Final, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    Tag,
    model_validator,
)

from orchestrator.efforts import Effort
from orchestrator.grammar import check
from orchestrator.http.api import RESPONSES, sse
from orchestrator.http.apis.answer_form import FormatType, format_form
from orchestrator.http.apis.blocks import BlockEncoder, Kind
from orchestrator.http.apis.parameters import (
    HINTS,
    ONLY_TEXT,
    UNSUPPORTED,
    TextRequest,
    called_tool,
    joined,
)
from orchestrator.http.ask import Ask, Choice, Labels
from orchestrator.http.body import (
    Given,
    Json,
    by_type,
    contradiction,
    parse_request,
    read_json,
    without_nulls,
)
from orchestrator.http.errors import HttpError
from orchestrator.http.rendering import baton, usage
from orchestrator.http.settings import HttpSettings
from orchestrator.http.tools.answer_reader import Phase
from orchestrator.http.tools.offered import (
    MAX_TOOLS,
    Arguments,
    FlatToolChoice,
    FunctionTool,
    ToolName,
    ToolUse,
    function_tool,
)
from orchestrator.loop.accumulator import ResponseAccumulator
from orchestrator.types import Constraint, Message, ToolCall

LOGPROBS: Final = "message.output_text.logprobs"


class ItemPart(BaseModel):
    """A part of an item's text; its other fields change nothing."""

    model_config = ConfigDict(strict=True, frozen=True)
    type: Annotated[
        Literal["input_text", "output_text", "text", "summary_text", "reasoning_text"], ONLY_TEXT
    ]
    text: str


ItemText = Annotated[str, joined(ItemPart)]


class Item(Given):
    """An item of an `input`."""

    id: Any = None
    status: Any = None


class MessageItem(Item):
    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: ItemText
    phase: Any = None


class CallItem(Item):
    """A call of a function by an earlier answer."""

    type: Literal["function_call"]
    call_id: Annotated[str, Field(min_length=1)]
    name: ToolName
    arguments: Arguments
    parsed_arguments: Any = None
    namespace: Any = None


class OutputItem(Item):
    """The result of an earlier call."""

    type: Literal["function_call_output"]
    call_id: Annotated[str, Field(min_length=1)]
    output: ItemText


class ReasoningItem(Item):
    """The thought of an earlier answer: its summary, or else its content."""

    type: Literal["reasoning"]
    summary: list[ItemPart] | None = None
    content: list[ItemPart] | None = None
    encrypted_content: Any = None


AnyItem = Annotated[
    Annotated[
        Annotated[MessageItem, Tag("[message]")]
        | Annotated[CallItem, Tag("[function_call]")]
        | Annotated[OutputItem, Tag("[function_call_output]")]
        | Annotated[ReasoningItem, Tag("[reasoning]")],
        by_type(
            "unsupported_parameter",
            "expected a message, or an item of the type reasoning, function_call or "
            "function_call_output",
            default="message",
        ),
    ],
    BeforeValidator(without_nulls),
]


def read_turns(items: Sequence[AnyItem]) -> tuple[Message, ...]:
    """Return the messages of an input's items.

    Reasoning belongs to the answer or the calls after it; the chat template decides whether a model
    sees it again. Neighbouring answers and calls are one message, and the calls' results follow it.

    Raises:
        InvalidRequest: a result comes without its call, or there is no question at the end.
    """
    turns: list[Message] = []
    called: dict[str, str] = {}
    reasoning = ""
    for i, item in enumerate(items):
        match item:
            case ReasoningItem():
                parts = item.summary or item.content or ()
                reasoning = _lines(reasoning, *(part.text for part in parts))
                continue
            case CallItem():
                called[item.call_id] = item.name
                call = ToolCall(item.call_id, item.name, item.arguments)
                turn = Message("assistant", "", calls=(call,), reasoning=reasoning)
            case OutputItem():
                name = called_tool(called, item.call_id, f"input[{i}].call_id")
                turn = Message("tool", item.output, call_id=item.call_id, name=name)
            case MessageItem(role="assistant"):
                turn = Message("assistant", item.content, reasoning=reasoning)
            case MessageItem():
                turn = Message("user" if item.role == "user" else "system", item.content)
        reasoning = ""
        last = turns[-1] if turns else None
        if last and last.role == turn.role == "assistant" and (last.calls or turn.calls):
            turns[-1] = replace(
                last,
                content=_lines(last.content, turn.content),
                calls=(*last.calls, *turn.calls),
                reasoning=_lines(last.reasoning, turn.reasoning),
            )
        else:
            turns.append(turn)
    last = turns[-1] if turns else Message("user", "")
    if last.role == "assistant":
        raise contradiction("input", "the last message must be the user's")
    if last.role != "tool" and not last.content.strip():
        raise contradiction("input", "the question is empty")
    return tuple(turns)


def _as_items(given: object) -> object:
    return [{"role": "user", "content": given}] if isinstance(given, str) else given


def _lines(*texts: str) -> str:
    return "\n".join(filter(None, texts))


class Reasoning(Given):
    """`reasoning`: `effort` limits the thought. The summary is always the accepted thought."""

    effort: Effort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None


class TextFormat(Given):
    """`text.format`: a chat completion's `response_format`, with the schema's fields in it."""

    type: FormatType = "text"
    name: Annotated[str, Field(max_length=64)] | None = None
    description: str | None = None
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    strict: bool | None = None

    @property
    def form(self) -> Constraint | None:
        return format_form(self.type, self.schema_, "text.format.schema")


class TextSettings(Given):
    """`text`: the form of the answer."""

    format: TextFormat = TextFormat()
    verbosity: Literal["low", "medium", "high"] | None = None


class ResponsesTool(FunctionTool):
    """A function that may be called; its fields are the tool's own, not under `function`."""

    type: Literal["function"]


class ResponsesRequest(TextRequest):
    """The body of `POST /v1/responses`: a chat completion's, with other names."""

    hints = (HINTS - {"verbosity"}) | {"max_tool_calls"}
    unsupported = {  # noqa: RUF012 (a constant)
        **UNSUPPORTED,
        "previous_response_id": (),
        "conversation": (),
        "background": (False,),
        "truncation": ("disabled",),
        "n": (1,),
        "logprobs": (False,),
        "top_logprobs": (0,),
        "context_management": ([],),
    }

    input: Annotated[
        list[AnyItem],
        Field(min_length=1, max_length=2048),
        BeforeValidator(_as_items, json_schema_input_type=str | list[AnyItem]),
    ] = Field(description="the question, or the conversation so far as items")
    instructions: str | None = Field(default=None, description="a system message before the input")
    max_output_tokens: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="cap on thought and answer together"
    )
    include: list[str] | None = Field(
        default=None, description="changes nothing; log-probabilities are refused"
    )
    reasoning: Reasoning = Reasoning()
    text: TextSettings = TextSettings()
    tools: Annotated[
        list[Annotated[ResponsesTool, BeforeValidator(function_tool)]], Field(max_length=MAX_TOOLS)
    ] = Field(default_factory=list, description="functions that the answer may call")
    tool_choice: FlatToolChoice | None = Field(
        default=None, description="auto (the default), none, required, or a function by its name"
    )
    parallel_tool_calls: bool = Field(
        default=True, description="whether one answer may make several calls"
    )

    @model_validator(mode="after")
    def _consistent(self) -> ResponsesRequest:
        if LOGPROBS in (self.include or ()):
            raise contradiction(
                "include", f"{LOGPROBS} is not supported here; chat completions have logprobs"
            )
        if (form := self.text.format.form) is not None:
            check(form, "text.format.schema")
        return self


def parse(given: bytes, settings: HttpSettings) -> Ask:
    body, warnings = parse_request(given, ResponsesRequest, strict=settings.strict)
    turns = read_turns(body.input)
    tools = ToolUse(
        body.tools,
        body.tool_choice,
        parallel=body.parallel_tool_calls,
        form=body.text.format.form,
        inner="parameters",
    )
    system = (Message("system", body.instructions),) if body.instructions else ()
    limits = body.limits(
        settings,
        ("max_output_tokens", body.max_output_tokens),
        body.stop,
        tools.constraint,
        effort=body.reasoning.effort,
    )
    return Ask(
        RESPONSES,
        ((*tools.messages, *system, *turns),),
        body.asked_policy(),
        body.sampling,
        limits,
        partial(ResponsesEncoder, body),
        tools=tools,
        seed=body.seed,
        stream=body.stream,
        labels=Labels(body.user, body.metadata, body.priority, warnings),
    )


class ResponsesEncoder(BlockEncoder):
    """Encodes a response, whole or as a stream of numbered events.

    The accepted thought is the summary of a reasoning item; the answer is a message, and each call
    of a tool an item. A stream announces each item, sends its deltas and completes it. A whole
    answer has the same items.
    """

    def __init__(
        self, body: ResponsesRequest, choice: Choice, response: ResponseAccumulator
    ) -> None:
        super().__init__(choice, response)
        self._body, self._numbers = body, count()

    def whole(self) -> Json:
        self.read_whole()
        return self._finished()

    def begin(self) -> bytes:
        begun = self._response("in_progress", [])
        return self._event("response.created", response=begun) + self._event(
            "response.in_progress", response=begun
        )

    def finish(self) -> bytes:
        data = self.read_end()
        finished = self._finished()
        return data + self._event(f"response.{finished['status']}", response=finished)

    def failure(self, error: HttpError) -> bytes:
        said = error.body["error"]
        shown = {name: said[name] for name in ("code", "message", "param")}
        return self._event("error", **shown, error=said)

    def opened(self, kind: Kind) -> Iterator[bytes]:
        yield self._event(
            "response.output_item.added",
            output_index=len(self.blocks),
            item=self._item(kind, None, "in_progress"),
        )
        if kind != "call":
            yield self._part_event(f"response.{_PART[kind]}.added", kind, part=_part(kind, ""))

    def added(self, kind: Kind, text: str) -> Iterator[bytes]:
        if kind == "call":
            yield self._item_event("response.function_call_arguments.delta", delta=text)
        elif kind == "thought":
            yield self._part_event("response.reasoning_summary_text.delta", kind, delta=text)
        else:
            yield self._part_event("response.output_text.delta", kind, delta=text, logprobs=[])

    def closed(self, kind: Kind, *, last: bool) -> Iterator[bytes]:
        text = self.text
        if kind == "thought":
            yield self._part_event("response.reasoning_summary_text.done", kind, text=text)
        elif kind == "answer":
            yield self._part_event("response.output_text.done", kind, text=text, logprobs=[])
        else:
            assert self.call is not None
            yield self._item_event(
                "response.function_call_arguments.done", name=self.call.name, arguments=text
            )
        if kind != "call":
            yield self._part_event(f"response.{_PART[kind]}.done", kind, part=_part(kind, text))
        cut = last and self._is_cut(kind)
        item = self._item(kind, text, "incomplete" if cut else "completed")
        yield self._event("response.output_item.done", output_index=len(self.blocks), item=item)
        self.blocks.append(item)

    def _part_event(self, kind: str, phase: Phase, **more: Any) -> bytes:
        index = "summary_index" if phase == "thought" else "content_index"
        return self._item_event(kind, **{index: 0}, **more)

    def _item_event(self, kind: str, **more: Any) -> bytes:
        assert self.open is not None
        return self._event(
            kind, item_id=self._item_id(self.open), output_index=len(self.blocks), **more
        )

    def _event(self, kind: str, **more: Any) -> bytes:
        return sse({"type": kind, "sequence_number": next(self._numbers), **more}, kind)

    def _finished(self) -> Json:
        status = "incomplete" if self.response.finish_reason == "length" else "completed"
        return {
            **self._response(status, self.blocks),
            "completed_at": int(time.time()) if status == "completed" else None,
            "usage": self._usage(),
            "baton": baton(self.choice, self.response),
        }

    def _is_cut(self, kind: Kind) -> bool:
        """Return whether a cap cut the last item. It did not cut a thought before an answer, an
        answer that ended by itself (if it cut the thought), and a call with all its arguments."""
        if self.response.completed is None or self.response.finish_reason != "length":
            return False
        transcript = self.response.completed.transcript
        if kind == "thought":
            return transcript.forced and transcript.answer.is_blank
        if kind == "call" and read_json(self.text) is not None:
            return False
        return not transcript.answer or transcript.answer[-1].finish not in ("eos", "stop")

    def _item(self, kind: Kind, text: str | None, status: str) -> Json:
        head = {"id": self._item_id(kind), "status": status}
        if kind == "call":
            assert self.call is not None
            named = {"call_id": self.call.id, "name": self.call.name, "arguments": text or ""}
            return {**head, "type": "function_call", **named}
        parts = [] if text is None else [_part(kind, text)]
        if kind == "thought":
            return {**head, "type": "reasoning", "summary": parts}
        return {**head, "type": "message", "role": "assistant", "content": parts}

    def _item_id(self, kind: Kind) -> str:
        if kind == "call":
            assert self.call is not None
            return "fc_" + self.call.id.removeprefix("call_")
        name = f"{'rs' if kind == 'thought' else 'msg'}_{self.choice.trace_id}"
        more = sum(item["id"].startswith(name) for item in self.blocks)
        return f"{name}_{more}" if more else name

    def _response(self, status: str, output: list[Json]) -> Json:
        body, cut = self._body, status == "incomplete"
        choice = body.tool_choice or ("auto" if body.tools else "none")
        return {
            "id": self.choice.answer_id,
            "object": "response",
            "created_at": self.choice.incoming.created,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata,
            "model": body.model,
            "output": output,
            "parallel_tool_calls": body.parallel_tool_calls,
            "previous_response_id": None,
            "reasoning": {"effort": body.reasoning.effort, "summary": body.reasoning.summary},
            "store": False,
            "temperature": self.choice.sampling.temperature,
            "text": body.text.model_dump(by_alias=True, exclude_none=True),
            "tool_choice": choice.model_dump() if isinstance(choice, BaseModel) else choice,
            "tools": [tool.model_dump() for tool in body.tools],
            "top_p": self.choice.sampling.top_p,
            "truncation": "disabled",
            "usage": None,
            "user": body.user,
        }

    def _usage(self) -> Json:
        counted = usage(self.response) or {}
        return {
            "input_tokens": counted["prompt_tokens"],
            "input_tokens_details": {**counted["prompt_tokens_details"], "cache_write_tokens": 0},
            "output_tokens": counted["completion_tokens"],
            "output_tokens_details": counted["completion_tokens_details"],
            "total_tokens": counted["total_tokens"],
        }


_PART: dict[Phase, str] = {"thought": "reasoning_summary_part", "answer": "content_part"}


def _part(phase: Phase, text: str) -> Json:
    if phase == "thought":
        return {"type": "summary_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
