"""The calls and steps of one request on one clock, in milliseconds from its start.

A call is added when its result is read. The calls that made a step are found by the text that they
drafted or judged.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from orchestrator.loop.actions import Action, Classify, Generate, Verify, WorkerName, Write
from orchestrator.loop.events import ActionCompleted, StepCompleted
from orchestrator.types import (
    Author,
    Classification,
    Finish,
    Generation,
    Provenance,
    Segment,
    Usage,
    Verification,
)

CallKind = Literal["prefill", "draft", "write", "judge", "verify"]


@dataclass(frozen=True, slots=True)
class CallSpan:
    """One call of a worker, which began at `at_ms` and took `ms`.

    `probabilities` is a judge's distribution over its labels, `outside` the mass on all other
    tokens, `surprise` the highest negative log-likelihood (natural log) of a token that was
    verified. `error` is the kind of failure that ended it.
    """

    kind: CallKind
    worker: WorkerName
    at_ms: float
    ms: float
    tokens: int = 0
    probabilities: tuple[float, ...] | None = None
    outside: float | None = None
    surprise: float | None = None
    error: str | None = None
    finish: Finish | None = None
    usage: Usage | None = None


@dataclass(frozen=True, slots=True)
class StepMoment:
    """When a step was complete, the indices of the calls that drafted and judged it, and the
    provenance of its tokens. The first `calls_before` calls are its own or earlier steps'."""

    at_ms: float
    calls: tuple[int, ...]
    calls_before: int
    provenance: Provenance | None = None


class Timeline:
    """`calls` in the order of their results, `steps` in their own order."""

    def __init__(self) -> None:
        self.calls: list[CallSpan] = []
        self.steps: list[StepMoment] = []
        self._current: tuple[Action[Any], float] | None = None
        self._completing = False  # the newest step: the next result is of the action that made it
        self._read: dict[WorkerName, float] = {}  # the prefill's end, before which no call begins
        self._about: dict[tuple[Author, str], list[int]] = {}  # calls by the text they concern

    def begin(self, action: Action[Any] | None, now_ms: float) -> None:
        """Note the policy's next action; None: there is none."""
        self._current = None if action is None else (action, now_ms)

    @property
    def running(self) -> list[tuple[WorkerName, CallKind, float]]:
        """The call that runs now: its worker, its kind, and its start in ms."""
        match self._current:
            case (Generate() | Write() | Classify() | Verify()) as action, since:
                return [(action.worker, _kind(action), since)]
        return []

    def add_step(self, completed: StepCompleted, now_ms: float) -> None:
        made_by = tuple(self._about.pop((completed.step.author, completed.step.text), ()))
        moment = StepMoment(round(now_ms, 1), made_by, len(self.calls), completed.provenance)
        self.steps.append(moment)
        self._completing = True

    def add(self, event: ActionCompleted, now_ms: float) -> None:
        since_ms = max(0.0, now_ms - event.ms)
        is_call = isinstance(event.action, Generate | Write | Classify | Verify)
        call: Any = event.action if is_call else None
        if call is None or _kind(call) != "prefill":  # those end while the first action runs
            if self._current is not None and self._current[0] is event.action:
                since_ms = self._current[1]
            self._current = None
        if call is not None:
            self.add_call(call, event.answer, since_ms, event.ms)
        if self._completing:
            self.steps[-1] = replace(self.steps[-1], calls_before=len(self.calls))
            self._completing = False

    def add_call(
        self, action: Generate | Write | Classify | Verify, result: Any, at_ms: float, ms: float
    ) -> None:
        """Add a call that began at `at_ms` and took `ms`."""
        kind = _kind(action)
        if kind == "prefill":
            at_ms = 0.0  # all workers read the prompt at the start
            self._read[action.worker] = ms
        about: Segment | None = None
        more: dict[str, Any] = {"usage": getattr(result, "usage", None)}
        match action, result:
            case _, BaseException():
                more["error"] = type(result).__name__
            case _, Generation(segment, usage):
                about = segment if kind == "draft" else None
                more["tokens"] = max(len(segment.tokens), usage.generated)
                more["finish"] = segment.finish
            case Classify(_, transcript), Classification():
                about = transcript.last
                more["probabilities"] = tuple(round(p, 4) for p in result.probabilities)
                more["outside"] = round(result.outside, 4)
                more["surprise"] = _surprise(result)
            case Verify(_, _, segment), Verification():
                about = segment
                more["surprise"] = _surprise(result)
        if about is not None:
            self._about.setdefault((about.author, about.text), []).append(len(self.calls))
        at_ms = max(at_ms, 0.0 if kind == "prefill" else self._read.get(action.worker, 0.0))
        self.calls.append(CallSpan(kind, action.worker, round(at_ms, 1), round(ms, 1), **more))


def _kind(action: Generate | Write | Classify | Verify) -> CallKind:
    match action:
        case Generate():
            return "draft" if action.criteria.max_tokens else "prefill"
        case Write():
            return "write"
        case Classify():
            return "judge"
        case Verify():
            return "verify"


def _surprise(result: Classification | Verification) -> float | None:
    ending = () if result.ending is None else (result.ending,)
    return max((round(value, 4) for value in (*(result.nll or ()), *ending)), default=None)
