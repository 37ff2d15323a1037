"""OpenTelemetry spans of a request, its steps, and the calls each step took.

    chat MODEL                  policy, outcome, tokens
    ├── generate                the prompt's prefill, once per worker
    └── step                    author, accepted, score, tokens
        ├── generate            worker, tokens, passes
        └── classify | verify

The outermost follows OpenTelemetry's conventions for generative AI (`gen_ai.*`), by which tools
that show traces of models know it; the others do not, so that no token is counted twice. They hold
names, numbers and ids, never text. The client's own trace continues here if it sends a
W3C `traceparent`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from time import monotonic_ns, time_ns
from typing import Any, Final

from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from orchestrator.loop.accumulator import ResponseAccumulator
from orchestrator.loop.actions import (
    Classify,
    Generate,
    Verify,
    Write,
)
from orchestrator.loop.budget import spent
from orchestrator.loop.events import ActionCompleted, Event, StepCompleted
from orchestrator.types import Classification, Generation, Step, Usage, Verification

VERBS: Final = {Generate: "generate", Write: "generate", Classify: "classify", Verify: "verify"}
_W3C: Final = TraceContextTextMapPropagator()


class Spans:
    """Makes the spans of requests by `tracer`."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    @contextmanager
    def request(
        self,
        headers: Mapping[str, str],
        attributes: Mapping[str, str | int | float],
        response: ResponseAccumulator,
    ) -> Iterator[None]:
        """Open a span around a request, within the client's trace if `headers` name one.

        It is named for the operation and the model in `attributes`. The spans of its steps and
        calls are made as they happen.
        """
        name = f"{attributes['gen_ai.operation.name']} {attributes['gen_ai.request.model']}"
        span = self._tracer.start_span(name, _W3C.extract(headers), SpanKind.SERVER, attributes)
        error: BaseException | None = None
        inside = _Inside(self._tracer, span)
        response.observers.append(inside.add)
        try:
            yield
        except BaseException as caught:
            error = caught
            raise
        finally:
            inside.end()
            span.set_attribute("baton.outcome", response.outcome(error))
            if response.completed is not None:
                metrics, transcript = response.metrics, response.completed.transcript
                span.set_attributes(
                    {
                        "gen_ai.response.finish_reasons": [response.finish_reason or ""],
                        "gen_ai.usage.input_tokens": response.prompt.prompt,
                        "gen_ai.usage.cache_read.input_tokens": response.prompt.cached,
                        "gen_ai.usage.output_tokens": spent(transcript),
                        "gen_ai.usage.reasoning.output_tokens": transcript.thought.tokens,
                        "baton.small_tokens": metrics.small_tokens,
                        "baton.large_tokens": metrics.large_tokens,
                        "baton.discarded_tokens": metrics.discarded_tokens,
                    }
                )
            elif error is not None:
                _fail(span, error)
            span.end()


class _Inside:
    """The spans inside one request."""

    def __init__(self, tracer: Tracer, request: Span) -> None:
        self._tracer, self._request = tracer, set_span_in_context(request)
        self._began = time_ns() - monotonic_ns()  # a clock that is moved moves no call
        self._step: Span | None = None
        self._completed: Step | None = None

    def add(self, event: Event) -> None:
        """Make the spans that end with this event."""
        now = self._began + monotonic_ns()
        if isinstance(event, StepCompleted):
            if self._completed is not None:  # several that were held back come at once
                self._end_step(self._completed, now)
            self._completed = event.step  # the call that completed it comes next
        elif isinstance(event, ActionCompleted):
            if type(event.action) in VERBS:
                self._call(event.action, event.answer, now - int(event.ms * 1e6), now)
            if self._completed is not None:
                self._end_step(self._completed, now)
                self._completed = None

    def end(self) -> None:
        """End a step that the request's end left open."""
        if self._step is not None:
            self._step.end()

    def _call(self, action: Any, answer: Any, began: int, now: int) -> None:
        span = self._tracer.start_span(
            VERBS[type(action)],
            self._context(action, began),
            SpanKind.CLIENT,
            {"baton.worker": action.worker},
            start_time=began,
        )
        match answer:
            case BaseException():
                _fail(span, answer)
            case Generation(segment, usage):
                _add_usage(span, usage)
                span.set_attribute("baton.finish", segment.finish)
            case Classification() | Verification():
                _add_usage(span, answer.usage)
        span.end(now)

    def _context(self, action: Any, began: int) -> Context:
        """Where a call belongs: to the step at hand; the prompt's prefill, to the request."""
        if self._step is None:
            is_prefill = isinstance(action, Generate) and not action.criteria.max_tokens
            if is_prefill:
                return self._request
            self._step = self._tracer.start_span("step", self._request, start_time=began)
        return set_span_in_context(self._step)

    def _end_step(self, step: Step, now: int) -> None:
        span, self._step = self._step, None
        if span is None:  # the policy's own words, or a choice taken from a verification
            span = self._tracer.start_span("step", self._request, start_time=now)
        span.set_attributes(
            {
                "baton.author": step.author,
                "baton.accepted": step.accepted,
                "baton.tokens": step.tokens,
                "baton.phase": step.phase,
                **({} if step.score is None else {"baton.score": step.score}),
            }
        )
        span.end(now)


def _fail(span: Span, error: BaseException) -> None:
    """Mark a span as failed by the kind of an error, whose text may say too much."""
    kind = type(error).__name__
    span.set_status(Status(StatusCode.ERROR, kind))
    span.set_attribute("error.type", kind)


def _add_usage(span: Span, usage: Usage) -> None:
    span.set_attributes(
        {
            "baton.prompt_tokens": usage.prompt,
            "baton.cached_tokens": usage.cached,
            "baton.generated_tokens": usage.generated,
            "baton.passes": usage.passes,
        }
    )
