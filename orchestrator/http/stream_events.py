"""What a running request does, for a stream whose client asked for `include_events`.

Beside the accepted text, which every stream has, it sees each step with its author, score and fate,
rejected drafts among them, each call of a worker, and what is being waited for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from orchestrator.http.context import RequestContext
from orchestrator.http.rendering import Json, call_json, step_json
from orchestrator.loop.accumulator import ResponseAccumulator
from orchestrator.loop.events import Event, StepCompleted, TextDelta


def beginning(context: RequestContext) -> Json:
    """Who is going to answer, and with which parameters."""
    return {
        "trace_id": context.trace_id,
        "index": context.index,
        "policy": context.policy_name,
        "version": context.version,
        "experiment": context.experiment,
        "arm": context.arm,
        "speculation": dict(context.decoding),
        "parameters": context.policy.model_dump(mode="json"),
    }


class StreamEvents:
    """A request's events as JSON, each once; `response` is what they amount to so far."""

    def __init__(self, response: ResponseAccumulator) -> None:
        self._response = response
        self._calls = self._steps = 0  # told so far

    def more(self, events: Sequence[Event]) -> Json | None:
        """What these events tell; calls come first, since steps name them by index."""
        timeline = self._response.timeline
        told: list[Json] = [{"type": "call", **call_json(c)} for c in timeline.calls[self._calls :]]
        self._calls = len(timeline.calls)
        for event in events:
            if isinstance(event, TextDelta):
                told.append({"type": "text", **asdict(event)})
            elif isinstance(event, StepCompleted):
                told.append({"type": "step", **step_json(self._response, self._steps)})
                self._steps += 1
        if not told:
            return None
        running = [
            {"worker": worker, "kind": kind, "since_ms": round(since, 1)}
            for worker, kind, since in timeline.running
        ]
        return {
            "ms": round(self._response.elapsed_s * 1000, 1),
            "events": told,
            "running": running,
        }
