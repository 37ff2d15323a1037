"""OpenTelemetry spans of a request, its steps, and the calls each step took.

    chat MODEL                  policy, outcome, tokens
    ├── generate                the prompt's prefill, once per worker
    └── step                    author, accepted, score, tokens
        ├── generate            worker, tokens, passes
        └── classify | verify

The outermost follows OpenTelemetry's conventions for generative AI (`gen_ai.*`), which trace
viewers know; the others do not, so that no token is counted twice. Spans have names, numbers and
ids, never text. They continue the client's trace if it sends a W3C `traceparent`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from time import time_ns
from typing import Final

from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from orchestrator.loop.accumulator import CallKind, CallSpan, ResponseAccumulator, StepMoment
from orchestrator.loop.budget import spent
from orchestrator.types import Step

NAMES: Final[Mapping[CallKind, str]] = {
    "prefill": "generate",
    "draft": "generate",
    "write": "generate",
    "judge": "classify",
    "verify": "verify",
}
_W3C: Final = TraceContextTextMapPropagator()


class Spans:
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

        Its name is the operation and the model in `attributes`. The spans of its steps and calls
        are made when it ends.
        """
        name = f"{attributes['gen_ai.operation.name']} {attributes['gen_ai.request.model']}"
        # When the response's clock began.
        began = time_ns() - int(response.elapsed_s * 1e9)
        span = self._tracer.start_span(name, _W3C.extract(headers), SpanKind.SERVER, attributes)
        error: BaseException | None = None
        try:
            yield
        except BaseException as caught:
            error = caught
            raise
        finally:
            _Inside(self._tracer, set_span_in_context(span), began).add(response)
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
                _fail(span, type(error).__name__)
            span.end()


class _Inside:
    """The spans inside one request, whose clock began at `began`, in nanoseconds."""

    def __init__(self, tracer: Tracer, request: Context, began: int) -> None:
        self._tracer, self._request, self._began = tracer, request, began

    def add(self, response: ResponseAccumulator) -> None:
        """Make the spans of all steps and calls."""
        calls, first = response.call_spans, 0
        for step, moment in zip(response.steps, response.moments, strict=True):
            self._add_step(calls[first : moment.calls_before], step, moment)
            first = moment.calls_before
        rest = calls[first:]
        if response.completed is None:
            self._add_step(rest)  # the step that was not complete
        else:
            self._add_calls(rest, self._request)

    def _add_step(
        self, calls: list[CallSpan], step: Step | None = None, moment: StepMoment | None = None
    ) -> None:
        """Make the spans of a step and its calls; prefills of the prompt belong to the request."""
        prefills = [call for call in calls if call.kind == "prefill"]
        own = [call for call in calls if call.kind != "prefill"]
        self._add_calls(prefills, self._request)
        if moment is None and not own:
            return
        times = [] if moment is None else [(moment.at_ms, moment.at_ms)]
        times += [(call.at_ms, call.at_ms + call.ms) for call in own]
        starts, ends = zip(*times, strict=True)
        span = self._tracer.start_span("step", self._request, start_time=self._at(min(starts)))
        self._add_calls(own, set_span_in_context(span))
        if step is not None:
            for name in ("author", "accepted", "tokens", "phase"):
                span.set_attribute(f"baton.{name}", getattr(step, name))
            if step.score is not None:
                span.set_attribute("baton.score", step.score)
        span.end(self._at(max(ends)))

    def _add_calls(self, calls: list[CallSpan], context: Context) -> None:
        for call in calls:
            span = self._tracer.start_span(
                NAMES[call.kind],
                context,
                SpanKind.CLIENT,
                {"baton.worker": call.worker},
                start_time=self._at(call.at_ms),
            )
            if call.error is not None:
                _fail(span, call.error)
            if (usage := call.usage) is not None:
                for name in ("prompt", "cached", "generated"):
                    span.set_attribute(f"baton.{name}_tokens", getattr(usage, name))
                span.set_attribute("baton.passes", usage.passes)
            if call.finish is not None:
                span.set_attribute("baton.finish", call.finish)
            span.end(self._at(call.at_ms + call.ms))

    def _at(self, ms: float) -> int:
        return self._began + int(ms * 1e6)


def _fail(span: Span, kind: str) -> None:
    """Mark a span as failed by a kind of error, without its text, which may be confidential."""
    span.set_status(Status(StatusCode.ERROR, kind))
    span.set_attribute("error.type", kind)
