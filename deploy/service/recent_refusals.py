"""API keys whose last request got 429: the proxy gives their next ones the same answer.

An orchestrator must read a request to refuse it, and Serve carries it there and back. Under a flood
that takes the capacity of real answers. So the proxy repeats a refusal for as long as it says that
it holds: until most of the key's waiting requests should have a place, so that no place stays
empty. One orchestrator's refusal holds for all, since Serve spreads the load evenly. Requests of
other keys pass, and so do those that ask for several places (`n`, several prompts) or name a
`priority`.

Each refused request of a key gets a different `Retry-After`, its turn: one after the other, as fast
as that orchestrator finds places for the key. With the same second for all, all but a few would be
refused again. Turns reach `TURNS_S` ahead, since new requests take places as well and not every
client retries; later retries are spread at random over the second half of that time.
"""

from __future__ import annotations

import hashlib
import math
import random
import re
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from cachetools import LRUCache, TLRUCache
from starlette.datastructures import Headers
from starlette.types import Message, Scope

from orchestrator.http.api import APIS, credentials
from orchestrator.http.errors import (
    LIMIT,
    MOST_RETRY_AFTER_S,
    NO_PLACE,
    RESET,
    RETRY_AFTER_S,
    no_place,
)

MOST_S: Final = 1.0  # the longest that a refusal is repeated, whatever it says
TURNS_S: Final = 30.0  # how far ahead turns are given
UNKNOWN_S: Final = 0.1  # from one turn to the next, if no orchestrator has said it yet
KEYS: Final = 1024  # the most that are remembered
_ASKING: Final = tuple(path for api in APIS for path in api.paths)  # a request there takes places
_DIFFERENT: Final = re.compile(rb'"n"|"priority"|"prompt"\s*:\s*\[\s*["[]')
"""Parameters by which a request differs from others of its key, so that it passes."""
_MILLISECONDS: Final = re.compile(r"(\d{1,9})ms", re.ASCII)
_NUMBER: Final = re.compile(r"\d{1,9}", re.ASCII)


class _Refusal(NamedTuple):
    after_s: int  # until the next request should find a place
    until: float  # by the clock: when the refusal no longer holds
    turn_s: float  # between two requests that find a place


class RecentRefusals:
    """The latest refusal of each key, by its digest; `clock` in seconds, `chance` spreads retries
    once all turns are given."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, chance: random.Random | None = None
    ) -> None:
        self._salt, self._clock = secrets.token_bytes(16), clock
        self._chance = chance or random.Random()
        self._refusals: TLRUCache[bytes, _Refusal] = TLRUCache(
            KEYS, lambda _, refusal, __: refusal.until, clock
        )
        self._paces: LRUCache[bytes, float] = LRUCache(KEYS)  # seconds from one turn to the next
        self._turns: TLRUCache[bytes, float] = TLRUCache(KEYS, lambda _, turn, __: turn, clock)
        """By key: the last turn that was given."""

    def note(
        self, scope: Scope, body: Sequence[Message], status: int, answered: Headers
    ) -> int | None:
        """Remember an answer if it is a refusal for want of a place.

        Returns:
            Seconds until the refused request's turn; None if it was not refused so.
        """
        if status != 429:
            return None
        # During an upgrade an orchestrator of another release may lack these headers.
        after, limit = (_number(answered.get(name)) for name in ("retry-after", LIMIT))
        if not after or not limit:
            return None
        key, said = self._key(scope), _MILLISECONDS.fullmatch(answered.get(RESET, ""))
        holds_s = min(MOST_S, int(said[1]) / 1000) if said else 0.0
        self._paces[key] = turn_s = 60 / limit
        refusal = _Refusal(min(after, MOST_RETRY_AFTER_S), self._clock() + holds_s, turn_s)
        if answered.get(NO_PLACE[0]) == NO_PLACE[1] and holds_s and _is_like_others(body):
            self._refusals[key] = refusal
        return self._turn(key, refusal)

    def check(self, scope: Scope, body: Sequence[Message]) -> None:
        """Raise HttpError (429) if a request's key was refused a moment ago."""
        if not self._refusals or not _asks(scope) or not _is_like_others(body):
            return
        key = self._key(scope)
        if (refusal := self._refusals.get(key)) is not None:
            holds_s = max(0.0, refusal.until - self._clock())
            raise no_place(self._turn(key, refusal), holds_s, refusal.turn_s)

    def to_turn_s(self, scope: Scope) -> int:
        """Return the seconds until the turn of a request that Serve itself refused."""
        if not _asks(scope):
            return RETRY_AFTER_S
        key = self._key(scope)
        turn_s = self._paces.get(key, UNKNOWN_S)
        return self._turn(key, _Refusal(RETRY_AFTER_S, self._clock(), turn_s))

    def _turn(self, key: bytes, refusal: _Refusal) -> int:
        """Return the seconds until the next free turn."""
        now, last = self._clock(), self._turns.get(key, -math.inf)
        turn = max(now + refusal.after_s, last + refusal.turn_s)
        latest_s = min(refusal.after_s + TURNS_S, MOST_RETRY_AFTER_S)
        if turn <= now + latest_s:
            self._turns[key] = turn
        else:
            turn = now + self._chance.uniform((refusal.after_s + latest_s) / 2, latest_s)
        return max(1, round(turn - now))

    def _key(self, scope: Scope) -> bytes:
        given = credentials(Headers(scope=scope)) or ""
        return hashlib.blake2b(given.encode(), key=self._salt, digest_size=16).digest()


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and _NUMBER.fullmatch(text) else None


def _asks(scope: Scope) -> bool:
    """Return whether a request asks for a place."""
    path: str = scope["path"]
    return scope["method"] == "POST" and path.endswith(_ASKING)


def _is_like_others(body: Sequence[Message]) -> bool:
    """Return whether a request takes one place, like others of its key."""
    if body[-1]["more_body"]:
        return False
    text = b"".join(message.get("body", b"") for message in body)
    return _DIFFERENT.search(text) is None  # quotes inside a string are escaped
