"""The one fold of a request's events, which rendering, metrics and spans read at any time.

Events are not kept, since each has a transcript: memory grows only with the text.
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
from orchestrator.loop.timeline import Timeline
from orchestrator.types import (
    CallFormat,
    Classification,
    Generation,
    Segment,
    Step,
    Usage,
    Verification,
    added,
)

WORKERS: tuple[WorkerName, ...] = ("small", "large")
E = TypeVar("E", bound=Event)


@dataclass(frozen=True, slots=True)
class Failure:
    """A call that a worker did not answer, and that the policy worked around."""

    worker: WorkerName
    call: str  # "generate" or "judge"
    error: str  # as `error_kind` names it


class ResponseAccumulator:
    """One request's response so far: its text, its steps, its totals and its times."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.timeline = Timeline()
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

    def add(self, event: E) -> E:
        """Count one event, and return it."""
        match event:
            case TextDelta():
                self._texts.append(event)
                self.shown[event.phase] += event.tokens
                if self.first_text_s is None:
                    self.first_text_s = self.elapsed_s
            case StepCompleted(step):
                self.steps.append(step)
                self.timeline.add_step(event, self.elapsed_s * 1000)
                if step.accepted and self.first_step_ms is None:
                    self.first_step_ms = self.elapsed_s * 1000
            case ActionCompleted():
                self._add_action(event)
                self.timeline.add(event, self.elapsed_s * 1000)
            case RequestCompleted():
                self.completed = event
        return event

    def add_scoring(self, action: Verify, scores: Verification, ms: float) -> None:
        """Count a pass over the prompt or the answer that its form asked for, not the policy."""
        self._ms["classify"] += ms
        self._add_judgement(action, scores)
        self.timeline.add_call(action, scores, max(0.0, self.elapsed_s * 1000 - ms), ms)
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
        self.timeline.begin(action, self.elapsed_s * 1000)

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
        """Count one action and its result; a failed one cost time only."""
        match event.action:
            case Accept(_, segment, score) if segment.author != "policy":
                self._accepted += segment.author == "small"  # the large model's is not judged
                self._scored += score is not None
                self._kept[segment.author] += len(segment.tokens)
            case Reject(segment):
                self._rejected += segment.author == "small"
            case Classify() | Verify() as action:
                self._ms["classify"] += event.ms
                self._add_judgement(action, event.answer)
            case Generate() | Write() as action:
                self._ms[action.worker] += event.ms
                self._add_generation(action, event.answer)
                if event.failure is not None:
                    self._broke_off = action.worker, event.failure

    def _add_generation(self, action: Generate | Write, made: Generation | BaseException) -> None:
        if isinstance(made, BaseException):
            self._add_failure(action.worker, "generate", made)
            return
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
        self._add_usage(worker, made.usage)

    def _add_judgement(
        self, action: Classify | Verify, result: Classification | Verification | BaseException
    ) -> None:
        if isinstance(result, BaseException):
            self._add_failure(action.worker, "judge", result)
        else:
            self._judged += 1
            self._add_usage(action.worker, result.usage)

    def _add_failure(self, worker: WorkerName, call: str, error: BaseException) -> None:
        if isinstance(error, WorkerError):
            self.failures.append(Failure(worker, call, error_kind(error)))

    def _add_usage(self, worker: WorkerName, usage: Usage) -> None:
        self._prefill += usage.prompt - usage.cached
        self._cached += usage.cached
        if worker == "large":
            self._passes += usage.passes


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
