"""The one fold of a request's events, which rendering, metrics and spans read at any time.

Events are not kept, since each has a transcript: memory grows only with the text. Times are in
milliseconds from the request's start. A call is added when its result is read.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, Literal, TypeVar

from orchestrator.errors import DeadlineExceeded, InvalidRequest, Overloaded, WorkerError
from orchestrator.loop.actions import (
    Accept,
    Action,
    Classify,
    Generate,
    Reject,
    Verify,
    WorkerName,
    Write,
)
from orchestrator.loop.events import (
    ActionCompleted,
    Event,
    Metrics,
    RequestCompleted,
    StepCompleted,
    TextDelta,
)
from orchestrator.types import (
    Author,
    CallFormat,
    Classification,
    Finish,
    Generation,
    Provenance,
    Segment,
    Step,
    Usage,
    Verification,
    added,
)

WORKERS: tuple[WorkerName, ...] = ("small", "large")
CallKind = Literal["prefill", "draft", "write", "judge", "verify"]
E = TypeVar("E", bound=Event)


@dataclass(frozen=True, slots=True)
class Failure:
    """A call that a worker did not answer, and that the policy worked around."""

    worker: WorkerName
    call: str  # "generate" or "judge"
    error: str  # as `error_kind` names it


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


class ResponseAccumulator:
    """One request's response so far: its text, its steps, its totals and its times."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.moments: list[StepMoment] = []  # of the steps
        self.call_spans: list[CallSpan] = []  # in the order of the results
        self.completed: RequestCompleted | None = None
        self.failures: list[Failure] = []  # of calls that workers did not answer
        self.missing: WorkerError | None = None  # why another worker wrote the rest of a text
        self._broke_off: tuple[WorkerName, WorkerError] | None = None
        self.reply_start = 0  # characters of the answer's text that were a thought
        self.thinks_on = False  # whether the answer so far may turn out to be a thought
        self.continues = False  # whether the answer continues a text of the request
        self.shown = {"thought": 0, "answer": 0}  # tokens of the text so far
        self.calls: CallFormat | None = None  # how the models write calls of tools
        self.called = False  # whether the answer calls any
        self.stopped_by: str | None = None  # the stop string that ended it; "": unknown which
        self.find_calls: Callable[[str], str] = lambda thought: ""
        """Returns the calls of tools at the end of a thought, as written; "" if there are none."""
        self.acceptance: dict[WorkerName, tuple[tuple[int, ...], tuple[int, ...]]] = {}
        """By worker that drafted tokens: the rounds in which a draft reached each position, and
        those in which it was accepted there."""
        self.vocabulary = ""  # a hash, of the worker of the last call
        self.thinking = True  # whether there is a thought; without one the steps are the answer's
        self.first_text_s: float | None = None  # until the first accepted text
        self.first_step_ms: float | None = None  # until the first accepted step
        self._began = perf_counter()
        self._texts: list[TextDelta] = []
        self._generated: Counter[str] = Counter()  # tokens by worker, markers included
        self._drafted: Counter[str] = Counter()  # of these, offered as drafts
        self._kept: Counter[str] = Counter()  # tokens of accepted drafts
        self._given_up: Counter[str] = Counter()  # of these
        self._accepted = self._rejected = self._scored = self._judged = 0
        self._prompts: dict[str, Usage] = {}  # by worker: of the first call, which has no thought
        self._prefill = self._cached = self._passes = self._adopted = 0
        self._ms = {"small": 0.0, "large": 0.0, "classify": 0.0}
        self._current: tuple[Action[Any], float] | None = None
        self._completing = False  # the newest step: the next result is of the action that made it
        self._read: dict[WorkerName, float] = {}  # the prefill's end, before which no call begins
        self._about: dict[tuple[Author, str], list[int]] = {}  # calls by the text they concern

    def add(self, event: E) -> E:
        """Count one event, and return it."""
        match event:
            case TextDelta():
                self._texts.append(event)
                self.shown[event.phase] += event.tokens
                if self.first_text_s is None:
                    self.first_text_s = self.elapsed_s
            case StepCompleted(step, provenance):
                now_ms = self.elapsed_s * 1000
                calls = tuple(self._about.pop((step.author, step.text), ()))
                moment = StepMoment(round(now_ms, 1), calls, len(self.call_spans), provenance)
                self.steps.append(step)
                self.moments.append(moment)
                self._completing = True
                if step.accepted and self.first_step_ms is None:
                    self.first_step_ms = now_ms
            case ActionCompleted():
                self._add_action(event)
            case RequestCompleted():
                self.completed = event
        return event

    def add_scoring(self, action: Verify, scores: Verification, ms: float) -> None:
        """Count a pass over the prompt or the answer that its form asked for, not the policy."""
        self._add_call(action, scores, max(0.0, self.elapsed_s * 1000 - ms), ms)
        if self.completed is not None:  # its totals were made before
            total = self.completed.metrics.ms["total"] + ms
            self.completed = replace(self.completed, metrics=self.totals(total))

    def begin(self, action: Action[Any] | None) -> None:
        """Note the policy's next action; None: there is none.

        An interrupted Write counts as failed, unless this action continues it.
        """
        if self._broke_off is not None and not isinstance(action, Reject):
            (worker, error), self._broke_off = self._broke_off, None
            continued = isinstance(action, Write | Generate) and action.worker == worker
            if action is not None and not continued:
                self._add_failure(worker, "generate", error)
                self.missing = error
        self._current = None if action is None else (action, self.elapsed_s * 1000)

    @property
    def running(self) -> list[tuple[WorkerName, CallKind, float]]:
        """The call that runs now: its worker, its kind, and its start in ms."""
        match self._current:
            case (Generate() | Write() | Classify() | Verify()) as action, since_ms:
                return [(action.worker, _kind(action), since_ms)]
        return []

    def give_up(self, draft: Segment) -> None:
        """Count an accepted draft as rejected: there was no room for it."""
        if draft.author == "policy":  # inserted text is no draft
            return
        small = draft.author == "small"
        self._accepted -= small
        self._rejected += small
        self._given_up[draft.author] += len(draft.tokens)

    def start(self) -> None:
        """Count times from now on."""
        self._began = perf_counter()

    @property
    def thought(self) -> str:
        """The accepted thought."""
        return self._text("thought")

    @property
    def answer(self) -> str:
        """The accepted answer, without the white space around it."""
        text = self.raw_answer.rstrip()
        return text if self.continues else text.lstrip()

    @property
    def raw_answer(self) -> str:
        """The accepted answer as it was written, without what a model still thought in it."""
        return self._text("answer")[self.reply_start :]

    def restart_answer(self) -> None:
        """Count the answer so far as a thought, which has now ended."""
        self.reply_start = len(self._text("answer"))

    def _text(self, phase: Literal["thought", "answer"]) -> str:
        return "".join(delta.text for delta in self._texts if delta.phase == phase)

    @property
    def elapsed_s(self) -> float:
        return perf_counter() - self._began

    @property
    def ms(self) -> float:
        """The request's wall time, so far or altogether."""
        done = self.completed
        return self.elapsed_s * 1000 if done is None else done.metrics.ms["total"]

    @property
    def metrics(self) -> Metrics:
        """The request's totals, so far or altogether."""
        return self.totals() if self.completed is None else self.completed.metrics

    @property
    def prompt(self) -> Usage:
        """The usage of the prompt alone, by the large worker's count if there is one."""
        return self._prompts.get("large") or self._prompts.get("small") or Usage()

    @property
    def finish_reason(self) -> str | None:
        """Why the answer ended, in OpenAI's words; None while it has not."""
        if self.completed is None:
            return None
        finish = self.completed.transcript.finish
        return "tool_calls" if self.called and finish == "stop" else finish

    def outcome(self, error: BaseException | None = None) -> str:
        """Return how the request ended: `stop`, `length`, or the kind of error that ended it."""
        if self.completed is not None and not isinstance(error, Exception):
            # The client may have left after the last word.
            return self.completed.transcript.finish
        return "error" if error is None else error_kind(error)

    def totals(self, total_ms: float = 0.0) -> Metrics:
        """Return the totals so far; `total_ms` is the request's wall time."""
        # Accepted tokens that were not drafted: a worker's choices in a Verification.
        chosen = {name: max(0, self._kept[name] - self._drafted[name]) for name in WORKERS}
        offered = sum(self._drafted[name] + chosen[name] for name in WORKERS)
        stayed = self._kept.total() - self._given_up.total()
        decided = self._accepted + self._rejected
        judged = decided if self._rejected or self._scored else 0
        return Metrics(
            small_tokens=self._generated["small"] + chosen["small"],
            large_tokens=self._generated["large"] + chosen["large"],
            discarded_tokens=offered - stayed,
            judge_calls=self._judged,
            large_passes=self._passes,
            adopted_tokens=self._adopted,
            prompt_tokens=self.prompt.prompt,
            prefill_tokens=self._prefill,
            cached_tokens=self._cached,
            acceptance_rate=self._accepted / judged if judged else None,
            ms={**self._ms, "total": total_ms},
        )

    def _add_action(self, event: ActionCompleted) -> None:
        """Count one action and its result."""
        action, since_ms = event.action, max(0.0, self.elapsed_s * 1000 - event.ms)
        is_prefill = isinstance(action, Generate) and not action.criteria.max_tokens
        if not is_prefill:  # those end while the first action runs
            if self._current is not None and self._current[0] is action:
                since_ms = self._current[1]
            self._current = None
        match action:
            case Accept(_, segment, score) if segment.author != "policy":
                self._accepted += segment.author == "small"  # the large model's is not judged
                self._scored += score is not None
                self._kept[segment.author] += len(segment.tokens)
            case Reject(segment):
                self._rejected += segment.author == "small"
            case Generate() | Write() | Classify() | Verify():
                self._add_call(action, event.answer, since_ms, event.ms)
                if event.failure is not None:
                    self._broke_off = action.worker, event.failure
        if self._completing:
            self.moments[-1] = replace(self.moments[-1], calls_before=len(self.call_spans))
            self._completing = False

    def _add_call(
        self, action: Generate | Write | Classify | Verify, result: Any, at_ms: float, ms: float
    ) -> None:
        """Count a call that began at `at_ms` and took `ms`; a failed one cost time only."""
        worker, kind = action.worker, _kind(action)
        judges = kind in ("judge", "verify")
        self._ms["classify" if judges else worker] += ms
        if kind == "prefill":
            at_ms, self._read[worker] = 0.0, ms  # all workers read the prompt at the start
        else:
            at_ms = max(at_ms, self._read.get(worker, 0.0))
        about: Segment | None = None
        more: dict[str, Any] = {}
        match action, result:
            case _, BaseException():
                more["error"] = type(result).__name__
                self._add_failure(worker, "judge" if judges else "generate", result)
            case Generate() | Write(), Generation(segment, usage):
                about = segment if kind == "draft" else None
                more["tokens"] = max(len(segment.tokens), usage.generated)
                more["finish"] = segment.finish
                self._add_generation(action, result)
            case Classify(_, transcript), Classification():
                about = transcript.last
                more["probabilities"] = tuple(round(p, 4) for p in result.probabilities)
                more["outside"] = round(result.outside, 4)
                more["surprise"] = _surprise(result)
            case Verify(_, _, segment), Verification():
                about = segment
                more["surprise"] = _surprise(result)
        if not isinstance(result, BaseException):
            more["usage"] = usage = result.usage
            self._judged += judges
            self._prefill += usage.prompt - usage.cached
            self._cached += usage.cached
            self._passes += usage.passes if worker == "large" else 0
        if about is not None:
            self._about.setdefault((about.author, about.text), []).append(len(self.call_spans))
        self.call_spans.append(CallSpan(kind, worker, round(at_ms, 1), round(ms, 1), **more))

    def _add_generation(self, action: Generate | Write, made: Generation) -> None:
        worker, transcript, tokens = action.worker, action.transcript, len(made.segment.tokens)
        self._generated[worker] += max(tokens, made.usage.generated)
        self._adopted += made.usage.adopted
        if isinstance(action, Generate):
            self._drafted[worker] += tokens
        if made.provenance is not None:
            drafted, accepted = self.acceptance.get(worker, ((), ()))
            self.acceptance[worker] = (
                added(drafted, made.provenance.drafted_at),
                added(accepted, made.provenance.accepted_at),
            )
        self.vocabulary = made.segment.tokenizer or self.vocabulary
        if not action.criteria.max_tokens or not (transcript.thought or transcript.answer):
            self._prompts.setdefault(worker, made.usage)

    def _add_failure(self, worker: WorkerName, call: str, error: BaseException) -> None:
        if isinstance(error, WorkerError):
            self.failures.append(Failure(worker, call, error_kind(error)))


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


def error_kind(error: BaseException) -> str:
    """Return the name under which a request that ended by this error is counted."""
    if isinstance(error, asyncio.CancelledError | GeneratorExit):
        return "cancelled"
    if isinstance(error, InvalidRequest):
        return "invalid"
    if isinstance(error, Overloaded):
        return "overloaded"
    if isinstance(error, WorkerError):
        return "unavailable"
    return "deadline" if isinstance(error, DeadlineExceeded) else "error"
