"""A request whose thought is ended from outside: the answer follows at once, and it replays."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from deploy.evaluation.recording import RecordedRequest, Recording, dumps, loads
from deploy.evaluation.replay import replay
from orchestrator.loop.actions import Generate, Script, Write
from orchestrator.loop.events import Event, RequestCompleted, TextDelta
from orchestrator.loop.policy import Policy
from orchestrator.loop.request import Hurry, Request
from orchestrator.loop.solve import solve
from orchestrator.types import Message, StopCriteria, Transcript
from policies import POLICIES
from tests.orchestrator.waiting import until
from tests.workers.scripted import Say, Scripted

QUESTION = (Message("user", "?"),)


def endless(**more: Any) -> Scripted:
    """Counts in its thought as long as it may; answers 7."""

    def line(transcript: Transcript, criteria: StopCriteria) -> Say:
        if transcript.closed:
            return Say("7", "eos")
        begun = len(transcript.thought)
        return Say("".join(f"Step {begun}.{i} it is.\n\n" for i in range(500)))

    return Scripted(line, **more)


async def answered(policy: Policy, workers: dict[Any, Scripted], count: int) -> list[Event]:
    """Set the hurry after `count` pieces of text."""
    hurry, seen, events = Hurry(), 0, list[Event]()
    async for event in solve(policy, Request("r", QUESTION, hurry=hurry), workers):
        events.append(event)
        seen += isinstance(event, TextDelta)
        if seen == count:
            hurry.set()
    return events


@pytest.mark.parametrize("name", [name for name in POLICIES if name != "vote"])  # shows no thought
@pytest.mark.parametrize("count", [1, 5])
async def test_every_policy_answers_now(name: str, count: int) -> None:
    policy, both = POLICIES[name](), endless()
    events = await answered(policy, {"small": both, "large": both}, count)
    ended = events[-1]
    assert isinstance(ended, RequestCompleted)
    transcript = ended.transcript
    assert (transcript.forced, transcript.finish, transcript.done) == (True, "stop", True)
    assert transcript.reply == "7"
    assert 0 < transcript.thought.tokens < 1000
    assert both.live == 0
    kept = tuple(event for event in events if not isinstance(event, TextDelta))
    recording = loads(dumps(Recording(RecordedRequest("r", name, QUESTION), kept)))
    again = [event for event in replay(recording, policy) if not isinstance(event, TextDelta)]
    assert tuple(again) == kept


async def test_a_draft_that_runs_is_given_up() -> None:
    hurry, slow = Hurry(), endless(delay=3600)
    request = Request("r", QUESTION, hurry=hurry)
    workers: dict[Any, Scripted] = {"small": slow, "large": endless()}
    policy = POLICIES["specreason"]()
    events: list[Event] = []

    async def read() -> None:
        events.extend([event async for event in solve(policy, request, workers)])

    reading = asyncio.create_task(read())
    await until(lambda: slow.live == 1)
    hurry.set()
    await reading
    ended = events[-1]
    assert isinstance(ended, RequestCompleted)
    assert (ended.transcript.text, ended.transcript.reply) == ("", "7")
    assert slow.live == 0


async def test_an_answer_that_is_written_goes_on() -> None:
    for large in (
        Scripted(story=("So.", "7 or 8 or 9")),
        Scripted(story=("", "7 or 8"), thinks=False),
    ):
        hurry = Hurry()
        request = Request("r", QUESTION, hurry=hurry)
        whole = [e async for e in solve(POLICIES["large-only"](), request, {"large": large})]
        hurried = []
        async for event in solve(POLICIES["large-only"](), request, {"large": large}):
            hurried.append(event)
            if isinstance(event, TextDelta) and event.phase == "answer":
                hurry.set()
        assert hurried[-1].transcript == whole[-1].transcript  # type: ignore[union-attr]


async def test_a_hurry_before_the_first_step_leaves_no_thought_to_write() -> None:
    class Drafts(Policy):
        def solve(self, transcript: Transcript) -> Script[None]:
            while transcript.is_open:
                yield from Generate("small", transcript, StopCriteria(8))
            yield from Write("large", transcript, StopCriteria(8))

    hurry = Hurry()
    hurry.set()
    workers: dict[Any, Scripted] = {"small": endless(delay=3600), "large": endless()}
    request = Request("r", QUESTION, hurry=hurry)
    *_, ended = [event async for event in solve(Drafts(), request, workers)]
    assert isinstance(ended, RequestCompleted)
    assert (ended.transcript.text, ended.transcript.reply) == ("", "7")
