"""A request's order, what became of it so far, and how both are told in JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import groupby
from time import perf_counter
from typing import Any, Final

from orchestrator.http.service import Choice
from orchestrator.loop.events import (
    ActionCompleted,
    Event,
    Metrics,
    RequestCompleted,
    StepCompleted,
    TextDelta,
)
from orchestrator.telemetry.metrics import Tally
from orchestrator.types import Generation, Limits, Message, Sampling, Step

COMPLETION: Final = "chatcmpl-"
"""Before a trace id it is the id of the answer, as OpenAI's clients show it."""

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Order:
    """A validated request in Baton's own words; `created` in seconds since 1970."""

    trace_id: str
    request_id: str
    created: int
    model: str
    choice: Choice
    messages: tuple[Message, ...]
    sampling: Sampling
    limits: Limits
    speculation: Mapping[str, str] = field(default_factory=dict)
    stream: bool = False
    include_usage: bool = False
    user: str | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    key: str | None = None  # 8 hex digits of the API key's digest
    caller: Mapping[str, str] = field(default_factory=dict)  # W3C headers of the client's own trace


class Story:
    """What a request's events amount to; asked at any time, also when it broke off."""

    def __init__(self) -> None:
        self._began = perf_counter()
        self.first_step_ms: float | None = None  # to the first accepted step
        self.steps: list[Step] = []
        self.ended: RequestCompleted | None = None
        self._texts: list[TextDelta] = []
        self._tally = Tally()
        self._cached: dict[str, int] = {}

    def add(self, event: Event) -> None:
        match event:
            case TextDelta():
                self._texts.append(event)
            case StepCompleted(step):
                self.steps.append(step)
                if step.accepted and self.first_step_ms is None:
                    self.first_step_ms = self._elapsed_ms
            case ActionCompleted(action, Generation(_, usage)):
                # The first call of each worker reads the prompt alone: what it found cached is
                # what OpenAI's cached_tokens means. Later hits are the request's own prefix.
                self._cached.setdefault(getattr(action, "worker", ""), usage.cached)
                self._tally.add(event)
            case ActionCompleted():
                self._tally.add(event)
            case RequestCompleted():
                self.ended = event

    @property
    def ms(self) -> float:
        """The request's wall time, so far or altogether."""
        return self._elapsed_ms if self.ended is None else self.ended.metrics.ms["total"]

    @property
    def _elapsed_ms(self) -> float:
        return (perf_counter() - self._began) * 1000

    @property
    def thought(self) -> str:
        return self._said("thought")

    @property
    def answer(self) -> str:
        return self._said("answer").strip()

    def _said(self, phase: str) -> str:
        return "".join(text.text for text in self._texts if text.phase == phase)

    @property
    def metrics(self) -> Metrics:
        return self._tally.metrics() if self.ended is None else self.ended.metrics

    @property
    def usage(self) -> Json | None:
        """As OpenAI counts: accepted tokens only, drafts and judge calls never."""
        if self.ended is None:
            return None
        transcript, prompt = self.ended.transcript, self.ended.metrics.prompt_tokens
        completion = transcript.thought_tokens + transcript.answer_tokens
        cached = self._cached.get("large", self._cached.get("small", 0))
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": min(cached, prompt)},
            "completion_tokens_details": {"reasoning_tokens": transcript.thought_tokens},
        }


class Stripped:
    """`str.strip()` for a text that comes in pieces: white space waits for what follows it."""

    def __init__(self) -> None:
        self._begun, self._held = False, ""

    def feed(self, text: str) -> str:
        """The part of the text that is certain after this piece, "" for none."""
        text = self._held + text
        if not self._begun:
            text = text.lstrip()
        certain = text.rstrip()
        self._begun |= bool(certain)
        self._held = text[len(certain) :]
        return certain


def deltas(events: Iterable[Event], strip: Stripped) -> Iterator[Json]:
    """The accepted text in `events` as OpenAI deltas; neighbours of one phase share one."""
    texts = [event for event in events if isinstance(event, TextDelta)]
    for phase, group in groupby(texts, key=lambda text: text.phase):
        text = "".join(item.text for item in group)
        if phase == "thought":
            yield {"reasoning_content": text, "reasoning": text}
        elif text := strip.feed(text):
            yield {"content": text}


def chunk(order: Order, delta: Json, finish: str | None = None) -> Json:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    made = {**_head(order, "chat.completion.chunk"), "choices": [choice]}
    return {**made, "usage": None} if order.include_usage else made


def usage_chunk(order: Order, story: Story) -> Json:
    return {**_head(order, "chat.completion.chunk"), "choices": [], "usage": story.usage}


def completion(order: Order, story: Story) -> Json:
    message = {
        "role": "assistant",
        "content": story.answer,
        "reasoning_content": story.thought,
        "reasoning": story.thought,
        "refusal": None,
    }
    choice = {
        "index": 0,
        "message": message,
        "logprobs": None,
        "finish_reason": finish_reason(story),
    }
    return {
        **_head(order, "chat.completion"),
        "choices": [choice],
        "usage": story.usage,
        "baton": baton(order, story),
    }


def finish_reason(story: Story) -> str | None:
    return None if story.ended is None else story.ended.transcript.finish


def baton(order: Order, story: Story) -> Json:
    """The extra object: `steps` are the thought's, rejected drafts among them."""
    return {
        "trace_id": order.trace_id,
        "policy": order.choice.name,
        "version": order.choice.version,
        "experiment": order.choice.experiment,
        "arm": order.choice.arm,
        "speculation": dict(order.speculation),
        "forced": story.ended is not None and story.ended.transcript.forced,
        "steps": [asdict(step) for step in story.steps if step.phase == "thought"],
        "answer_steps": [asdict(step) for step in story.steps if step.phase == "answer"],
        "metrics": asdict(story.metrics),
    }


def record(order: Order, story: Story, status: str, error: Json | None = None) -> Json:
    """Everything about a request; `status` is finished, failed or cancelled."""
    return {
        **baton(order, story),
        "id": order.trace_id,
        "object": "baton.trace",
        "request_id": order.request_id,
        "created": order.created,
        "model": order.model,
        "parameters": order.choice.policy.model_dump(mode="json"),
        "overrides": list(order.choice.overrides),
        "run": order.choice.run,
        "sampling": asdict(order.sampling),
        "limits": asdict(order.limits),
        "user": order.user,
        "metadata": order.metadata,
        "key": order.key,
        "messages": [asdict(message) for message in order.messages],
        "question": order.messages[-1].content,
        "steps": [asdict(step) for step in story.steps],
        "reasoning_content": story.thought,
        "answer": story.answer,
        "finish_reason": finish_reason(story),
        "usage": story.usage,
        "status": status,
        "error": error,
    }


def trace_name(trace_id: str) -> str:
    """Where the store keeps a request's record."""
    return f"trace/{trace_id}"


def dump(value: Json) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def sse(value: Json) -> bytes:
    """One server-sent event."""
    return b"data: " + dump(value) + b"\n\n"


def _head(order: Order, kind: str) -> Json:
    return {
        "id": COMPLETION + order.trace_id,
        "object": kind,
        "created": order.created,
        "model": order.model,
    }
