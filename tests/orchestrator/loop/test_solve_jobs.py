"""Jobs that run side by side, and that nothing outlives a request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

import pytest

from orchestrator.errors import WorkerUnavailable
from orchestrator.loop.actions import (
    Accept,
    Cancel,
    First,
    Generate,
    Script,
    Start,
    WorkerName,
    Write,
)
from orchestrator.loop.events import ActionCompleted, Event, RequestCompleted, TextDelta
from orchestrator.loop.policy import Policy
from orchestrator.loop.solve import solve
from orchestrator.types import Limits, Message, Sampling, StopCriteria, Transcript
from policies.steps import write_out
from workers.scripted import Scripted

pytestmark = pytest.mark.asyncio

QUESTION = (Message("user", "what is 2+2+2?"),)
SMALL = ("2+2 is 5.\n\nand 2 more is 7.\n\nso it is 7.", "It is seven.")
LARGE = ("2+2 is 4.\n\nand 2 more is 6.\n\nso it is 6.", "It is six.")
GONE = WorkerUnavailable("gone")


def pair(**large: Any) -> dict[WorkerName, Scripted]:
    return {"small": Scripted(story=SMALL), "large": Scripted(story=LARGE, **large)}


def start(policy: Policy, workers: dict[WorkerName, Scripted]) -> Any:
    return solve(policy, QUESTION, workers, request="r", sampling=Sampling(), limits=Limits())


async def run(
    policy: Policy, workers: dict[WorkerName, Scripted]
) -> tuple[list[Event], RequestCompleted]:
    events = [event async for event in start(policy, workers)]
    ended = events[-1]
    assert isinstance(ended, RequestCompleted)
    return events, ended


def scripted_policy(body: Callable[[Transcript], Script[None]]) -> Policy:
    class Own(Policy):
        def solve(self, transcript: Transcript) -> Script[None]:
            return body(transcript)

    return Own()


def race(
    names: tuple[WorkerName, WorkerName], outcome: dict[str, Any], leave: bool = False
) -> Policy:
    def body(transcript: Transcript) -> Script[None]:
        one = yield from Start(Generate(names[0], transcript, StopCriteria(99)))
        two = yield from Start(Generate(names[1], transcript, StopCriteria(99)))
        jobs = (one, two)
        job, generation = yield from First(jobs)
        outcome["winner"] = names[job.id]
        if not leave:
            for other in jobs:
                if other != job:
                    yield from Cancel(other)
        transcript = yield from Accept(transcript, generation.segment)
        yield from write_out(transcript, "large")

    return scripted_policy(body)


@pytest.mark.parametrize("leave", [False, True])
async def test_the_first_of_two_jobs_wins_and_the_other_is_charged(leave: bool) -> None:
    workers = pair(delay=0.005)
    workers["small"] = Scripted(story=SMALL, delay=0.001)
    outcome: dict[str, Any] = {}
    events, ended = await run(race(("large", "small"), outcome, leave), workers)
    assert outcome["winner"] == "small"
    assert ended.transcript.text == SMALL[0]
    cancelled = [
        e for e in events if isinstance(e, ActionCompleted) and isinstance(e.action, Cancel)
    ]
    assert len(cancelled) == 1
    assert ended.metrics.discarded_tokens == cancelled[0].answer.generated > 0
    assert [worker.live for worker in workers.values()] == [0, 0]


async def test_ties_go_to_the_job_named_first() -> None:
    outcome: dict[str, Any] = {}
    await run(race(("small", "small"), outcome), pair())
    assert outcome["winner"] == "small"


async def test_a_job_that_fails_throws_where_it_is_waited_for() -> None:
    def body(transcript: Transcript) -> Script[None]:
        job = yield from Start(Generate("small", transcript, StopCriteria(9)))
        with pytest.raises(WorkerUnavailable):
            yield from First((job,))
        yield from Cancel(job)  # harmless
        yield from write_out(transcript, "large")

    workers = pair()
    workers["small"] = Scripted(story=SMALL, failures={0: GONE})
    _, ended = await run(scripted_policy(body), workers)
    assert (ended.transcript.text, ended.transcript.answer[0].text) == LARGE


def endless(closed: list[bool]) -> Policy:
    def body(transcript: Transcript) -> Script[None]:
        try:
            yield from Start(Generate("small", transcript, StopCriteria(99)))
            yield from Write("large", transcript, StopCriteria(99))
        finally:
            closed.append(True)

    return scripted_policy(body)


async def test_hanging_up_leaves_nothing_running() -> None:
    before = len(asyncio.all_tasks())
    workers: dict[WorkerName, Scripted] = {
        "small": Scripted(story=SMALL, delay=10),
        "large": Scripted(story=LARGE, delay=0.001),
    }
    closed: list[bool] = []
    async with aclosing(start(endless(closed), workers)) as events:
        async for event in events:
            if isinstance(event, TextDelta):
                break
        assert workers["small"].live == workers["large"].live == 1
        assert len(asyncio.all_tasks()) == before + 1
    assert workers["small"].live == workers["large"].live == 0
    assert len(asyncio.all_tasks()) == before
    assert closed == [True]


@pytest.mark.parametrize("small", [0.0, 10.0])
async def test_cancelling_the_reader_leaves_nothing_running(small: float) -> None:
    before = len(asyncio.all_tasks())
    workers: dict[WorkerName, Scripted] = {
        "small": Scripted(story=SMALL, delay=small),
        "large": Scripted(story=LARGE, delay=10),
    }
    closed: list[bool] = []

    async def read() -> None:
        async for _ in start(endless(closed), workers):
            pass

    reader = asyncio.create_task(read())
    async with asyncio.timeout(5):
        while workers["large"].live < 1:
            await asyncio.sleep(0.005)
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    assert [worker.live for worker in workers.values()] == [0, 0]
    assert len(asyncio.all_tasks()) == before
    assert closed == [True]
