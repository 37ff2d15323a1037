"""A request whose thought is ended from outside: the answer follows at once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from orchestrator.loop.actions import Generate, Script, Write
from orchestrator.loop.events import Event, RequestCompleted, TextDelta
from orchestrator.loop.policy import Policy
from orchestrator.loop.request import Hurry
from orchestrator.types import StopCriteria, Transcript
from policies import POLICIES
from tests.orchestrator.loop.solving import Workers, both, heard, start
from tests.orchestrator.waiting import until
from tests.workers.scripted import Say, Scripted


def endless(**more: Any) -> Scripted:
    """Counts in its thought as long as it may; answers 7."""

    def line(transcript: Transcript, criteria: StopCriteria) -> Say:
        if transcript.closed:
            return Say("7", "eos")
        begun = len(transcript.thought)
        return Say("".join(f"Step {begun}.{i} it is.\n\n" for i in range(500)))

    return Scripted(line, **more)


async def answered(policy: Policy, workers: Workers, count: int) -> list[Event]:
    """Set the hurry after `count` pieces of text."""
    hurry, seen, events = Hurry(), 0, list[Event]()
    async for event in start(policy, workers, hurry=hurry):
        events.append(event)
        seen += isinstance(event, TextDelta)
        if seen == count:
            hurry.set()
    return events


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("count", [1, 5])
async def test_every_policy_answers_now(name: str, count: int) -> None:
    policy, worker = POLICIES[name](), endless()
    events = await answered(policy, both(worker), count)
    ended = events[-1]
    assert isinstance(ended, RequestCompleted)
    transcript = ended.transcript
    assert (transcript.forced, transcript.finish, transcript.done) == (True, "stop", True)
    assert transcript.reply == "7"
    assert 0 < transcript.thought.tokens < 1000
    assert worker.live == 0


async def test_a_draft_that_runs_is_given_up() -> None:
    hurry, slow = Hurry(), endless(delay=3600)
    workers = {"small": slow, "large": endless()}
    reading = asyncio.create_task(heard(POLICIES["specreason"](), workers, hurry=hurry))
    await until(lambda: slow.live == 1)
    hurry.set()
    _, ended = await reading
    assert (ended.transcript.text, ended.transcript.reply) == ("", "7")
    assert slow.live == 0


@pytest.mark.parametrize(
    "large",
    [Scripted(story=("So.", "7 or 8 or 9")), Scripted(story=("", "7 or 8"), thinks=False)],
)
async def test_an_answer_that_is_written_continues(large: Scripted) -> None:
    hurry, hurried = Hurry(), list[Event]()
    _, whole = await heard(POLICIES["large-only"](), {"large": large})
    async for event in start(POLICIES["large-only"](), {"large": large}, hurry=hurry):
        hurried.append(event)
        if isinstance(event, TextDelta) and event.phase == "answer":
            hurry.set()
    assert isinstance(hurried[-1], RequestCompleted)
    assert hurried[-1].transcript == whole.transcript


async def test_a_hurry_before_the_first_step_leaves_no_thought_to_write() -> None:
    class Drafts(Policy):
        def solve(self, transcript: Transcript) -> Script[None]:
            while transcript.is_open:
                yield from Generate("small", transcript, StopCriteria(8))
            yield from Write("large", transcript, StopCriteria(8))

    hurry = Hurry()
    hurry.set()
    workers = {"small": endless(delay=3600), "large": endless()}
    _, ended = await heard(Drafts(), workers, hurry=hurry)
    assert (ended.transcript.text, ended.transcript.reply) == ("", "7")
