"""`POST /v1/chat/completions`: the request, its parsing, and its answer, whole or streamed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from orchestrator.efforts import Effort
from orchestrator.errors import ContextLengthExceeded, InvalidRequest
from orchestrator.http.api import CHAT, sse
from orchestrator.http.apis.answer_form import AnswerForm
from orchestrator.http.apis.chunks import ChunkEncoder
from orchestrator.http.apis.parameters import (
    MOST_LIKELY,
    ONLY_TEXT,
    Choices,
    StreamOptions,
    TextRequest,
    allowed,
    called_tool,
    joined,
)
from orchestrator.http.apis.scores import Scorer, TokenScore, shown_tokens
from orchestrator.http.ask import Ask, Choice, Labels
from orchestrator.http.body import Given, Json, contradiction, parse_request
from orchestrator.http.records import call_json, step_json
from orchestrator.http.rendering import planned
from orchestrator.http.settings import REASONING_FIELDS, HttpSettings
from orchestrator.http.tools.answer_reader import AnswerReader, Phase
from orchestrator.http.tools.call_reader import CallPiece, Piece
from orchestrator.http.tools.offered import (
    MAX_TOOLS,
    MessageToolCall,
    Tool,
    ToolChoice,
    ToolUse,
    function_tool,
)
from orchestrator.loop.accumulator import ResponseAccumulator
from orchestrator.loop.actions import WorkerName
from orchestrator.loop.events import Event, StepCompleted, TextDelta
from orchestrator.types import Message, ToolCall
from orchestrator.worker import Worker


class TextPart(Given):
    """A part of a message's content; the fields for caching are hints."""

    type: Annotated[Literal["text"], ONLY_TEXT]
    text: str
    prompt_cache_breakpoint: Any = None
    cache_control: Any = None


class ChatMessage(Given):
    """One turn. The fields after `content` let a client send back an answer exactly as it came.

    The chat template decides whether a model sees earlier reasoning again. A `name` is shown to
    models only for a tool. `reasoning_details`, `provider_specific_fields` and `parsed` change
    nothing. The rest must be empty.
    """

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[str | None, joined(TextPart)] = None
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


class TemplateSettings(Given):
    """`chat_template_kwargs`: the variables by which templates switch the thought, or know how hard
    to think. An effort means the same under each name, and reaches each template under its own."""

    enable_thinking: bool | None = None
    thinking: bool | None = None
    reasoning_effort: Effort | None = None
    thinking_effort: Effort | None = None
    reasoning_strength: Effort | None = None

    @property
    def efforts(self) -> list[Effort]:
        given = (self.reasoning_effort, self.thinking_effort, self.reasoning_strength)
        return [effort for effort in given if effort is not None]


