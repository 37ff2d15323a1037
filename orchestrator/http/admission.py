"""Fair admission of requests.

A request takes a place for each answer it wants. If none is free it waits for a short while. A free
place goes to the owner that would then hold the least, not to the one that asks most often, and
among one owner's requests to the lowest `priority`. Places stay empty for a request that needs
several only while it is within its owner's equal share. An owner with less than that share waits
longer before it is refused, since its turn is next. When more wait than may, or than would find a
place in time at the present pace, the last request of the owner that asks for most is refused.

There may also be a limit on the prompt tokens of one owner's live and waiting requests, since
prompts fill the workers' caches. Until a worker has read a prompt its tokens are estimated from its
bytes. An owner's only request is never refused for them, unless it has several prompts.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from orchestrator.errors import InvalidRequest
from orchestrator.http.errors import MOST_RETRY_AFTER_S, RETRY_AFTER_S, HttpError, no_place

_WEIGHT: Final = 0.1  # of the newest request in the mean duration
_FEWEST: Final = 8  # places over which the mean under load is made
_BUSY: Final = 0.75  # of the places: "most" of them
_HELD: Final = 0.75  # of the time until those that wait have places, a refusal holds
_PATIENCE: Final = 10  # times as long waits an owner with less than its share


@dataclass(eq=False, slots=True)
class Place:
    """A request's place, or its claim to one. `prompt` is in tokens, estimated until it is read;
    `began` in seconds of the admission's clock. `broke_off`: its answer did not end."""

    prompt: int
    began: float
    broke_off: bool = False


@dataclass(eq=False, slots=True)
class _Waiting:
    owner: str
    cost: int
    priority: int
    granted: asyncio.Future[None] = field(default_factory=asyncio.Future)
    timer: asyncio.TimerHandle | None = None


class _Durations:
    """How long places are held.

    Answers that are made side by side take longer than one alone. So what a place takes when places
    are wanted is the mean over requests that ended while most were taken, about as many as there
    are places. The mean begins with one guess: that side by side they take longer by the square
    root of their number.
    """

    def __init__(self, places: int) -> None:
        self._places = places
        self.mean_s = float(RETRY_AFTER_S)
        self._busy_s: float | None = None
        self._counted = 1  # places in that mean; the guess is one

    @property
    def place_s(self) -> float:
        """Seconds from one place that becomes free to the next, when places are wanted."""
        return self._held_s / self._places  # Little's law

    @property
    def _held_s(self) -> float:
        if self._busy_s is None:
            return self.mean_s * math.sqrt(self._places)
        return self._busy_s

    def ended(self, seconds: float, cost: int, busy: bool) -> None:
        """A request that had `cost` places for so long, `busy`: while most were taken."""
        if busy:
            self._counted += cost
            latest = 1 - (1 - 1 / max(self._places, _FEWEST)) ** cost
            weight = max(latest, cost / self._counted)
            self._busy_s = self._held_s + weight * (seconds - self._held_s)
        self.mean_s += _WEIGHT * (seconds - self.mean_s)


