"""Keys that were just told that there is no place: the next that they ask is told so again.

Whoever refuses a request has read it, and Serve has carried it there and back. Under a flood that
takes what answers are made of, so the proxy repeats what a key was told for as long as the refusal
says that it holds: until most of the key's requests that wait should have their places, so that
none need stand empty. What one orchestrator says holds for all of them: Serve gives each as much to
do. Others' requests pass, and so do those that say how many places they want (`n`, several prompts)
or when it is their turn (`priority`).

Each refused request of a key is told a turn of its own to come again, one after the other at the
pace at which the key's find places: told the same second, all but a few would be refused again.
"""

from __future__ import annotations

import hashlib
import math
import re
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from cachetools import TLRUCache
from starlette.datastructures import Headers
from starlette.types import Message, Scope

from orchestrator.http.admission import MOST_RETRY_AFTER_S
from orchestrator.http.errors import LIMIT, NO_PLACE, RESET, no_place

MOST_S: Final = 1.0  # for which a refusal is repeated, whatever it says
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
    """What keys were told a moment ago, by digest; `clock` in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._salt, self._clock = secrets.token_bytes(16), clock
        self._told: TLRUCache[bytes, _Refusal] = TLRUCache(KEYS, _end, clock)
        self._turns: TLRUCache[bytes, float] = TLRUCache(KEYS, _due, clock)  # the last to be given

    def note(
        self, scope: Scope, body: Sequence[Message], status: int, answered: Headers
    ) -> int | None:
        """What a request was answered; only a refusal for want of a place is remembered.

        Returns:
            Seconds until the turn of a request that was so refused; None: it has none.
        """
        if status != 429 or answered.get(NO_PLACE[0]) != NO_PLACE[1] or not _asks(scope, body):
            return None
        # During an upgrade orchestrators of another release may say it otherwise, or not at all.
        said = _MILLISECONDS.fullmatch(answered.get(RESET, ""))
        after, limit = (_number(answered.get(name)) for name in ("retry-after", LIMIT))
        if said is None or not after or not limit:
            return None
        until = self._clock() + min(MOST_S, int(said[1]) / 1000)
        key, told = self._key(scope), _Refusal(after, until, 60 / limit)
        self._told[key] = told
        return self._turn(key, told)

    def check(self, scope: Scope, body: Sequence[Message]) -> None:
        """Whether a request may pass.

        Raises:
            HttpError: 429, its key was just told so.
        """
        if not self._told or not _asks(scope, body):
            return
        key = self._key(scope)
        if (told := self._told.get(key)) is not None:
            holds_s = max(0.0, told.until - self._clock())
            raise no_place(self._turn(key, told), holds_s, told.turn_s)

    def _turn(self, key: bytes, told: _Refusal) -> int:
        """Seconds until the next turn that is free."""
        now = self._clock()
        turn = max(now + told.after_s, self._turns.get(key, now) + told.turn_s)
        self._turns[key] = turn = min(turn, now + MOST_RETRY_AFTER_S)
        return math.ceil(round(turn - now, 3))  # a sum of floats may be a hair above

    def _key(self, scope: Scope) -> bytes:
        header = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        return hashlib.blake2b(header, key=self._salt, digest_size=16).digest()


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and _NUMBER.fullmatch(text) else None


def _asks(scope: Scope, body: Sequence[Message]) -> bool:
    """Whether a request asks for a place like any other of its key."""
    if scope["method"] != "POST" or not scope["path"].endswith(_ASKING) or body[-1]["more_body"]:
        return False
    text = b"".join(message.get("body", b"") for message in body)
    return _OF_ITS_OWN.search(text) is None  # in a string its quotes are escaped
