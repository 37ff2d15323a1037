"""The pure half of the step loop: a policy's script, the transcript it builds, the events it
causes.

Nothing here waits or measures. `solve` tells a PolicyRunner what live workers answered,
`record.replay` what a file says they answered; whatever is decided here is decided alike in both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

from orchestrator.errors import BatonError, ContextLengthExceeded
from orchestrator.loop.actions import (
    Accept,
    Account,
    Action,
    Cancel,
    Close,
    First,
    Generate,
    Job,
    Reject,
    Write,
)
from orchestrator.loop.budget import Budget
from orchestrator.loop.events import (
    ActionCompleted,
    Event,
    RequestCompleted,
    StepCompleted,
    TextDelta,
)
from orchestrator.loop.policy import Policy
from orchestrator.telemetry.metrics import Tally
from orchestrator.types import Generation, Limits, Message, Segment, Step, StopCriteria, Transcript

PATIENCE = (
    256  # actions in a row that add nothing to the transcript before a policy counts as stuck
)


class PolicyRunner:
    """One request: `ask` what the policy wants, `told` it the answer, until `ask` gives None."""

    def __init__(self, policy: Policy, messages: Sequence[Message], limits: Limits) -> None:
        self.policy = policy
        self.budget = Budget.of(limits, policy.budget)
        self.transcript = Transcript(tuple(messages))
        self.steps: list[Step] = []
        self._tally = Tally()
        self._script = policy.solve(self.transcript)
        self._reply: Any = None
        self._draft_ms: dict[Segment, float] = {}
        self._idle = 0

    def preflight(self) -> list[Generate]:
        """What all workers are asked before the policy starts: to read the prompt."""
        return [
            Generate(name, self.transcript, StopCriteria(0)) for name in sorted(self.policy.workers)
        ]

    def ask(self) -> Action[Any] | None:
        """The policy's next question, given what it was told; None when it has finished."""
        reply, self._reply = self._reply, None
        try:
            if isinstance(reply, BaseException):
                return self._script.throw(reply)
            return self._script.send(reply)
        except StopIteration:
            if not self.transcript.done:
                name = type(self.policy).__name__
                raise BatonError(f"policy {name} ended before its answer did") from None
        except ContextLengthExceeded:
            # The prompt did fit, so this is a transcript that outgrew a context: cut, not refused.
            self.transcript = self.budget.cut(self.transcript)
        return None

    def told(self, called: ActionCompleted) -> Iterator[Event]:
        """Take in one answer: the events it causes, the last of them `called` itself."""
        action, answer, before = called.action, called.answer, self.transcript
        self._reply = answer
        if isinstance(answer, BaseException):
            pass
        elif isinstance(action, Generate):
            self._draft_ms[answer.segment] = called.ms
        elif isinstance(action, Write):
            self._on_trace(action.transcript)
            segment, asked = (
                answer.segment,
                self.budget.clip(action.transcript, action.criteria).max_tokens,
            )
            # Half a character at the end of a span is made and dropped: the context is not full.
            short = answer.usage.generated < asked
            if segment.text or segment.tokens:
                yield self._step(segment, called.ms, accepted=True)
            self.transcript = self._reply = self.budget.commit(
                self.transcript, segment, asked if short else None
            )
        elif isinstance(action, Accept):
            self._on_trace(action.transcript)
            segment = action.segment
            if segment.text:
                yield TextDelta(segment.author, self.phase, segment.text)
            ms = self._draft_ms.get(segment, 0.0)
            yield self._step(segment, ms, accepted=True, score=action.score)
            self.transcript = self._reply = self.budget.commit(self.transcript, segment)
        elif isinstance(action, Reject):
            ms = self._draft_ms.get(action.segment, 0.0)
            yield self._step(action.segment, ms, accepted=False, score=action.score)
        elif isinstance(action, Close):
            self._on_trace(action.transcript)
            self.transcript = self._reply = self.budget.close(self.transcript, action.forced)
        elif isinstance(action, First):
            self._first_answered(answer)
        elif isinstance(action, Account):
            self._reply = self._tally.cost()
        elif isinstance(action, Cancel):
            self._reply = None  # its cost concerns the record alone
        self._idle = self._idle + 1 if self.transcript is before else 0
        if self._idle > PATIENCE:
            raise BatonError(f"policy {type(self.policy).__name__} makes no progress")
        yield self.noted(called)

    def noted(self, called: ActionCompleted) -> ActionCompleted:
        """Count what happened outside the script: a preflight, a job that it left running."""
        self._tally.add(called)
        return called

    def end(self, total_ms: float) -> RequestCompleted:
        """The last event."""
        return RequestCompleted(self.transcript, tuple(self.steps), self._tally.metrics(total_ms))

    def close(self) -> None:
        """Close the script: a policy's own `finally` runs."""
        self._script.close()

    @property
    def phase(self) -> Literal["thought", "answer"]:
        return "answer" if self.transcript.closed else "thought"

    def _first_answered(self, answer: tuple[Job, Any]) -> None:
        outcome = answer[1]
        if isinstance(outcome, BaseException):
            self._reply = outcome
        elif isinstance(outcome, Generation):
            self._draft_ms[outcome.segment] = outcome.ms

    def _on_trace(self, transcript: Transcript) -> None:
        # What was streamed cannot be taken back: only the transcript that the client saw can grow.
        if transcript is not self.transcript and transcript != self.transcript:
            raise BatonError("a policy may only extend the trace that it was last given")
        if transcript.done:
            raise BatonError("a policy may not extend a trace whose answer has ended")

    def _step(
        self, segment: Segment, ms: float, *, accepted: bool, score: float | None = None
    ) -> StepCompleted:
        size, phase = len(segment.tokens), self.phase
        step = Step(segment.author, segment.text, accepted, size, ms, score, phase)
        self.steps.append(step)
        return StepCompleted(step)
