"""Places are shared fairly between those who ask, and a refusal says when to come again."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack, suppress
from typing import Any

import pytest

from orchestrator.errors import InvalidRequest, WorkerError
from orchestrator.http.admission import Admission
from orchestrator.http.errors import LIMIT, MOST_RETRY_AFTER_S, RESET, HttpError

pytestmark = pytest.mark.virtual_time


class Requests:
    """Requests for places, each by a task; owners in the order in which they were answered."""

    def __init__(
        self, places: int, wait_s: float = 5.0, took_s: float = 0.005, **more: Any
    ) -> None:
        self.now, self.took_s = 0.0, took_s
        self.admission = Admission(places, wait_s, **more)
        self.answered, self.refused = list[str](), list[HttpError]()
        self.refused_owners = list[str]()

    async def ask(self, owner: str = "a", cost: int = 1, **more: Any) -> None:
        name = more.pop("name", owner)
        try:
            async with self.admission.place(owner, cost, **more):
                self.answered.append(name)
                await asyncio.sleep(self.took_s)
        except HttpError as error:
            self.refused.append(error)
            self.refused_owners.append(name)

    async def begin(self, *owners: str, **more: Any) -> list[asyncio.Task[None]]:
        """Ask for these owners, one task each, which have come this far when this returns."""
        tasks = [asyncio.create_task(self.ask(owner, **more)) for owner in owners]
        for _ in range(3):
            await asyncio.sleep(0)
        return tasks

    async def flood(self, **counts: int) -> tuple[Counter[str], Counter[str]]:
        """Who was answered and who refused, if each owner has that many requests at once."""
        owners = [owner for owner, count in counts.items() for _ in range(count)]
        await asyncio.gather(*await self.begin(*owners))
        assert self.admission.live == 0
        for error in self.refused:
            assert error.status == 429
            assert 1 <= int(error.headers["retry-after"]) <= MOST_RETRY_AFTER_S
        return Counter(self.answered), Counter(self.refused_owners)


async def refusal(admission: Admission, owner: str = "a", *args: int, **more: int) -> HttpError:
    with pytest.raises(HttpError) as refused:
        async with admission.place(owner, *args, **more):
            pass
    return refused.value


class Clock:
    """A clock that stands still, but for what a test adds."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    async def use(
        self, admission: Admission, took_s: float, times: int = 60, cost: int = 1
    ) -> None:
        for _ in range(times):
            async with admission.place("before", cost):
                self.now += took_s


@pytest.mark.parametrize(
    ("places", "wait_s", "took_s", "answered", "refused"),
    [
        (4, 0.05, 0.12, {"loud": 4, "quiet": 2}, {"loud": 4}),  # less than its share: waits longer
        (2, 0.01, 0.5, {"loud": 2}, {"quiet": 2, "loud": 6}),  # and not for ever
    ],
)
async def test_who_has_less_than_its_share_waits_longer(
    places: int, wait_s: float, took_s: float, answered: dict[str, int], refused: dict[str, int]
) -> None:
    found = await Requests(places, wait_s, took_s).flood(loud=8, quiet=2)
    assert found == (answered, refused)


async def test_a_flood_leaves_another_key_its_share() -> None:
    answered, refused = await Requests(8).flood(loud=90, quiet=6)
    assert answered["quiet"] == 6
    assert refused["loud"] > 50


async def test_all_places_go_to_one_who_is_alone() -> None:
    requests = Requests(4)
    running = await requests.begin(*["alone"] * 8)
    assert requests.admission.live == 4
    await asyncio.gather(*running)
    assert len(requests.answered) == 8


async def test_a_place_goes_to_who_holds_least_and_a_wide_request_counts_for_what_it_is() -> None:
    requests = Requests(4)
    wide = await requests.begin(*["wide"] * 3, cost=3)
    assert requests.answered == ["wide"]  # its second needs three more places
    narrow = await requests.begin(*["narrow"] * 3)
    assert requests.answered == ["wide", "narrow"]
    await asyncio.gather(*wide, *narrow)
    assert Counter(requests.answered) == {"wide": 3, "narrow": 3}


async def test_one_that_is_wider_than_the_service_is_answered_alone() -> None:
    requests = Requests(2)
    await asyncio.gather(*await requests.begin("a", "a", cost=16))
    assert requests.answered == ["a", "a"]


@pytest.mark.parametrize("wait_s", [0.0, 0.05])
async def test_who_waits_too_long_or_goes_leaves_no_place_taken(wait_s: float) -> None:
    requests = Requests(1, wait_s)
    admission = requests.admission
    async with admission.place("a"):
        await refusal(admission, "b")
        (gone,) = await requests.begin("c")
        gone.cancel()
        await asyncio.wait({gone})
    async with admission.place("d"):
        assert admission.live == 1


