"""API keys, default-deny: with keys, every path but `OPEN` wants one, also paths that don't exist.

A guard of prefixes forgets the routes that are added later; this one stands before the router, so
a new route is closed until someone opens it here.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable
from typing import Final

from orchestrator.errors import ConfigError

OPEN: Final = frozenset({"/health", "/ready"})
"""What a probe may ask without a key. /metrics is not here: it tells load and policy names, and
Prometheus can send a bearer token."""

_SENDABLE: Final = re.compile(r"[!-~]+")


class Keys:
    """The keys that may ask. Only digests are kept; no keys means that everything is open.

    Raises:
        ConfigError: a key that no Authorization header can carry, the empty one among them.
    """

    def __init__(self, keys: Iterable[str] = ()) -> None:
        given = tuple(keys)
        if not all(_SENDABLE.fullmatch(key) for key in given):
            raise ConfigError("an API key must be printable ASCII without spaces, and not empty")
        self._digests = tuple(_digest(key) for key in given)

    def __bool__(self) -> bool:
        return bool(self._digests)

    def owner(self, authorization: str | None) -> str | None:
        """Who sends this Authorization header: 8 hex digits of the key's digest, fit for logs.

        None when it names no valid key. Takes the same time whichever key matches, or none.
        """
        scheme, _, key = (authorization or "").partition(" ")
        digest = _digest(key.strip())
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        return digest.hex()[:8] if any(matches) and scheme.lower() == "bearer" else None


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode(errors="surrogateescape")).digest()