class Admission:
    """The places of one replica.

    Args:
        places: for requests of one call at a time.
        wait_s: seconds for which a request waits for its place, up to `_PATIENCE` times as long
            if its owner has less than an equal share.
        clock: seconds of a clock that only goes forward.
        prompt_tokens: that one owner may have live; None: no limit.
    """

    def __init__(
        self,
        places: int,
        wait_s: float,
        clock: Callable[[], float] = time.monotonic,
        prompt_tokens: int | None = None,
    ) -> None:
        self._prompt_tokens = prompt_tokens
        self._prompts: dict[str, list[Place]] = defaultdict(list)  # by owner, in order of arrival
        self._places, self._wait_s, self._clock = places, wait_s, clock
        self._taken, self._live = 0, 0
        self._held: dict[str, int] = defaultdict(int)  # places, by owner
        self._waiting: list[_Waiting] = []  # in the order in which they came
        self._durations = _Durations(places)

    @property
    def live(self) -> int:
        return self._live

    @asynccontextmanager
    async def place(
        self, owner: str, cost: int = 1, prompt: int = 0, priority: int = 0, *, prompts: int = 1
    ) -> AsyncIterator[Place]:
        """`cost` places for a request of `owner`, once they are free; `prompt` is in tokens, of
        all its `prompts` together.

        `priority` orders those of one owner that wait, lowest first; between owners it says
        nothing.

        Raises:
            HttpError: 429, they were not in time, or the owner has too many prompt tokens
                live; says when to try again.
        """
        cost, live = min(cost, self._places), self._prompts[owner]
        mine = Place(prompt, self._clock())
        self._check_prompts(mine, live, prompts)
        live.append(mine)
        try:
            if self._waiting or self._taken + cost > self._places:
                await self._wait(owner, cost, priority)
            else:
                self._take(owner, cost)
            began = self._clock()
            try:
                yield mine
                # Not of one that failed, or whose client went away: it would have taken longer.
                if not mine.broke_off:
                    busy = bool(self._waiting) or self._taken >= _BUSY * self._places
                    self._durations.ended(self._clock() - began, cost, busy)
            finally:
                self._release(owner, cost)
        finally:
            live.remove(mine)
            if not live:
                self._prompts.pop(owner, None)

    def _check_prompts(self, mine: Place, live: Sequence[Place], prompts: int) -> None:
        """Refuse prompts that are too much beside those of the same owner; one that is alone is
        never too much."""
        limit, sum_ = self._prompt_tokens, sum(one.prompt for one in live)
        if limit is None or sum_ + mine.prompt <= limit or (not live and prompts == 1):
            return
        if prompts > 1 and mine.prompt > limit:
            raise InvalidRequest(
                f"prompt: {prompts} prompts have about {mine.prompt} tokens together, and {limit} "
                "at once are this key's limit; send fewer in a request",
                param="prompt",
                code="invalid_value",
            )
        left, until = sum_, mine.began
        for one in live:  # the first to come are the first to go
            if not left or left + mine.prompt <= limit:
                break
            left -= one.prompt
            until = max(until, one.began + self._durations.mean_s)
        after_s = min(max(RETRY_AFTER_S, math.ceil(until - mine.began)), MOST_RETRY_AFTER_S)
        raise HttpError(
            429,
            f"this key's prompts that are being answered have {sum_} tokens and this one has about "
            f"{mine.prompt}: {limit} at once are its limit; try again later",
            code="rate_limit_exceeded",
            headers={"retry-after": str(after_s)},
        )

    def retry_after_s(self, cost: int = 1) -> int:
        """Seconds until a request for `cost` places should find them, after those that wait, at the
        pace at which places become free."""
        wanted = sum(one.cost for one in self._waiting) + cost
        seconds = math.ceil(self._durations.place_s * wanted)
        return min(max(RETRY_AFTER_S, seconds), MOST_RETRY_AFTER_S)

    async def _wait(self, owner: str, cost: int, priority: int) -> None:
        mine = _Waiting(owner, cost, priority)
        if not self._wait_s:
            raise self._refusal(mine)
        self._time(mine, _PATIENCE)
        try:
            self._waiting.append(mine)
            self._forget_gone()
            self._shorten()
            self._grant()
            await mine.granted
        except asyncio.CancelledError:
            if _granted(mine):
                self._release(owner, cost)
            raise
        finally:
            if mine.timer is not None:
                mine.timer.cancel()
            if mine in self._waiting:
                self._waiting.remove(mine)
                self._grant()  # it may have been in the way of a smaller one

    def _time(self, one: _Waiting, times: int) -> None:
        later = asyncio.get_running_loop().call_later
        one.timer = later(self._wait_s, self._give_up, one, times)

    def _give_up(self, one: _Waiting, times: int) -> None:
        """Refuse one that has waited for long, unless its owner has less than its share."""
        if one.granted.done():
            return
        if times > 1 and self._with(one) <= self._share():
            self._time(one, times - 1)
        else:
            self._waiting.remove(one)
            one.granted.set_exception(self._refusal(one))
            self._grant()  # it may have been in the way of a smaller one

    def _shorten(self) -> None:
        """Refuse the last waiting request of the owner that holds and wants most, if more wait than
        there are places, or than find one in time although their owner has its share."""
        wanted = defaultdict(int, self._held)
        for one in self._waiting:
            wanted[one.owner] += one.cost
        owner = max(reversed(self._waiting), key=lambda one: wanted[one.owner]).owner
        theirs = [one for one in reversed(self._waiting) if one.owner == owner]
        last = max(theirs, key=lambda one: one.priority)
        wanted_s = self._durations.place_s * sum(one.cost for one in self._waiting)
        has_share = len(self._waiting) > 1 and self._with(last) > self._share()
        if len(self._waiting) > self._places or (wanted_s > self._wait_s and has_share):
            self._waiting.remove(last)
            last.granted.set_exception(self._refusal(last))

    def _share(self) -> float:
        owners = self._held.keys() | {one.owner for one in self._waiting}
        return self._places / max(1, len(owners))

    def _grant(self) -> None:
        """Give what is free to those who would then hold the least; the first of them first."""
        self._forget_gone()
        while (one := self._next()) is not None:
            self._waiting.remove(one)
            self._take(one.owner, one.cost)
            one.granted.set_result(None)

    def _next(self) -> _Waiting | None:
        """Who takes places now. What fits passes one that does not and that would bring its owner
        above an equal share; for others places are kept free until theirs are enough."""
        firsts = dict[str, _Waiting]()
        for one in self._waiting:
            first = firsts.setdefault(one.owner, one)
            if one.priority < first.priority:
                firsts[one.owner] = one
        for one in sorted(firsts.values(), key=self._with):
            if self._taken + one.cost <= self._places:
                return one
            if self._with(one) <= self._share():
                return None
        return None

    def _with(self, one: _Waiting) -> int:
        return self._held.get(one.owner, 0) + one.cost

    def _forget_gone(self) -> None:
        # Who was cancelled in this turn of the loop waits here until its task runs.
        self._waiting = [one for one in self._waiting if not one.granted.done()]

    def _take(self, owner: str, cost: int) -> None:
        self._taken += cost
        self._live += 1
        self._held[owner] += cost

    def _release(self, owner: str, cost: int) -> None:
        self._taken -= cost
        self._live -= 1
        self._held[owner] -= cost
        if not self._held[owner]:
            del self._held[owner]
        self._grant()

    def _refusal(self, refused: _Waiting) -> HttpError:
        """The 429 of a request. If others of its owner wait it holds until few of them are left, so
        that no place is empty while its client waits to ask again."""
        waiting = sum(one.cost for one in self._waiting if one.owner == refused.owner)
        places = max(self._share(), self._held.get(refused.owner, 0))  # that become free for it
        place_s = self._durations.place_s * self._places / places
        holds_s = _HELD * min(self._wait_s, place_s * waiting)
        return no_place(self.retry_after_s(refused.cost), holds_s, place_s * refused.cost)


def _granted(one: _Waiting) -> bool:
    done = one.granted.done() and not one.granted.cancelled()
    return done and one.granted.exception() is None