@pytest.mark.parametrize("granted_first", [True, False])
async def test_a_place_that_comes_as_its_request_goes_is_given_back(granted_first: bool) -> None:
    requests = Requests(1)
    first = requests.admission.place("a")
    await first.__aenter__()
    (waiting,) = await requests.begin("b")
    if granted_first:
        await first.__aexit__(None, None, None)
    waiting.cancel()  # the task does not run yet
    if not granted_first:
        await first.__aexit__(None, None, None)
    await asyncio.wait({waiting})
    async with requests.admission.place("c"):
        assert requests.admission.live == 1


async def test_when_to_come_again_goes_by_who_waits_and_how_long_answers_take() -> None:
    clock = Clock()
    requests = Requests(4, clock=clock)
    await clock.use(requests.admission, took_s=10)
    assert requests.admission.retry_after_s() == 5  # 10 s alone, four at a time twice as many
    async with requests.admission.place("a", 4):
        waiting = await requests.begin("b", "b")
        assert requests.admission.retry_after_s() == 15
    await asyncio.gather(*waiting)


async def test_when_to_come_again_goes_by_the_pace_of_a_line_once_there_was_one() -> None:
    clock, holding = Clock(), list[asyncio.Event]()
    admission = Admission(2, wait_s=60, clock=clock)

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
        clock.now += 3
        holding.pop(0).set()
        for _ in range(3):
            await asyncio.sleep(0)
    assert admission.retry_after_s() == 6  # behind the one that waits
    assert admission.retry_after_s(cost=2) == 9
    for one in asking:
        one.cancel()
    await asyncio.wait(asking)


async def test_the_pace_is_that_of_requests_that_end_while_most_places_are_taken() -> None:
    clock = Clock()
    admission = Admission(4, wait_s=60, clock=clock)
    # Half of the places: whoever came found one.
    for count, took_s, after_s in ((4, 12, 3), (2, 400, 3), (4, 40, 10)):
        for _ in range(40):
            async with AsyncExitStack() as taken:
                for _ in range(count):
                    await taken.enter_async_context(admission.place("a"))
                clock.now += took_s
        assert admission.retry_after_s() == after_s


async def test_a_quick_one_or_one_that_fails_says_little_of_the_pace() -> None:
    clock = Clock()
    admission = Admission(64, wait_s=60, clock=clock)
    assert admission.retry_after_s(cost=64) == 8  # the guess
    async with admission.place("a", 63):
        await clock.use(admission, 0.02, times=1)
        for _ in range(200):
            with suppress(WorkerError):
                async with admission.place("a"):
                    raise WorkerError("gone")
            async with admission.place("a") as hung_up:
                hung_up.broke_off = True
        assert admission.retry_after_s(cost=64) == 5
        await clock.use(admission, 3.5, times=16)
        assert 3 < admission.retry_after_s(cost=64) <= 4


@pytest.mark.parametrize("wait_s", [0.0, 0.01])
@pytest.mark.parametrize(("cost", "limit"), [(1, "30"), (2, "15"), (4, "8")])
async def test_a_refusal_says_how_many_like_it_find_places_in_a_minute(
    wait_s: float, cost: int, limit: str
) -> None:
    clock = Clock()
    admission = Admission(4, wait_s, clock=clock)
    await clock.use(admission, 8, cost=4)
    async with admission.place("loud", 4):
        assert (await refusal(admission, "loud", cost)).headers[LIMIT] == limit  # 2 s a place


async def test_one_key_has_so_many_prompt_tokens_live_and_another_its_own() -> None:
    admission = Admission(8, 5, prompt_tokens=100)
    async with admission.place("a", prompt=60) as first:
        async with admission.place("b", prompt=60):  # another key
            pass
        no = await refusal(admission, prompt=50)
        assert "60 tokens and this one has about 50: 100" in no.message
        assert (no.status, no.code) == (429, "rate_limit_exceeded")
        first.prompt = 20  # as it was read
        async with admission.place("a", prompt=50):
            assert admission.live == 2
    async with admission.place("a", prompt=500):  # a prompt beyond the limit is answered alone
        await refusal(admission, prompt=1)


async def test_prompts_that_wait_count_and_those_that_are_refused_do_not() -> None:
    requests = Requests(1, wait_s=0.05, prompt_tokens=100)
    async with requests.admission.place("a", prompt=10):
        waiting = await requests.begin("b", prompt=90)
        assert "about 20" in (await refusal(requests.admission, "b", prompt=20)).message
        await asyncio.gather(*waiting)
        assert "too many requests" in requests.refused[0].message
    async with requests.admission.place("b", prompt=100):
        assert requests.admission.live == 1


