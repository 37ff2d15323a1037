"""Fair admission of requests.

A request takes a place for each answer it wants. If too few are free it waits for a short while. A
free place goes to the owner that would then hold the fewest, not to the one that asks most often,
and among one owner's requests to the lowest `priority`. Places are kept empty for a request that
needs several only while it is within its owner's equal share. An owner with less than that share
waits longer before it is refused, since its turn is next. If too many requests wait, or more than
would get a place in time at the present pace, the last request of the owner that wants most is
refused.

There may also be a limit on the prompt tokens of one owner's live and waiting requests, since
prompts fill the workers' caches. Until a worker has read a prompt its tokens are estimated from its
bytes. An owner's only request is never refused for its tokens, unless it has several prompts.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from orchestrator.errors import InvalidRequest
from orchestrator.http.errors import RETRY_AFTER_S, HttpError, no_place, whole_seconds

_WEIGHT: Final = 0.1  # of the newest request in the mean duration
_FEWEST: Final = 8  # the mean under load covers at least this many places
_BUSY: Final = 0.75  # the service is under load if this share of the places is taken
_HELD: Final = 0.75  # a refusal holds for this share of the time until all that wait have places
_PATIENCE: Final = 10  # an owner with less than its share waits this many times as long


@dataclass(eq=False, slots=True)
class Place:
    """A request's places, held or waited for; `broke_off`: its answer did not end."""

    owner: str
    cost: int  # places
    priority: int
    prompt: int  # tokens, estimated until a worker has read it
    began: float  # seconds of the admission's clock
    broke_off: bool = False
    held: bool = False
    granted: asyncio.Future[None] = field(default_factory=asyncio.Future)
    timer: asyncio.TimerHandle | None = None


class _Durations:
    """How long requests hold their places.

    Answers that are made at once take longer than one alone. So the mean under load covers only
    requests that ended while most places were taken, about as many as there are places. It begins
    with a guess: the mean of all requests times the square root of the number of places.
    """

    def __init__(self, places: int) -> None:
        self._places = places
        self.mean_s = float(RETRY_AFTER_S)
        self._busy_s: float | None = None
        self._counted = 1  # places in the mean under load; the guess counts as one

    @property
    def _held_s(self) -> float:
        return self.mean_s * math.sqrt(self._places) if self._busy_s is None else self._busy_s

    @property
    def place_s(self) -> float:
        """Seconds from one place that becomes free to the next, under load."""
        return self._held_s / self._places  # Little's law

    def ended(self, seconds: float, cost: int, busy: bool) -> None:
        """Count a request that held `cost` places; `busy`: it ended under load."""
        if busy:
            self._counted += cost
            latest = 1 - (1 - 1 / max(self._places, _FEWEST)) ** cost
            weight = max(latest, cost / self._counted)
            self._busy_s = self._held_s + weight * (seconds - self._held_s)
        self.mean_s += _WEIGHT * (seconds - self.mean_s)


