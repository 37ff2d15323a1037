"""Places are shared fairly between those who ask, and a refusal says when to come again."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from orchestrator.http.admission import MOST_RETRY_AFTER_S, Admission
from orchestrator.http.errors import RequestRefused
from policies import POLICIES


async def flood(
    admission: Admission, asked: dict[str, int], took_s: float = 0.005, cost: int = 1
) -> tuple[Counter[str], Counter[str]]:
    """Who was answered and who was refused, where each owner has that many requests at once."""
    answered, refused = Counter[str](), Counter[str]()
    later = list[int]()

    async def ask(owner: str) -> None:
        try:
            async with admission.place(owner, cost):
                await asyncio.sleep(took_s)
                answered[owner] += 1
        except RequestRefused as error:
            refused[owner] += error.status == 429
            later.append(int(error.headers["retry-after"]))

    await asyncio.gather(*(ask(owner) for owner, count in asked.items() for _ in range(count)))
    assert all(1 <= one <= MOST_RETRY_AFTER_S for one in later)
    return answered, refused


async def test_a_flood_leaves_another_key_its_share() -> None:
    admission = Admission(8, wait_s=5)
    answered, refused = await flood(admission, {"loud": 90, "quiet": 6})
    assert answered["quiet"] == 6
    assert refused["loud"] > 50
    assert admission.live == 0


async def test_all_places_go_to_one_who_is_alone() -> None:
    admission = Admission(4, wait_s=5)
    running = asyncio.create_task(flood(admission, {"alone": 8}))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert admission.live == 4
    answered, _ = await running
    assert answered["alone"] == 8


async def test_a_place_goes_to_who_holds_least_and_a_wide_request_counts_for_what_it_is() -> None:
    admission, order = Admission(4, wait_s=5), list[str]()
    begin = asyncio.Event()

    async def ask(owner: str, cost: int) -> None:
        async with admission.place(owner, cost):
            order.append(owner)
            await begin.wait()

    wide = [asyncio.create_task(ask("wide", 3)) for _ in range(3)]
    await asyncio.sleep(0)
    assert order == ["wide"]  # its second needs three more places
    narrow = [asyncio.create_task(ask("narrow", 1)) for _ in range(3)]
    await asyncio.sleep(0)
    assert order == ["wide", "narrow"]
    begin.set()
    await asyncio.gather(*wide, *narrow)
    assert Counter(order) == {"wide": 3, "narrow": 3}
    assert admission.live == 0


async def test_one_that_is_wider_than_the_service_is_answered_alone() -> None:
    answered, _ = await flood(Admission(2, wait_s=5), {"a": 2}, cost=16)
    assert answered["a"] == 2


async def test_who_waits_too_long_or_goes_leaves_no_place_taken() -> None:
    admission = Admission(1, wait_s=0.05)
    async with admission.place("a"):
        with pytest.raises(RequestRefused):
            async with admission.place("b"):
                pass
        gone = asyncio.create_task(flood(admission, {"c": 1}))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.wait({gone})
    async with admission.place("d"):
        assert admission.live == 1
    at_once = Admission(1, wait_s=0)
    async with at_once.place("a"):
        with pytest.raises(RequestRefused):
            async with at_once.place("b"):
                pass


async def test_a_place_that_comes_as_its_request_goes_is_given_back() -> None:
    admission = Admission(1, wait_s=5)
    first = admission.place("a")
    await first.__aenter__()
    waiting = asyncio.create_task(flood(admission, {"b": 1}))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await first.__aexit__(None, None, None)  # granted, and not begun yet
    waiting.cancel()
    await asyncio.wait({waiting})
    assert admission.live == 0


async def test_a_place_that_becomes_free_as_its_request_goes_is_not_lost() -> None:
    admission = Admission(1, wait_s=5)
    first = admission.place("a")
    await first.__aenter__()
    waiting = asyncio.create_task(flood(admission, {"b": 1}))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    waiting.cancel()
    for task in asyncio.all_tasks() - {asyncio.current_task(), waiting}:
        task.cancel()  # those of the flood: cancelled, and not told of it yet
    await first.__aexit__(None, None, None)
    await asyncio.wait({waiting})
    assert admission.live == 0
    async with admission.place("c"):
        assert admission.live == 1


async def test_when_to_come_again_goes_by_who_waits_and_how_long_answers_take() -> None:
    now = 0.0
    admission = Admission(2, wait_s=5, clock=lambda: now)
    for _ in range(60):
        async with admission.place("a"):
            now += 10
    assert admission.retry_after_s() == 5  # ten seconds each, two at a time
    async with admission.place("a"), admission.place("a"):
        waiting = [asyncio.create_task(flood(admission, {"b": 1})) for _ in range(2)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert admission.retry_after_s() == 15
    await asyncio.gather(*waiting)


def test_several_drafts_at_once_count_as_such() -> None:
    assert POLICIES["best-of-k"](k=7).width == 7  # type: ignore[call-arg]
    assert {policy().width for name, policy in POLICIES.items() if name != "best-of-k"} == {1}