async def test_who_has_too_many_prompt_tokens_is_told_when_enough_of_them_are_answered() -> None:
    clock = Clock()
    admission = Admission(8, 5, clock, prompt_tokens=100)
    await clock.use(admission, 20, times=200)
    async with admission.place("a", prompt=40):
        clock.now += 5
        async with admission.place("a", prompt=60):
            for prompt, after_s in ((40, 15), (50, 20)):  # the first is done in 15 s
                no = await refusal(admission, prompt=prompt)
                assert int(no.headers["retry-after"]) in (after_s, after_s + 1)


async def test_several_prompts_of_one_request_have_no_more_tokens_than_several_requests() -> None:
    admission = Admission(8, wait_s=5, prompt_tokens=100)
    with pytest.raises(InvalidRequest, match="2 prompts have about 120 tokens together, and 100"):
        async with admission.place("a", prompt=120, prompts=2):
            pass
    async with admission.place("a", prompt=90, prompts=2):
        await refusal(admission, prompt=90, prompts=2)


async def test_of_one_key_the_lowest_priority_is_first_and_no_other_key_waits_for_it() -> None:
    async def order(*asked: tuple[str, str, int]) -> list[str]:
        requests, tasks = Requests(3), list[asyncio.Task[None]]()
        for name, owner, priority in asked:
            tasks += await requests.begin(owner, cost=3, priority=priority, name=name)
        await asyncio.gather(*tasks)
        return requests.answered

    own = [("first", "a", 9), ("late", "a", 5), ("early", "a", -5)]
    assert await order(*own) == ["first", "early", "late"]
    others = [("b", "b", 9), ("c", "c", 7), ("a", "a", -99)]
    assert await order(*others) == ["b", "c", "a"]  # in the order in which they came


async def test_the_last_by_priority_is_pushed_out() -> None:
    requests = Requests(1)
    asked = [requests.ask("a", priority=one, name=str(one)) for one in (0, 1, 7, 2)]
    await asyncio.gather(*asked)
    assert (requests.answered, requests.refused_owners) == (["0", "1"], ["7", "2"])


async def test_one_that_is_gone_when_another_comes_is_not_the_one_to_push_out() -> None:
    requests = Requests(1)
    async with requests.admission.place("a"):
        (gone,) = await requests.begin("a", priority=5)
        comes = asyncio.create_task(requests.ask("a"))
        gone.cancel()  # and the other comes before it is told of it
        await asyncio.wait({gone})
    await comes
    assert (requests.answered, requests.refused) == (["a"], [])
    async with requests.admission.place("b"):
        assert requests.admission.live == 1


async def test_wide_requests_that_do_not_fit_leave_others_their_places() -> None:
    requests = Requests(8, wait_s=60)
    async with AsyncExitStack() as narrow:
        for _ in range(6):
            await narrow.enter_async_context(requests.admission.place("narrow"))
        wide = await requests.begin("wide", "wide", cost=8)
        for _ in range(2):
            async with requests.admission.place("narrow"):
                assert requests.admission.live == 7
    await asyncio.gather(*wide)
    assert requests.answered == ["wide", "wide"]


async def test_who_would_find_no_place_in_time_is_refused_at_once() -> None:
    clock = Clock()
    requests = Requests(4, clock=clock)
    await clock.use(requests.admission, 4)
    async with requests.admission.place("a", 4):
        line = await requests.begin(*["a"] * 5)
        await asyncio.sleep(0)
        assert len(requests.refused) == 3  # four seconds for the other two
    await asyncio.gather(*line)


async def test_a_refusal_holds_until_most_of_those_that_wait_have_their_places() -> None:
    clock = Clock()
    requests = Requests(4, took_s=60, clock=clock)
    await clock.use(requests.admission, 2)
    asking = await requests.begin(*["loud"] * 9)
    await asyncio.sleep(0.01)
    # Four wait for four places, about a second for each.
    assert [one.headers[RESET] for one in requests.refused] == ["2997ms"]
    asking += await requests.begin("quiet")
    await asyncio.sleep(0.01)
    # Three wait: what it holds beyond its share becomes free, too.
    assert [one.headers[RESET] for one in requests.refused[1:]] == ["2248ms"]
    for one in asking:
        one.cancel()


async def test_a_refusal_holds_for_no_other_if_no_other_waits() -> None:
    admission = Admission(1, wait_s=0.01)
    async with admission.place("loud"):
        refused = await refusal(admission, "loud")
    assert refused.headers == {"retry-after": "1", LIMIT: "60"}
