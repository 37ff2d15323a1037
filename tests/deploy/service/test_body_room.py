"""Large bodies that are arriving share a room; the oldest gives way, and no other does."""

from __future__ import annotations

import asyncio

import pytest

from deploy.service.body_room import BodyRoom, BodyShare
from orchestrator.http.errors import HttpError


def test_the_first_gives_way_and_leaves_its_room_to_the_others() -> None:
    room = BodyRoom(10)
    first, second, third = (BodyShare(room) for _ in range(3))
    first.grow(5)
    second.grow(4)
    third.grow(2)
    with pytest.raises(HttpError) as refused:
        first.check()
    assert (refused.value.status, refused.value.headers["retry-after"]) == (503, "1")
    second.check()
    third.check()
    first.leave()  # once more, as its request ends
    second.grow(4)  # room is left
    second.check()


def test_what_has_arrived_gives_no_way_and_leaves_in_the_end() -> None:
    room = BodyRoom(10)
    whole, late, last = (BodyShare(room) for _ in range(3))
    whole.grow(8)
    whole.arrived()
    late.grow(5)
    whole.check()
    with pytest.raises(HttpError):
        late.check()
    whole.leave()
    last.grow(10)
    last.check()


async def test_who_gives_way_waits_no_longer_and_who_is_late_anyway_breaks_none() -> None:
    room = BodyRoom(1)
    waiting, late, other = (BodyShare(room) for _ in range(3))

    async def gather() -> None:
        async with asyncio.timeout(60) as waiting.scope:
            waiting.grow(1)
            await asyncio.Event().wait()

    gathering = asyncio.create_task(gather())
    await asyncio.sleep(0)
    late.grow(1)
    with pytest.raises(TimeoutError):
        await gathering
    async with asyncio.timeout(0.1) as late.scope:
        pass  # its time cannot change any more
    other.grow(1)
    other.check()
