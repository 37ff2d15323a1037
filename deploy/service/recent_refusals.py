"""Keys that were just told that there is no place: the next that they ask is told the same.

Whoever refuses a request has read it, and Serve has carried it there and back. Under a flood that
takes what answers are made of, so the proxy repeats what a key was told for as long as the refusal
says that it holds: until most of the key's requests that wait should have their places, so that
none need stand empty. What one orchestrator says holds for all of them: Serve gives each as much to
do. Others' requests pass, and so do those that say how many places they want (`n`, several prompts)
or when it is their turn (`priority`).
"""

from __future__ import annotations

import hashlib
import re
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from cachetools import TLRUCache
from starlette.datastructures import Headers
from starlette.types import Message, Scope

from orchestrator.http.errors import NO_PLACE, RESET, no_place

MOST_S: Final = 1.0  # for which a refusal is repeated, whatever it says
KEYS: Final = 1024  # that are remembered
_ASKING: Final = ("/completions", "/responses")  # paths of requests that take places
_OF_ITS_OWN: Final = re.compile(rb'"n"|"priority"|"prompt"\s*:\s*\[\s*["[]')
"""Parameters for which another's refusal says nothing."""
_MILLISECONDS: Final = re.compile(r"(\d{1,9})ms", re.ASCII)


class _Refusal(NamedTuple):
    after_s: int  # when to try again
    until: float  # when it holds no longer, by the clock


def _end(key: bytes, told: _Refusal, now: float) -> float:
    return told.until


class RecentRefusals:
    """What keys were told a moment ago, by digest; `clock` in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._salt, self._clock = secrets.token_bytes(16), clock
        self._told: TLRUCache[bytes, _Refusal] = TLRUCache(KEYS, _end, clock)

    def note(self, scope: Scope, body: Sequence[Message], status: int, answered: Headers) -> None:
        """What a request was answered; only a refusal for want of a place is remembered."""
        if status != 429 or answered.get(NO_PLACE[0]) != NO_PLACE[1] or not _asks(scope, body):
            return
        # During an upgrade orchestrators of another release may say it otherwise, or not at all.
        said = _MILLISECONDS.fullmatch(answered.get(RESET, ""))
        after = answered.get("retry-after", "")
        if said is None or not after.isdecimal():
            return
        holds_s = min(MOST_S, int(said[1]) / 1000)
        self._told[self._key(scope)] = _Refusal(int(after), self._clock() + holds_s)

    def check(self, scope: Scope, body: Sequence[Message]) -> None:
        """Whether a request may pass.

        Raises:
            HttpError: 429, its key was just told so.
        """
        if not self._told or not _asks(scope, body):
            return
        if (told := self._told.get(self._key(scope))) is not None:
            raise no_place(told.after_s, max(0.0, told.until - self._clock()))

    def _key(self, scope: Scope) -> bytes:
        header = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        return hashlib.blake2b(header, key=self._salt, digest_size=16).digest()


def _asks(scope: Scope, body: Sequence[Message]) -> bool:
    """Whether a request asks for a place like any other of its key."""
    if scope["method"] != "POST" or not scope["path"].endswith(_ASKING) or body[-1]["more_body"]:
        return False
    text = b"".join(message.get("body", b"") for message in body)
    return _OF_ITS_OWN.search(text) is None  # in a string its quotes are escaped
