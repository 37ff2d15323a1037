"""A client that hangs up and a reader that is cancelled leave nothing running."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import pytest

from orchestrator.loop.actions import Action, Generate, Script, WorkerName, Write
from orchestrator.loop.events import TextDelta
from orchestrator.loop.policy import Policy
from orchestrator.loop.request import Request
from orchestrator.loop.solve import solve
from orchestrator.types import Message, StopCriteria, Transcript
from tests.orchestrator.waiting import until
from tests.workers.scripted import Scripted

QUESTION = (Message("user", "what is 2+2+2?"),)
SMALL = ("2+2 is 5.\n\nand 2 more is 7.\n\nso it is 7.", "It is seven.")
LARGE = ("2+2 is 4.\n\nand 2 more is 6.\n\nso it is 6.", "It is six.")


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


def start(policy: Policy, workers: dict[WorkerName, Scripted]) -> Any:
    return solve(policy, Request("r", QUESTION), workers)


async def test_hanging_up_leaves_nothing_running() -> None:
    before = len(asyncio.all_tasks())
    workers: dict[WorkerName, Scripted] = {
        "small": Scripted(story=SMALL),
        "large": Scripted(story=LARGE, delay=0.001),
    }
    closed: list[bool] = []
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
    workers: dict[WorkerName, Scripted] = {
        "small": Scripted(story=SMALL),
        "large": Scripted(story=LARGE, delay=10),
    }
    closed: list[bool] = []

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
