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
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from cachetools import LRUCache
from starlette.datastructures import Headers
from starlette.types import Scope

from deploy.service.bodies import Body
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
KEYS: Final = 1024  # the most that are remembered
_ASKING: Final = tuple(path for api in APIS for path in api.paths)  # a request there takes places
_DIFFERENT: Final = re.compile(rb'"n"|"priority"|"prompt"\s*:\s*\[\s*["[]')
"""Parameters by which a request differs from others of its key, so that it passes."""
_MILLISECONDS: Final = re.compile(r"(\d{1,9})ms", re.ASCII)
_NUMBER: Final = re.compile(r"\d{1,9}", re.ASCII)


@dataclass(slots=True)
class _Line:
    """The refused requests of one key; times in seconds of the clock."""

    turn_s: float = 0.1  # from one turn to the next; a guess, until an orchestrator has said it
    turn: float = -math.inf  # the last that was given
    until: float = -math.inf  # how long the latest refusal holds
    after_s: int = RETRY_AFTER_S  # that refusal's Retry-After


class RecentRefusals:
    """The latest refusal of each key, by its digest; `clock` in seconds, `chance` spreads retries
    once all turns are given."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, chance: random.Random | None = None
    ) -> None:
        self._salt, self._clock = secrets.token_bytes(16), clock
        self._chance = chance or random.Random()
        self._lines: LRUCache[bytes, _Line] = LRUCache(KEYS)
        self._unchecked: LRUCache[bytes, _Line] = LRUCache(KEYS)  # of keys that may be invented

    def note(self, scope: Scope, body: Body, status: int, answered: Headers) -> int | None:
        """Remember an answer if it is a refusal for want of a place.

        Returns:
            Seconds until the refused request's turn; None if it was not refused so.
        """
        if status != 429:
            return None
        # During an upgrade an orchestrator of another release may lack these headers.
        after_s, limit = (_number(answered.get(name)) for name in ("retry-after", LIMIT))
        if not after_s or not limit:
            return None
        line, after_s = self._line(scope), min(after_s, MOST_RETRY_AFTER_S)
        line.turn_s = 60 / limit
        said = _MILLISECONDS.fullmatch(answered.get(RESET, ""))
        if said and answered.get(NO_PLACE[0]) == NO_PLACE[1] and _is_like_others(body):
            line.until = self._clock() + min(MOST_S, int(said[1]) / 1000)
            line.after_s = after_s
        return self._turn(line, after_s)

    def check(self, scope: Scope, body: Body) -> None:
        """Raise HttpError (429) if a request's key was refused a moment ago."""
        if not self._lines or not _asks(scope):
            return
        line = self._lines.get(self._key(scope))
        holds_s = 0.0 if line is None else line.until - self._clock()
        if line is not None and holds_s > 0 and _is_like_others(body):
            raise no_place(self._turn(line, line.after_s), holds_s, line.turn_s)

    def to_turn_s(self, scope: Scope) -> int:
        """Return the seconds until the turn of a request that Serve itself refused."""
        if not _asks(scope):
            return RETRY_AFTER_S
        key = self._key(scope)
        line = self._lines.get(key) or self._unchecked.setdefault(key, _Line())
        return self._turn(line, RETRY_AFTER_S)

    def _turn(self, line: _Line, after_s: int) -> int:
        """Return the seconds until the next free turn."""
        now = self._clock()
        turn = now + after_s
        if line.turn > now:
            turn = max(turn, line.turn + line.turn_s)
        latest_s = min(after_s + TURNS_S, MOST_RETRY_AFTER_S)
        if turn <= now + latest_s:
            line.turn = turn
        else:
            turn = now + self._chance.uniform((after_s + latest_s) / 2, latest_s)
        return max(1, round(turn - now))

    def _line(self, scope: Scope) -> _Line:
        line: _Line = self._lines.setdefault(self._key(scope), _Line())
        return line

    def _key(self, scope: Scope) -> bytes:
        given = credentials(Headers(scope=scope)) or ""
        return hashlib.blake2b(given.encode(), key=self._salt, digest_size=16).digest()


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and _NUMBER.fullmatch(text) else None


def _asks(scope: Scope) -> bool:
    """Return whether a request asks for a place."""
    path: str = scope["path"]
    return scope["method"] == "POST" and path.endswith(_ASKING)


def _is_like_others(body: Body) -> bool:
    """Return whether a request takes one place, like others of its key."""
    text = b"".join(message.get("body", b"") for message in body.messages)
    return body.is_whole and _DIFFERENT.search(text) is None  # quotes in a string are escaped
