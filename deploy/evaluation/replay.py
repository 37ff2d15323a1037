"""Replay a recording through a policy's code, with no model and no clock."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

from deploy.evaluation.recording import Recording
from orchestrator.errors import BatonError
from orchestrator.loop.actions import Action, Classify, Close, Generate, Verify, Write
from orchestrator.loop.events import (
    ActionCompleted,
    Event,
    PromptsRead,
    RequestCompleted,
    StepCompleted,
    TextDelta,
)
from orchestrator.loop.policy import Policy
from orchestrator.loop.policy_runner import PolicyRunner
from orchestrator.types import Generation, Segment, Step, StopCriteria, Transcript


class ReplayMismatch(BatonError):
    """The policy differs from the recording, first at `line` of the file."""

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message if line is None else f"line {line}: {message}")
        self.line = line


class AnswerMissing(ReplayMismatch):
    """The policy makes a call to which the recording has no answer."""


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """A policy's run on a recording.

    difference: the first action that differs from the recorded one; None if none does.
    steps: what the policy makes before a call that has no recorded answer.
    ended: whether it reached the end of the request without such a call.
    """

    difference: ReplayMismatch | None
    steps: tuple[Step, ...]
    ended: bool


def compare(recording: Recording, policy: Policy) -> ReplayResult:
    """Replay with `policy`; if it differs, replay again with recorded answers in any order."""
    difference, events = _until_mismatch(replay(recording, policy))
    if difference is not None:
        _, events = _until_mismatch(replay_other_policy(recording, policy))
    steps = tuple(event.step for event in events if isinstance(event, StepCompleted))
    ended = any(isinstance(event, RequestCompleted) for event in events)
    return ReplayResult(difference, steps, ended)


def _until_mismatch(events: Iterator[Event]) -> tuple[ReplayMismatch | None, list[Event]]:
    seen: list[Event] = []
    try:
        seen.extend(events)
    except ReplayMismatch as error:
        return error, seen
    return None, seen


def replay(recording: Recording, policy: Policy) -> Iterator[Event]:
    """Run `policy` on the recording; yield the same events, a TextDelta per accepted segment.

    Raises:
        ReplayMismatch: the policy does something else, or more, or less than was recorded.
    """
    recorded = deque(
        (line, event)
        for line, event in enumerate(recording.events, 2)
        if isinstance(event, ActionCompleted)
    )

    def next_answer(action: Action[Any]) -> ActionCompleted:
        if not recorded:
            raise ReplayMismatch(f"the recording ends where the policy asks {_brief(action)}")
        line, called = recorded.popleft()
        if called.action != action and not _answers_now(called.action):
            message = f"recorded {_brief(called.action)}, the policy asks {_brief(action)}"
            raise ReplayMismatch(message, line)
        return called

    yield from _drive(recording, policy, next_answer)
    if recorded:
        line, called = recorded[0]
        raise ReplayMismatch(f"recorded {_brief(called.action)}, the policy has ended", line)


def replay_other_policy(recording: Recording, policy: Policy) -> Iterator[Event]:
    """Run another policy, or other parameters, until a call has no recorded answer.

    Answers are found by their call, in any order; each is given once.

    Raises:
        AnswerMissing: a call has no answer.
    """
    known: defaultdict[Any, deque[ActionCompleted]] = defaultdict(deque)
    for call in recording.calls():
        known[call.action].append(call)

    def next_answer(action: Action[Any]) -> ActionCompleted:
        if not isinstance(action, Generate | Write | Classify | Verify):
            return ActionCompleted(action, None, 0.0)
        if not known[action]:
            raise AnswerMissing(f"the recording has no answer to {_brief(action)}")
        return known[action].popleft()

    yield from _drive(recording, policy, next_answer)


def _drive(
    recording: Recording, policy: Policy, next_answer: Callable[[Action[Any]], ActionCompleted]
) -> Iterator[Event]:
    runner = PolicyRunner(policy, recording.request.messages, recording.request.limits)
    try:
        prefilled = [next_answer(call) for call in runner.prefills()]
        runner.begin(_marks_thought(prefilled))
        yield from runner.on_result(PromptsRead(prefilled))
        while (action := runner.next_action()) is not None:
            called = next_answer(action)
            if called.action != action and _answers_now(called.action):
                if not runner.transcript.closed:
                    yield from runner.answer_now()
                    continue
                called = next_answer(action)  # an earlier version's policy closed the loop itself
            match action, called.answer:
                case Write(worker) as write, Generation(segment) if segment.text:
                    yield from runner.on_result(TextDelta(worker, write.phase, segment.text))
            yield from runner.on_result(called)
        yield from runner.rest_of_text()
        ended = recording.ended
        yield runner.complete(ended.metrics.ms["total"] if ended else 0.0)
    finally:
        runner.close()


def _answers_now(action: Action[Any]) -> bool:
    """Return whether a thought was ended from outside (no policy ends one so)."""
    return isinstance(action, Close) and action.forced and action.finish == "stop"


def _marks_thought(prefilled: Sequence[ActionCompleted]) -> bool:
    """Return whether a model marks its thought; true if no prefill was answered."""
    answers = [result.answer for result in prefilled if isinstance(result.answer, Generation)]
    return any(answer.thinks for answer in answers) or not answers


def _brief(value: Any) -> str:
    """Format an action for a message: its fields that differ from their defaults."""
    items = ((spec, getattr(value, spec.name)) for spec in fields(value))
    parts = (
        f"{spec.name}={_brief_field(item)}"
        for spec, item in items
        if item != spec.default and spec.name not in ("turns", "labels")
    )
    return f"{type(value).__name__}({', '.join(parts)})"


def _brief_field(item: Any) -> str:
    match item:
        case Transcript():
            phase = "the answer" if item.closed else "the thought"
            return f"after {len(item.thought) + len(item.answer)} segments, in {phase}"
        case Segment():
            return f"{item.author}: {item.text[:40]!r}"
        case Action() | StopCriteria():
            return _brief(item)
    return str(item)
