"""The pure half of the step loop: a policy's script, the trace it builds, the events it causes.

Nothing here waits or measures. `solve` tells a Dialogue what live workers answered, `record.replay`
what a file says they answered; whatever is decided here is decided alike in both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

from orchestrator.actions import (
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
from orchestrator.budget import Budget
from orchestrator.errors import BatonError, ContextLengthExceeded
from orchestrator.events import Called, Ended, Event, Stepped, Text
from orchestrator.metrics import Tally
from orchestrator.policy import Policy
from orchestrator.types import Generation, Limits, Message, Segment, Span, Step, Trace

PATIENCE = 256  # actions in a row that add nothing to the trace before a policy counts as stuck


class Dialogue:
    """One request: `ask` what the policy wants, `told` it the answer, until `ask` gives None."""

    def __init__(self, policy: Policy, messages: Sequence[Message], limits: Limits) -> None:
        self.policy = policy
        self.budget = Budget.of(limits, policy.budget)
        self.trace = Trace(tuple(messages))
        self.steps: list[Step] = []
        self._tally = Tally()
        self._script = policy.solve(self.trace)
        self._reply: Any = None
        self._draft_ms: dict[Segment, float] = {}
        self._idle = 0

    def preflight(self) -> list[Generate]:
        """What all workers are asked before the policy starts: to read the prompt."""
        return [Generate(name, self.trace, Span(0)) for name in sorted(self.policy.workers)]

    def ask(self) -> Action[Any] | None:
        """The policy's next question, given what it was told; None when it has finished."""
        reply, self._reply = self._reply, None
        try:
            if isinstance(reply, BaseException):
                return self._script.throw(reply)
            return self._script.send(reply)
        except StopIteration:
            if not self.trace.done:
                name = type(self.policy).__name__
                raise BatonError(f"policy {name} ended before its answer did") from None
        except ContextLengthExceeded:
            # The prompt did fit, so this is a trace that outgrew a context: cut, not refused.
            self.trace = self.budget.cut(self.trace)
        return None

    def told(self, called: Called) -> Iterator[Event]:
        """Take in one answer: the events it causes, the last of them `called` itself."""
        action, answer, before = called.action, called.answer, self.trace
        self._reply = answer
        if isinstance(answer, BaseException):
            pass
        elif isinstance(action, Generate):
            self._draft_ms[answer.segment] = called.ms
        elif isinstance(action, Write):
            self._on_trace(action.trace)
            segment, asked = answer.segment, self.budget.clip(action.trace, action.span).max_tokens
            # Half a character at the end of a span is made and dropped: the context is not full.
            short = answer.usage.generated < asked
            if segment.text or segment.tokens:
                yield self._step(segment, called.ms, accepted=True)
            self.trace = self._reply = self.budget.commit(
                self.trace, segment, asked if short else None
            )
        elif isinstance(action, Accept):
            self._on_trace(action.trace)
            segment = action.segment
            if segment.text:
                yield Text(segment.author, self.phase, segment.text)
            ms = self._draft_ms.get(segment, 0.0)
            yield self._step(segment, ms, accepted=True, score=action.score)
            self.trace = self._reply = self.budget.commit(self.trace, segment)
        elif isinstance(action, Reject):
            ms = self._draft_ms.get(action.segment, 0.0)
            yield self._step(action.segment, ms, accepted=False, score=action.score)
        elif isinstance(action, Close):
            self._on_trace(action.trace)
            self.trace = self._reply = self.budget.close(self.trace, action.forced)
        elif isinstance(action, First):
            self._first_answered(answer)
        elif isinstance(action, Account):
            self._reply = self._tally.cost()
        elif isinstance(action, Cancel):
            self._reply = None  # its cost concerns the record alone
        self._idle = self._idle + 1 if self.trace is before else 0
        if self._idle > PATIENCE:
            raise BatonError(f"policy {type(self.policy).__name__} makes no progress")
        yield self.noted(called)

    def noted(self, called: Called) -> Called:
        """Count what happened outside the script: a preflight, a job that it left running."""
        self._tally.add(called)
        return called

    def end(self, total_ms: float) -> Ended:
        """The last event."""
        return Ended(self.trace, tuple(self.steps), self._tally.metrics(total_ms))

    def close(self) -> None:
        """Close the script: a policy's own `finally` runs."""
        self._script.close()

    @property
    def phase(self) -> Literal["thought", "answer"]:
        return "answer" if self.trace.closed else "thought"

    def _first_answered(self, answer: tuple[Job, Any]) -> None:
        outcome = answer[1]
        if isinstance(outcome, BaseException):
            self._reply = outcome
        elif isinstance(outcome, Generation):
            self._draft_ms[outcome.segment] = outcome.ms

    def _on_trace(self, trace: Trace) -> None:
        # What was streamed cannot be taken back: only the trace that the client saw can grow.
        if trace is not self.trace and trace != self.trace:
            raise BatonError("a policy may only extend the trace that it was last given")
        if trace.done:
            raise BatonError("a policy may not extend a trace whose answer has ended")

    def _step(
        self, segment: Segment, ms: float, *, accepted: bool, score: float | None = None
    ) -> Stepped:
        size, phase = len(segment.tokens), self.phase
        step = Step(segment.author, segment.text, accepted, size, ms, score, phase)
        self.steps.append(step)
        return Stepped(step)