class ChatRequest(AnswerForm, TextRequest):
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
        default=0, description="also of this many of the most likely tokens at each place"
    )
    reasoning_effort: Effort | None = Field(
        default=None,
        description="a level of the chat template, or a cap on the thought as a share of "
        "max_tokens; none: no thought",
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
        default=False, description="the answer continues the last message, the assistant's"
    )
    add_generation_prompt: bool = Field(
        default=True, description="the opposite of continue_final_message, if it is given"
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
                "an answer to be continued has no calls of tools yet: leave them out, or have "
                "their results answered by messages of the role tool",
            )
        if self.continue_final_message and len(self.messages) == 1:
            raise contradiction("messages", "expected one before the assistant's: what it answers")
        if self.add_generation_prompt == self.continue_final_message and (
            "add_generation_prompt" in self.model_fields_set
        ):
            raise contradiction(
                "add_generation_prompt", "must be the opposite of continue_final_message"
            )
        if len({*self.efforts}) > 1:
            raise contradiction("chat_template_kwargs", "contradicts reasoning_effort")
        if self.top_logprobs and not self.logprobs:
            raise contradiction("top_logprobs", "only allowed if logprobs is true")
        for name, given in (("stop", self.stop), ("tools", self.tools)):
            if self.logprobs and given:
                raise contradiction("logprobs", f"only allowed without {name}")
        caps = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(caps) > 1:
            raise contradiction("max_completion_tokens", "contradicts max_tokens")
        return self

    def turns(self) -> tuple[Message, ...]:
        """Return the messages as models see them.

        Raises:
            InvalidRequest: a turn or the question has no content, or a tool's result answers no
                earlier call.
        """
        turns, called = list[Message](), dict[str, str]()
        for i, one in enumerate(self.messages):
            place = f"messages[{i}]"
            if one.content is None and not one.tool_calls:
                given = "content" in one.model_fields_set
                raise InvalidRequest(
                    f"{place}.content: expected a text, since there are no tool_calls",
                    param=f"{place}.content",
                    code="invalid_type" if given else "missing_required_parameter",
                )
            if one.tool_calls and one.role != "assistant":
                raise contradiction(f"{place}.tool_calls", "only an assistant calls tools")
            name, call_id = "", one.tool_call_id or ""
            if one.role == "tool":
                its_tool = called_tool(called, call_id, f"{place}.tool_call_id")
                name = one.name or its_tool
            calls = tuple(
                ToolCall(call.id, call.function.name, call.function.arguments)
                for call in one.tool_calls or ()
            )
            called |= {call.id: call.name for call in calls}
            role = "system" if one.role == "developer" else one.role
            thought = one.reasoning_content or one.reasoning or ""
            turns.append(Message(role, one.content or "", None, calls, thought, call_id, name))
        if turns[-1].role != "tool" and not turns[-1].content.strip():
            raise contradiction(f"{place}.content", "the question is empty")
        return tuple(turns)

    @property
    def thinks(self) -> bool:
        template = self.chat_template_kwargs
        switched_off = False in (template.enable_thinking, template.thinking)
        off = switched_off or self.thinking_token_budget == 0
        return not (off or self.continue_final_message)

    @property
    def efforts(self) -> list[Effort]:
        own = [] if self.reasoning_effort is None else [self.reasoning_effort]
        return own + self.chat_template_kwargs.efforts


def parse(given: bytes, settings: HttpSettings) -> Ask:
    body, warnings = parse_request(given, ChatRequest, strict=settings.strict)
    turns = body.turns()
    tools = ToolUse(
        [tool.function for tool in body.tools],
        body.tool_choice,
        parallel=body.parallel_tool_calls,
        form=body.form,
    )
    cap = "max_completion_tokens" if body.max_tokens is None else "max_tokens"
    budget = body.thinking_token_budget or 0  # -1 is no cap, and 0 no thought
    limits = body.limits(
        settings,
        (cap, getattr(body, cap)),
        body.stop,
        tools.constraint,
        thinks=body.thinks,
        effort=next(iter(body.efforts), None),
    )
    return Ask(
        CHAT,
        ((*tools.messages, *turns),),
        body.asked_policy(thought_cap=budget if budget > 0 else None),
        body.sampling,
        limits,
        partial(ChatEncoder, REASONING_FIELDS[settings.reasoning_field], body),
        choices=allowed("n", body.n, settings),
        tools=tools,
        seed=body.seed,
        stream=body.stream,
        labels=Labels(body.user, body.metadata, body.priority, warnings),
    )


