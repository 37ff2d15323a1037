"""Places are shared fairly between those who ask, and a refusal says when to come again."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack

import pytest

from orchestrator.errors import InvalidRequest, WorkerError
from orchestrator.http.admission import Admission
from orchestrator.http.errors import LIMIT, MOST_RETRY_AFTER_S, RESET, HttpError

pytestmark = pytest.mark.virtual_time


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
        except HttpError as error:
            refused[owner] += error.status == 429
            later.append(int(error.headers["retry-after"]))

    await asyncio.gather(*(ask(owner) for owner, count in asked.items() for _ in range(count)))
    assert all(1 <= one <= MOST_RETRY_AFTER_S for one in later)
    return answered, refused


async def used(places: int, took_s: float) -> Admission:
    """Places that have been taken for so long each, by a clock that stands still since then."""
    now = 0.0
    admission = Admission(places, wait_s=5, clock=lambda: now)
    for _ in range(60):
        async with admission.place("before"):
            now += took_s
    return admission


async def test_a_flood_leaves_another_key_its_share() -> None:
    admission = Admission(8, wait_s=5)
    answered, refused = await flood(admission, {"loud": 90, "quiet": 6})
    assert answered["quiet"] == 6
    assert refused["loud"] > 50
    assert admission.live == 0


async def test_who_has_less_than_its_share_waits_longer_than_who_has_more() -> None:
    admission = Admission(4, wait_s=0.05)
    answered, refused = await flood(admission, {"loud": 8, "quiet": 2}, took_s=0.12)
    assert answered == {"loud": 4, "quiet": 2}
    assert refused == {"loud": 4}


async def test_who_has_less_than_its_share_waits_not_for_ever() -> None:
    admission = Admission(2, wait_s=0.01)
    answered, refused = await flood(admission, {"loud": 2, "quiet": 1}, took_s=0.5)
    assert (answered, refused) == ({"loud": 2}, {"quiet": 1})


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
        with pytest.raises(HttpError):
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
        with pytest.raises(HttpError):
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
    admission = await used(4, took_s=10)
    assert admission.retry_after_s() == 5  # ten seconds alone, four at a time twice as many
    async with admission.place("a", 4):
        waiting = [asyncio.create_task(flood(admission, {"b": 1})) for _ in range(2)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert admission.retry_after_s() == 15
    await asyncio.gather(*waiting)


async def test_when_to_come_again_goes_by_the_pace_of_a_line_once_there_was_one() -> None:
    now, holding = 0.0, list[asyncio.Event]()
    admission = Admission(2, wait_s=60, clock=lambda: now)

    async def ask() -> None:
        async with admission.place("a"):
            holding.append(asyncio.Event())
            await holding[-1].wait()

    asking = [asyncio.create_task(ask()) for _ in range(3)]
    await asyncio.sleep(0)
    assert admission.retry_after_s() == 2  # a second alone is more of two at a time
    for _ in range(60):  # another place every three seconds
        asking.append(asyncio.create_task(ask()))
        await asyncio.sleep(0)
        now += 3
        holding.pop(0).set()
        for _ in range(3):
            await asyncio.sleep(0)
    assert admission.retry_after_s() == 6  # behind the one that waits
    assert admission.retry_after_s(cost=2) == 9
    for one in asking:
        one.cancel()
    await asyncio.wait(asking)


async def test_the_pace_is_that_of_requests_that_end_while_most_places_are_taken() -> None:
    now = 0.0
    admission = Admission(4, wait_s=60, clock=lambda: now)

    async def together(count: int, took_s: float) -> None:
        nonlocal now
        async with AsyncExitStack() as taken:
            for _ in range(count):
                await taken.enter_async_context(admission.place("a"))
            now += took_s

    for _ in range(40):
        await together(4, took_s=12)
    assert admission.retry_after_s() == 3
    for _ in range(40):
        await together(2, took_s=400)  # half of them: whoever came found one
    assert admission.retry_after_s() == 3
    for _ in range(40):
        await together(4, took_s=40)
    assert admission.retry_after_s() == 10


async def test_a_quick_one_or_one_that_fails_says_little_of_the_pace() -> None:
    now = 0.0
    admission = Admission(64, wait_s=60, clock=lambda: now)
    assert admission.retry_after_s(cost=64) == 8  # the guess
    async with admission.place("a", 63):
        async with admission.place("a"):
            now += 0.02
        for _ in range(200):
            with pytest.raises(WorkerError):
                async with admission.place("a"):
                    raise WorkerError("gone")
            async with admission.place("a") as hung_up:
                hung_up.broke_off = True
        assert admission.retry_after_s(cost=64) == 5
        for _ in range(16):
            async with admission.place("a"):
                now += 3.5
        assert 3 < admission.retry_after_s(cost=64) <= 4


@pytest.mark.parametrize("wait_s", [0.0, 0.01])
@pytest.mark.parametrize(("cost", "limit"), [(1, "30"), (2, "15"), (4, "8")])
async def test_a_refusal_says_how_many_like_it_find_places_in_a_minute(
    wait_s: float, cost: int, limit: str
) -> None:
    now = 0.0
    admission = Admission(4, wait_s, clock=lambda: now)
    for _ in range(60):
        async with admission.place("before", 4):
            now += 8
    async with admission.place("loud", 4):
        with pytest.raises(HttpError) as refused:
            async with admission.place("loud", cost):
                pass
        assert refused.value.headers[LIMIT] == limit  # two seconds a place


async def test_one_key_has_so_many_prompt_tokens_live_and_another_its_own() -> None:
    now = 0.0
    admission = Admission(8, 5, lambda: now, prompt_tokens=100)
    async with admission.place("a", prompt=60) as first:
        async with admission.place("b", prompt=60):  # another key
            pass
        with pytest.raises(HttpError, match="60 tokens and this one has about 50: 100") as no:
            async with admission.place("a", prompt=50):
                pass
        assert (no.value.status, no.value.code) == (429, "rate_limit_exceeded")
        first.prompt = 20  # as it was read
        async with admission.place("a", prompt=50):
            assert admission.live == 2
    async with admission.place("a", prompt=100):
        assert admission.live == 1


async def test_a_prompt_beyond_the_limit_is_answered_alone() -> None:
    admission = Admission(8, 5, prompt_tokens=100)
    async with admission.place("a", prompt=500):
        with pytest.raises(HttpError):
            async with admission.place("a", prompt=1):
                pass


async def test_prompts_that_wait_count_and_those_that_are_refused_do_not() -> None:
    admission = Admission(1, wait_s=0.05, prompt_tokens=100)
    async with admission.place("a", prompt=10):
        waiting = asyncio.create_task(admission.place("b", prompt=90).__aenter__())
        await asyncio.sleep(0)
        with pytest.raises(HttpError, match="about 20"):
            async with admission.place("b", prompt=20):
                pass
        with pytest.raises(HttpError, match="too many requests"):
            await waiting
    async with admission.place("b", prompt=100):
        assert admission.live == 1


async def test_who_has_too_many_prompt_tokens_is_told_when_enough_of_them_are_answered() -> None:
    now = 0.0
    admission = Admission(8, 5, lambda: now, prompt_tokens=100)
    for _ in range(200):  # answers take 20 s
        async with admission.place("z"):
            now += 20
    async with admission.place("a", prompt=40):
        now += 5
        async with admission.place("a", prompt=60):
            for prompt, after_s in ((40, 15), (50, 20)):  # the first is done in 15 s
                with pytest.raises(HttpError) as no:
                    async with admission.place("a", prompt=prompt):
                        pass
                assert int(no.value.headers["retry-after"]) in (after_s, after_s + 1)


async def test_of_one_key_the_lowest_priority_is_first_and_no_other_key_waits_for_it() -> None:
    admission, order = Admission(3, wait_s=5), list[str]()

    async def ask(name: str, owner: str, priority: int = 0) -> None:
        async with admission.place(owner, 3, priority=priority):
            order.append(name)
            await asyncio.sleep(0.001)

    asked = [("first", "a", 9), ("late", "a", 5), ("early", "a", -5)]
    tasks = [asyncio.create_task(ask(*one)) for one in asked]
    await asyncio.sleep(0)
    await asyncio.gather(*tasks)
    assert order == ["first", "early", "late"]
    order.clear()
    tasks = [
        asyncio.create_task(ask(*one)) for one in [("b", "b", 9), ("c", "c", 7), ("a", "a", -99)]
    ]
    await asyncio.gather(*tasks)
    assert order == ["b", "c", "a"]  # in the order in which they came


async def test_the_last_by_priority_is_pushed_out() -> None:
    admission = Admission(1, wait_s=5)
    done, refused = list[int](), list[int]()

    async def ask(priority: int) -> None:
        try:
            async with admission.place("a", 1, priority=priority):
                await asyncio.sleep(0.001)
                done.append(priority)
        except HttpError:
            refused.append(priority)

    await asyncio.gather(*map(ask, (0, 1, 7, 2)))
    assert (done, refused) == ([0, 1], [7, 2])


async def test_one_that_is_gone_when_another_comes_is_not_the_one_to_push_out() -> None:
    admission = Admission(1, wait_s=5)

    async def ask(priority: int) -> None:
        async with admission.place("a", 1, priority=priority):
            pass

    first = admission.place("a")
    await first.__aenter__()
    gone = asyncio.create_task(ask(5))
    await asyncio.sleep(0)
    comes = asyncio.create_task(ask(0))
    gone.cancel()  # and the other comes before it is told of it
    await asyncio.wait({gone})
    await first.__aexit__(None, None, None)
    await comes
    assert admission.live == 0
    async with admission.place("b"):
        assert admission.live == 1


async def test_several_prompts_of_one_request_have_no_more_tokens_than_several_requests() -> None:
    admission = Admission(8, wait_s=5, prompt_tokens=100)
    async with admission.place("a", prompt=500):  # one that is alone is never too much
        pass
    with pytest.raises(InvalidRequest, match="2 prompts have about 120 tokens together, and 100"):
        async with admission.place("a", prompt=120, prompts=2):
            pass
    async with admission.place("a", prompt=90, prompts=2):
        with pytest.raises(HttpError):
            async with admission.place("a", prompt=90, prompts=2):
                pass


async def test_wide_requests_that_do_not_fit_leave_others_their_places() -> None:
    admission = Admission(8, wait_s=60)
    async with AsyncExitStack() as narrow:
        for _ in range(6):
            await narrow.enter_async_context(admission.place("narrow"))
        wide = [asyncio.create_task(flood(admission, {"wide": 1}, cost=8)) for _ in range(2)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        for _ in range(2):
            async with admission.place("narrow"):
                assert admission.live == 7
    for answered, _ in await asyncio.gather(*wide):
        assert answered["wide"] == 1


async def test_who_would_find_no_place_in_time_is_refused_at_once() -> None:
    admission = await used(4, took_s=4)
    async with admission.place("a", 4):
        line = [asyncio.create_task(flood(admission, {"a": 1})) for _ in range(5)]
        for _ in range(4):
            await asyncio.sleep(0)
        refused = [one.result()[1] for one in line if one.done()]
    assert refused == [{"a": 1}] * 3  # four seconds for the other two
    await asyncio.gather(*line)


async def test_a_refusal_holds_until_most_of_those_that_wait_have_their_places() -> None:
    admission = await used(4, took_s=2)
    told = list[str]()

    async def ask(owner: str) -> None:
        try:
            async with admission.place(owner):
                await asyncio.sleep(60)
        except HttpError as error:
            told.append(error.headers[RESET])

    asking = [asyncio.create_task(ask("loud")) for _ in range(9)]
    await asyncio.sleep(0.01)
    assert told == ["2997ms"]  # of four that wait for four places, about a second for each
    asking.append(asyncio.create_task(ask("quiet")))
    await asyncio.sleep(0.01)
    assert told[1:] == ["2248ms"]  # of three: what it holds beyond its share becomes free, too
    for one in asking:
        one.cancel()


async def test_a_refusal_holds_for_nobody_where_no_other_waits() -> None:
    admission = Admission(1, wait_s=0.01)
    async with admission.place("loud"):
        with pytest.raises(HttpError) as refused:
            async with admission.place("loud"):
                pass
    assert refused.value.headers == {"retry-after": "1", LIMIT: "60"}
