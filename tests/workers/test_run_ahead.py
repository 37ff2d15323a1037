"""What runs ahead of calls, and ends with them."""

from __future__ import annotations

import asyncio

import pytest

from orchestrator.types import Message, Transcript
from orchestrator.worker import Call
from tests.orchestrator.waiting import until
from workers.backend import Prompt
from workers.run_ahead import GenerationsAhead


class Slow:
    """A generation whose end takes time."""

    form = None

    def __init__(self) -> None:
        self.begun, self.may_end = asyncio.Event(), asyncio.Event()

    async def leads_to(self, ids: list[int]) -> bool:
        return True

    async def close(self) -> None:
        self.begun.set()
        await self.may_end.wait()


def prompt(request: str) -> Prompt:
    return Prompt(Call(request, Transcript((Message("user", "?"),))), [1], 1)


async def test_a_caller_that_leaves_while_others_end_ends_its_own() -> None:
    ahead, mine, other = GenerationsAhead[Slow](9), Slow(), Slow()
    ahead.keep(prompt("mine"), [mine])
    ahead.keep(prompt("other"), [other])
    asked = asyncio.create_task(ahead.adopt(prompt("mine"), None))
    await other.begun.wait()
    asked.cancel()
    await until(mine.begun.is_set)
    mine.may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await asked
