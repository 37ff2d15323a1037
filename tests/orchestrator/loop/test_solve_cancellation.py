"""A client that hangs up and a reader that is cancelled leave nothing running."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import pytest

from orchestrator.background import deadline
from orchestrator.errors import DeadlineExceeded
from orchestrator.loop.actions import Action, Generate, Script, Write
from orchestrator.loop.events import TextDelta
from orchestrator.loop.policy import Policy
from orchestrator.types import StopCriteria, Transcript
from policies.single import LargeOnly
from policies.specreason import SpecReason
from tests.orchestrator.loop.solving import LARGE, SMALL, heard, pair, start
from tests.orchestrator.waiting import until
from tests.workers.scripted import Scripted


def calling(action: type[Generate | Write], closed: list[bool]) -> Policy:
    """A policy that makes one call of the large model; notes in `closed` that it was closed."""

    class Own(Policy):
        def solve(self, transcript: Transcript) -> Script[None]:
            call: Action[Any] = action("large", transcript, StopCriteria(99))
            try:
                yield from call
            finally:
                closed.append(True)

    return Own()


async def test_hanging_up_leaves_nothing_running() -> None:
    before = len(asyncio.all_tasks())
    workers, closed = pair(delay=0.001), list[bool]()
    async with aclosing(start(calling(Write, closed), workers)) as events:
        async for event in events:
            if isinstance(event, TextDelta):
                break
        assert workers["large"].live == 1
        assert len(asyncio.all_tasks()) <= before + 1
    assert workers["small"].live == workers["large"].live == 0
    assert len(asyncio.all_tasks()) == before
    assert closed == [True]


@pytest.mark.parametrize("action", [Generate, Write])
async def test_cancelling_the_reader_leaves_nothing_running(
    action: type[Generate | Write],
) -> None:
    before = len(asyncio.all_tasks())
    workers, closed = pair(delay=10), list[bool]()

    async def read() -> None:
        async for _ in start(calling(action, closed), workers):
            pass

    reader = asyncio.create_task(read())
    await until(lambda: workers["large"].live)
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    assert [worker.live for worker in workers.values()] == [0, 0]
    assert len(asyncio.all_tasks()) == before
    assert closed == [True]


@pytest.mark.parametrize("policy", [LargeOnly(), SpecReason()])
async def test_a_deadline_leaves_nothing_running(policy: Policy) -> None:
    small, large = (Scripted(story=story, delay=0.02) for story in (SMALL, LARGE))
    with pytest.raises(DeadlineExceeded):
        async with deadline(0.05):
            await heard(policy, {"small": small, "large": large})
    assert [small.live, large.live] == [0, 0]