class ChatEncoder(ChunkEncoder):
    """Encodes a chat completion; `thought_in` names the fields that hold the thought."""

    kind, chunk_kind = "chat.completion", "chat.completion.chunk"

    def __init__(
        self,
        thought_in: Sequence[str],
        body: ChatRequest,
        choice: Choice,
        response: ResponseAccumulator,
    ) -> None:
        super().__init__(body, choice, response)
        self._body, self._thought_in = body, thought_in
        self._answer = AnswerReader(choice, response, begun=body.continue_final_message)
        options = body.stream_options
        self._events = StreamEvents(response) if options and options.include_events else None
        self._logprobs: Json | None = None  # if they are asked for

    async def before(self, workers: Mapping[WorkerName, Worker]) -> None:
        if self._body.logprobs:
            await Scorer(self.choice, self.response, workers, self._body.top_logprobs).check()

    async def after(self, workers: Mapping[WorkerName, Worker]) -> None:
        if self._body.logprobs:
            with suppress(ContextLengthExceeded):  # then the answer is sent without scores
                scorer = Scorer(self.choice, self.response, workers, self._body.top_logprobs)
                begun = self._body.continue_final_message
                self._logprobs = _logprobs(shown_tokens(await scorer.answer(), begun=begun))

    def whole(self) -> Json:
        text = "".join(one for one in self._answer.whole() if isinstance(one, str))
        calls = self._answer.calls
        message: Json = {
            "role": "assistant",
            "content": text or None if calls else text,
            **dict.fromkeys(self._thought_in, self.response.thought),
            "refusal": None,
        }
        if calls:
            message["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in calls
            ]
        return self.completion(
            {
                "index": self.choice.index,
                "message": message,
                "logprobs": self._logprobs,
                "finish_reason": self.response.finish_reason,
            }
        )

    def begin(self) -> bytes:
        first = self.chunk(self._choice({"role": "assistant", "content": ""}))
        return sse(first if self._events is None else {**first, "baton": _beginning(self.choice)})

    def more(self, events: Sequence[Event]) -> bytes:
        deltas = (self._delta(*one) for one in self._answer.read(events))
        chunks = [self.chunk(self._choice(delta)) for delta in deltas]
        if chunks and self._body.wants_running_usage:
            chunks[-1]["usage"] = self.running_usage
        if self._events is not None and (news := self._events.more(events)) is not None:
            shown = {"index": self.choice.index, **news}
            chunks.append({**self.chunk({}), "choices": [], "baton": shown})
        return b"".join(map(sse, chunks))

    def finish(self) -> bytes:
        rest = [self._choice(self._delta("answer", piece)) for piece in self._answer.end()]
        if self._logprobs is not None:
            rest.append(self._choice({}, logprobs=self._logprobs))
        data = b"".join(sse(self.chunk(one)) for one in rest)
        return data + self.last_chunk(self._choice({}, self.response.finish_reason))

    def _delta(self, phase: Phase, piece: Piece) -> Json:
        if isinstance(piece, CallPiece):
            return {"tool_calls": [_call_delta(piece)]}
        return dict.fromkeys(self._thought_in if phase == "thought" else ["content"], piece)

    def _choice(self, delta: Json, finish: str | None = None, logprobs: Json | None = None) -> Json:
        return {
            "index": self.choice.index,
            "delta": delta,
            "logprobs": logprobs,
            "finish_reason": finish,
        }


def _call_delta(piece: CallPiece) -> Json:
    if piece.name is None:
        return {"index": piece.index, "function": {"arguments": piece.arguments}}
    function = {"name": piece.name, "arguments": piece.arguments}
    return {"index": piece.index, "id": piece.id, "type": "function", "function": function}


def _logprobs(tokens: Sequence[tuple[TokenScore, Sequence[TokenScore]]]) -> Json:
    """Return OpenAI's list: each token, and the most likely ones in its place."""
    rows = [{**_row(token), "top_logprobs": list(map(_row, likely))} for token, likely in tokens]
    return {"content": rows, "refusal": None}


def _row(token: TokenScore) -> Json:
    # A token without text has no bytes: a character across tokens belongs to the last of them.
    known = list(token.text.encode()) if token.text else None
    return {"token": token.name, "logprob": token.logprob, "bytes": known}


def _beginning(choice: Choice) -> Json:
    plan = choice.plan
    return {
        "trace_id": choice.trace_id,
        "index": choice.index,
        **planned(plan),
        "parameters": plan.policy.model_dump(mode="json"),
    }


class StreamEvents:
    """A running request's events, for a stream with `include_events`: each step with its author,
    score and fate, each call of a worker, and the calls that are running."""

    def __init__(self, response: ResponseAccumulator) -> None:
        self._response = response
        self._calls = self._steps = 0  # shown so far

    def more(self, events: Sequence[Event]) -> Json | None:
        """Return these events as JSON; calls come first, since steps name them by index."""
        calls = self._response.call_spans
        shown: list[Json] = [{"type": "call", **call_json(c)} for c in calls[self._calls :]]
        self._calls = len(calls)
        for event in events:
            if isinstance(event, TextDelta):
                shown.append({"type": "text", **asdict(event)})
            elif isinstance(event, StepCompleted):
                shown.append({"type": "step", **step_json(self._response, self._steps)})
                self._steps += 1
        if not shown:
            return None
        running = [
            {"worker": worker, "kind": kind, "since_ms": round(since, 1)}
            for worker, kind, since in self._response.running
        ]
        return {
            "ms": round(self._response.elapsed_s * 1000, 1),
            "events": shown,
            "running": running,
        }
