"""Tests of policies: a test plays the workers, answer by answer; or scripted workers do."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.errors import WorkerUnavailable
from orchestrator.loop.actions import Action, Generate, WorkerName, Write
from orchestrator.loop.events import RequestCompleted
from orchestrator.loop.policy import Policy
from orchestrator.loop.request import Request
from orchestrator.loop.solve import solve
from orchestrator.types import (
    Classification,
    Finish,
    Generation,
    Message,
    Segment,
    StopCriteria,
    Transcript,
)
from orchestrator.worker import Worker
from policies.judge import DIGITS

TRACE = Transcript((Message("user", "2+2?"),))
GONE = WorkerUnavailable("gone")
STEP = StopCriteria(512, until=("\n\n",))


def step(author: Any, text: str, finish: Finish = "until", logprob: float = -0.1) -> Segment:
    size = len(text.split())
    return Segment(author, text, tuple(range(size)), (logprob,) * size, finish=finish)


def draft(text: str, finish: Finish = "until", logprob: float = -0.1) -> Generation:
    return Generation(step("small", text, finish, logprob))


def digit(score: int) -> Classification:
    return Classification(DIGITS, tuple(float(label == str(score)) for label in DIGITS), 0.0)


class Play:
    """Drives a script without an event loop: `play(answer)` gives the next action.

    `first` is the first action, `asked` the latest.
    """

    def __init__(self, policy: Policy, transcript: Transcript = TRACE) -> None:
        self.script = policy.solve(transcript)
        self.first: Any = next(self.script)
        self.asked: Any = self.first

    def __call__(self, reply: Any) -> Any:
        if isinstance(reply, BaseException):
            self.asked = self.script.throw(reply)
        else:
            self.asked = self.script.send(reply)
        return self.asked


def drafted(play: Play, *steps: Segment) -> Any:
    """Let the small model draft these steps from the beginning; return what is asked then."""
    transcript = TRACE
    for one in steps:
        assert play.asked == Generate("small", transcript, STEP)
        play(Generation(one))
        transcript = transcript.extend(one)
    return play.asked


def writes(action: Action[Any], worker: str, transcript: Transcript | None = None) -> bool:
    """Return whether an action lets this worker write, from this transcript if one is given."""
    return (
        isinstance(action, Write)
        and action.worker == worker
        and transcript in (None, action.transcript)
    )


def ends(play: Play, reply: Any) -> bool:
    """Return whether a policy ends with this reply."""
    with pytest.raises(StopIteration):
        play(reply)
    return True


def result(script: Any, *replies: Any) -> Any:
    """Return the result of a part of a policy that gets these replies."""
    try:
        next(script)
        for reply in replies:
            script.send(reply)
    except StopIteration as ended:
        return ended.value
    raise AssertionError("the script has not ended")


async def run(
    policy: Policy, small: Worker, large: Worker, question: str = "2+2+2?"
) -> RequestCompleted:
    """The end of a request in the step loop."""
    workers: dict[WorkerName, Worker] = {"small": small, "large": large}
    messages = (Message("user", question),)
    events = solve(policy, Request("r", messages), workers)
    *_, ended = [event async for event in events]
    assert isinstance(ended, RequestCompleted)
    return ended


def said(ended: RequestCompleted) -> tuple[str, str]:
    """The texts of the thought and of the answer."""
    return ended.transcript.text, "".join(part.text for part in ended.transcript.answer)
