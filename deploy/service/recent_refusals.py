"""Keys that were just told that there is no place: the next that they ask is told so again.

Whoever refuses a request has read it, and Serve has carried it there and back. Under a flood that
takes what answers are made of, so the proxy repeats what a key was told for as long as the refusal
says that it holds: until most of the key's requests that wait should have their places, so that
none need stand empty. What one orchestrator says holds for all of them: Serve gives each as much to
do. Others' requests pass, and so do those that say how many places they want (`n`, several prompts)
or when it is their turn (`priority`).

Each refused request of a key is told a turn of its own to come again, one after the other at the
pace at which the key's find places with the orchestrator that said so: told the same second, all
but a few would be refused again. Turns are given `TURNS_S` ahead, for those who come anew find
places too, and not everybody comes again; who is told to come later still is spread over the second
half of that.
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

from orchestrator.http.errors import (
    LIMIT,
    MOST_RETRY_AFTER_S,
    NO_PLACE,
    RESET,
    RETRY_AFTER_S,
    no_place,
)

MOST_S: Final = 1.0  # for which a refusal is repeated, whatever it says
TURNS_S: Final = 30.0  # for which turns are given ahead
UNKNOWN_S: Final = 0.1  # from one turn to the next, where nobody has said so yet
KEYS: Final = 1024  # that are remembered
_ASKING: Final = ("/completions", "/responses")  # paths of requests that take places
_OF_ITS_OWN: Final = re.compile(rb'"n"|"priority"|"prompt"\s*:\s*\[\s*["[]')
"""Parameters for which another's refusal says nothing."""
_MILLISECONDS: Final = re.compile(r"(\d{1,9})ms", re.ASCII)
_NUMBER: Final = re.compile(r"\d{1,9}", re.ASCII)


class _Refusal(NamedTuple):
    after_s: int  # when the next of the line should find a place
    until: float  # when it holds no longer, by the clock
    turn_s: float  # from one that finds a place to the next


def _end(key: bytes, told: _Refusal, now: float) -> float:
    return told.until


def _due(key: bytes, turn: float, now: float) -> float:
    return turn


class RecentRefusals:
    """What keys were told a moment ago, by digest; `clock` in seconds, `chance` of who is told to
    come when turns are given out."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, chance: random.Random | None = None
    ) -> None:
        self._salt, self._clock = secrets.token_bytes(16), clock
        self._chance = chance or random.Random()
        self._told: TLRUCache[bytes, _Refusal] = TLRUCache(KEYS, _end, clock)
        self._paces: LRUCache[bytes, float] = LRUCache(KEYS)  # seconds from one turn to the next
        self._turns: TLRUCache[bytes, float] = TLRUCache(KEYS, _due, clock)  # the last to be given

    def note(
        self, scope: Scope, body: Sequence[Message], status: int, answered: Headers
    ) -> int | None:
        """What a request was answered; only a refusal for want of a place is remembered.

        Returns:
            Seconds until the turn of a request that was so refused; None: it has none.
        """
        if status != 429:
            return None
        # During an upgrade orchestrators of another release may say it otherwise, or not at all.
        after, limit = (_number(answered.get(name)) for name in ("retry-after", LIMIT))
        if not after or not limit:
            return None
        key, said = self._key(scope), _MILLISECONDS.fullmatch(answered.get(RESET, ""))
        holds_s = min(MOST_S, int(said[1]) / 1000) if said else 0.0
        self._paces[key] = turn_s = 60 / limit
        told = _Refusal(min(after, MOST_RETRY_AFTER_S), self._clock() + holds_s, turn_s)
        if answered.get(NO_PLACE[0]) == NO_PLACE[1] and holds_s and _is_like_others(body):
            self._told[key] = told
        return self._turn(key, told)

    def check(self, scope: Scope, body: Sequence[Message]) -> None:
        """Whether a request may pass.

        Raises:
            HttpError: 429, its key was just told so.
        """
        if not self._told or not _asks(scope) or not _is_like_others(body):
            return
        key = self._key(scope)
        if (told := self._told.get(key)) is not None:
            holds_s = max(0.0, told.until - self._clock())
            raise no_place(self._turn(key, told), holds_s, told.turn_s)

    def to_turn_s(self, scope: Scope) -> int:
        """Seconds until the turn of a request that Serve itself refused."""
        if not _asks(scope):
            return RETRY_AFTER_S
        key = self._key(scope)
        turn_s = self._paces.get(key, UNKNOWN_S)
        return self._turn(key, _Refusal(RETRY_AFTER_S, self._clock(), turn_s))

    def _turn(self, key: bytes, told: _Refusal) -> int:
        """Seconds until the next turn that is free."""
        now, last = self._clock(), self._turns.get(key, -math.inf)
        turn = max(now + told.after_s, last + told.turn_s)
        latest_s = min(told.after_s + TURNS_S, MOST_RETRY_AFTER_S)
        if turn <= now + latest_s:
            self._turns[key] = turn
        else:
            turn = now + self._chance.uniform((told.after_s + latest_s) / 2, latest_s)
        return max(1, round(turn - now))

    def _key(self, scope: Scope) -> bytes:
        header = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        return hashlib.blake2b(header, key=self._salt, digest_size=16).digest()


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and _NUMBER.fullmatch(text) else None


def _asks(scope: Scope) -> bool:
    """Whether a request asks for a place."""
    path: str = scope["path"]
    return scope["method"] == "POST" and path.endswith(_ASKING)


def _is_like_others(body: Sequence[Message]) -> bool:
    """Whether one that asks for a place asks for one like any other of its key."""
    if body[-1]["more_body"]:
        return False
    text = b"".join(message.get("body", b"") for message in body)
    return _OF_ITS_OWN.search(text) is None  # in a string its quotes are escaped