class Admission:
    """The places of one replica.

    Args:
        places: how many answers may be made at once.
        wait_s: how long a request waits for its places, up to `_PATIENCE` times as long if its
            owner has less than an equal share.
        clock: returns monotonic seconds.
        prompt_tokens: the most of one owner's live and waiting requests; None: no limit.
    """

    def __init__(
        self,
        places: int,
        wait_s: float,
        clock: Callable[[], float] = time.monotonic,
        prompt_tokens: int | None = None,
    ) -> None:
        self._places, self._wait_s, self._clock = places, wait_s, clock
        self._prompt_tokens = prompt_tokens
        self._taken = self.live = 0  # places, and requests that have theirs
        self._held = Counter[str]()  # places, by owner
        self._requests: dict[str, list[Place]] = {}  # live or waiting, by owner, as they came
        self._waiting: list[Place] = []  # in the order in which they came
        self._durations = _Durations(places)

    @asynccontextmanager
    async def place(
        self, owner: str, cost: int = 1, prompt: int = 0, priority: int = 0, *, prompts: int = 1
    ) -> AsyncIterator[Place]:
        """Wait for `cost` places for a request of `owner`; `prompt` counts the tokens of all its
        `prompts`.

        `priority` orders the waiting requests of one owner, lowest first, and no others.

        Raises:
            HttpError: 429 with Retry-After, the places were not free in time, or the owner's live
                prompts have too many tokens.
            InvalidRequest: its several prompts alone are above the limit of tokens.
        """
        mine = Place(owner, min(cost, self._places), priority, prompt, self._clock())
        self._check_prompts(mine, self._requests.get(owner, ()), prompts)
        theirs = self._requests.setdefault(owner, [])
        theirs.append(mine)
        try:
            if self._waiting or self._taken + mine.cost > self._places:
                await self._wait(mine)
            else:
                self._take(mine)
            began = self._clock()
            try:
                yield mine
                if not mine.broke_off:  # else it would have taken longer
                    busy = bool(self._waiting) or self._taken >= _BUSY * self._places
                    self._durations.ended(self._clock() - began, mine.cost, busy)
            finally:
                self._release(mine)
        finally:
            theirs.remove(mine)
            if not theirs:
                del self._requests[owner]

    def _check_prompts(self, mine: Place, theirs: Sequence[Place], prompts: int) -> None:
        """Refuse prompts that bring their owner above its limit of tokens; a single prompt that is
        its owner's only one is never refused."""
        limit, sum_ = self._prompt_tokens, sum(one.prompt for one in theirs)
        if limit is None or sum_ + mine.prompt <= limit or (not theirs and prompts == 1):
            return
        if prompts > 1 and mine.prompt > limit:
            raise InvalidRequest(
                f"prompt: {prompts} prompts have about {mine.prompt} tokens together, and {limit} "
                "at once are this key's limit; send fewer in a request",
                param="prompt",
                code="invalid_value",
            )
        left, until = sum_, mine.began
        for one in theirs:  # assume that they end in the order in which they came
            if not left or left + mine.prompt <= limit:
                break
            left -= one.prompt
            until = max(until, one.began + self._durations.mean_s)
        raise HttpError(
            429,
            f"this key's prompts that are being answered have {sum_} tokens and this one has about "
            f"{mine.prompt}: {limit} at once are its limit; try again later",
            code="rate_limit_exceeded",
            headers={"retry-after": str(whole_seconds(until - mine.began))},
        )

    @property
    def load(self) -> float:
        """The places that are taken or waited for, as a share of all."""
        return (self._taken + sum(one.cost for one in self._waiting)) / self._places

    def retry_after_s(self, cost: int = 1) -> int:
        """Seconds until a request for `cost` places should find them, after those that wait now, at
        the present pace."""
        wanted = sum(one.cost for one in self._waiting) + cost
        return whole_seconds(self._durations.place_s * wanted)

    async def _wait(self, mine: Place) -> None:
        if not self._wait_s:
            raise self._refusal(mine)
        self._set_timer(mine, _PATIENCE)
        self._waiting.append(mine)
        try:
            self._forget_gone()
            self._shorten()
            self._grant()
            await mine.granted
        except asyncio.CancelledError:
            if mine.held:
                self._release(mine)
            raise
        finally:
            if mine.timer is not None:
                mine.timer.cancel()
            if mine in self._waiting:
                self._waiting.remove(mine)
                self._grant()  # a smaller request may have waited for this one

    def _set_timer(self, one: Place, times: int) -> None:
        later = asyncio.get_running_loop().call_later
        one.timer = later(self._wait_s, self._time_out, one, times)

    def _time_out(self, one: Place, times: int) -> None:
        """Refuse a request that has waited; up to `times`, let it wait again if its owner has less
        than its share."""
        if one.granted.done():
            return
        if times > 1 and self._with(one) <= self._share():
            self._set_timer(one, times - 1)
        else:
            self._refuse(one)
            self._grant()  # a smaller request may have waited for this one

    def _shorten(self) -> None:
        """Refuse the last waiting request of the owner that holds and wants most, if more requests
        wait than there are places, or than get one in time and that owner has its share."""
        wanted = self._held.copy()
        for one in self._waiting:
            wanted[one.owner] += one.cost
        owner = max(reversed(self._waiting), key=lambda one: wanted[one.owner]).owner
        theirs = [one for one in reversed(self._waiting) if one.owner == owner]
        last = max(theirs, key=lambda one: one.priority)
        wanted_s = self._durations.place_s * sum(one.cost for one in self._waiting)
        has_share = len(self._waiting) > 1 and self._with(last) > self._share()
        if len(self._waiting) > self._places or (wanted_s > self._wait_s and has_share):
            self._refuse(last)

    def _refuse(self, one: Place) -> None:
        self._waiting.remove(one)
        one.granted.set_exception(self._refusal(one))

    def _share(self) -> float:
        owners = (+self._held).keys() | {one.owner for one in self._waiting}
        return self._places / max(1, len(owners))

    def _grant(self) -> None:
        """Give free places to those owners that would then hold the fewest."""
        self._forget_gone()
        while (one := self._next()) is not None:
            self._waiting.remove(one)
            self._take(one)
            one.granted.set_result(None)

    def _next(self) -> Place | None:
        """Return the request that gets places now, if any. A request that does not fit keeps free
        places for itself while it is within its owner's equal share; else smaller ones pass it."""
        firsts = dict[str, Place]()
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

    def _with(self, one: Place) -> int:
        return self._held[one.owner] + one.cost

    def _forget_gone(self) -> None:
        # A request cancelled in this turn of the event loop is listed until its task runs.
        self._waiting = [one for one in self._waiting if not one.granted.done()]

    def _take(self, one: Place) -> None:
        one.held = True
        self.live += 1
        self._taken += one.cost
        self._held[one.owner] += one.cost

    def _release(self, one: Place) -> None:
        self.live -= 1
        self._taken -= one.cost
        self._held[one.owner] -= one.cost
        self._grant()

    def _refusal(self, refused: Place) -> HttpError:
        """Return the 429 of a request. If others of its owner wait, it holds until few of them are
        left, so that no place is empty while the client waits to retry."""
        waiting = sum(one.cost for one in self._waiting if one.owner == refused.owner)
        places = max(self._share(), self._held[refused.owner])  # the owner's, in future
        place_s = self._durations.place_s * self._places / places
        holds_s = _HELD * min(self._wait_s, place_s * waiting)
        return no_place(self.retry_after_s(refused.cost), holds_s, place_s * refused.cost)
