"""OpenTelemetry spans folded from events: a request, its steps, and the calls each step took.

    request                     policy, outcome, tokens
    ├── generate                the prompt being read, once per worker
    └── step                    author, accepted, score, tokens
        ├── generate            worker, tokens, passes
        └── classify | verify

They hold names, numbers and ids, never text. The client's own trace goes on here where it sends a
W3C `traceparent`.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, Final

from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from orchestrator.loop.actions import (
    Action,
    Cancel,
    Classify,
    First,
    Generate,
    Job,
    Start,
    Verify,
    Write,
)
from orchestrator.loop.events import ActionCompleted, Event, RequestCompleted, StepCompleted
from orchestrator.telemetry.metrics import outcome
from orchestrator.types import Classification, Generation, Step, Usage, Verification

VERBS: Final = {Generate: "generate", Write: "generate", Classify: "classify", Verify: "verify"}
_W3C: Final = TraceContextTextMapPropagator()


class Spans:
    """Makes the spans of requests by `tracer`."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    async def watch(
        self,
        caller: Mapping[str, str],
        attributes: Mapping[str, str],
        events: AsyncGenerator[Event, None],
    ) -> AsyncGenerator[Event, None]:
        """Pass a request's events through, telling them as spans; closing this closes `events`.

        `caller` holds the W3C headers of the client's trace, which goes on here.
        """
        named = {f"baton.{name}": value for name, value in attributes.items()}
        parent = _W3C.extract(caller)
        span = self._tracer.start_span("request", parent, SpanKind.SERVER, named)
        request = _Request(self._tracer, span)
        try:
            async with aclosing(events):
                async for event in events:
                    request.add(event)
                    yield event
        except BaseException as error:
            request.failed(error)
            raise
        finally:
            request.end()


class _Request:
    """The spans of one request, begun and ended as its events say."""

    def __init__(self, tracer: Tracer, span: Span) -> None:
        self._tracer, self._span, self._inside = tracer, span, set_span_in_context(span)
        self._step: Span | None = None
        self._stepped: Step | None = None
        self._jobs: dict[Job, tuple[Action[Any], int]] = {}
        self._ended = False

    def add(self, event: Event) -> None:
        match event:
            case StepCompleted(step):
                self._stepped = step  # the call that completed it comes next
            case ActionCompleted():
                self._called(event)
                if self._stepped is not None:
                    self._end_step(self._stepped)
            case RequestCompleted(trace, _, metrics):
                self._ended = True
                self._span.set_attributes(
                    {
                        "baton.outcome": trace.finish,
                        "baton.small_tokens": metrics.small_tokens,
                        "baton.large_tokens": metrics.large_tokens,
                        "baton.discarded_tokens": metrics.discarded_tokens,
                    }
                )

    def failed(self, error: BaseException) -> None:
        if not self._ended:  # a client may go after the last word
            self._span.set_attribute("baton.outcome", outcome(error))
            self._span.set_status(Status(StatusCode.ERROR, type(error).__name__))

    def end(self) -> None:
        if self._step is not None:
            self._step.end()
        self._span.end()

    def _called(self, called: ActionCompleted) -> None:
        now = time.time_ns()
        match called.action, called.answer:
            case Start(action), Job() as job:
                self._jobs[job] = action, now
            case First(), (Job() as job, answer):
                action, began = self._jobs.pop(job)
                self._call(action, answer, began, now)
            case Cancel(job), answer if job in self._jobs:
                action, began = self._jobs.pop(job)
                self._call(action, answer, began, now, cancelled=True)
            case action, answer if type(action) in VERBS:
                self._call(action, answer, now - int(called.ms * 1e6), now)

    def _call(
        self, action: Any, answer: Any, began: int, now: int, *, cancelled: bool = False
    ) -> None:
        span = self._tracer.start_span(
            VERBS[type(action)],
            self._context(action, began),
            SpanKind.CLIENT,
            {"baton.worker": action.worker, "baton.cancelled": cancelled},
            start_time=began,
        )
        match answer:
            case BaseException():
                span.set_status(Status(StatusCode.ERROR, type(answer).__name__))
            case Usage() as usage:
                _cost(span, usage)
            case Generation(segment, usage):
                _cost(span, usage)
                span.set_attribute("baton.finish", segment.finish)
            case Classification() | Verification():
                _cost(span, answer.usage)
        span.end(now)

    def _context(self, action: Any, began: int) -> Context:
        """Where a call belongs: to the step at hand; reading the prompt, to the request."""
        if self._step is None:
            is_reading = isinstance(action, Generate) and not action.criteria.max_tokens
            if is_reading:
                return self._inside
            self._step = self._tracer.start_span("step", self._inside, start_time=began)
        return set_span_in_context(self._step)

    def _end_step(self, step: Step) -> None:
        self._stepped = None
        span, self._step = self._step, None
        if span is None:  # the policy's own words, or a choice taken from a verification
            span = self._tracer.start_span("step", self._inside)
        span.set_attributes(
            {
                "baton.author": step.author,
                "baton.accepted": step.accepted,
                "baton.tokens": step.tokens,
                "baton.phase": step.phase,
                **({} if step.score is None else {"baton.score": step.score}),
            }
        )
        span.end()


def _cost(span: Span, usage: Usage) -> None:
    span.set_attributes(
        {
            "baton.prompt_tokens": usage.prompt,
            "baton.cached_tokens": usage.cached,
            "baton.generated_tokens": usage.generated,
            "baton.passes": usage.passes,
        }
    )
