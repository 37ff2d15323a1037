"""Keys, default-deny: with keys, every path needs one except `OPEN_PATHS`, also unknown paths.

The check runs before the router, so a route that is added later is closed until it is listed here.
In the same way every change needs an admin key, except on `USER_PATHS`, and what is under `/v1/` is
read with an observer's key, except what `USER_READS` lists.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from orchestrator.errors import ConfigError
from orchestrator.http.errors import HttpError

OPEN_PATHS: Final = frozenset({"/health", "/ready", "/", "/ui", "/docs"})
"""Paths without a key: those that a probe reads, and the console, a page without data. /metrics
shows load and policy names, and Prometheus can send a bearer token."""
OPEN_FILES: Final = "/ui/"
"""The path of the console's files."""

USER_PATHS: Final = frozenset(
    {"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/feedback"}
)
"""What an API key may post to; every other change needs the admin key."""
USER_READS: Final = ("/v1/models", "/v1/traces")
"""What an API key may read under `/v1/`: among the traces only its own. The rest shows what others
do: policies, experiments with their salts, the audit log, and /metrics."""
READ_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})

_KEY: Final = re.compile(r"[!-~]+")


_AT_REST: Final = re.compile(r"sha256:([0-9a-f]{64})")
"""A key as a file may hold it instead of the key itself."""


class Keys:
    """Valid keys, each as it is or as `sha256:` and the hex digits of its digest.

    Only digests are kept; no keys means that everything is open.

    Raises:
        ConfigError: a key that no Authorization header can carry, the empty one among them; two
            keys that would have one name in logs and records.
    """

    def __init__(self, keys: Iterable[str] = ()) -> None:
        given = tuple(keys)
        if not all(_KEY.fullmatch(key) for key in given):
            raise ConfigError("an API key must be printable ASCII without spaces, and not empty")
        self._digests = tuple({_stored(key): None for key in given})
        if len({digest.hex()[:8] for digest in self._digests}) < len(self._digests):
            raise ConfigError("two API keys have one short name: make another in place of one")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Keys) and self._digests == other._digests

    __hash__ = None  # type: ignore[assignment]

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


def _stored(key: str) -> bytes:
    """The digest of a key, or the one that replaces it."""
    at_rest = _AT_REST.fullmatch(key)
    return bytes.fromhex(at_rest[1]) if at_rest else _digest(key)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode(errors="surrogateescape")).digest()


@dataclass(frozen=True, slots=True)
class Access:
    """Who may do what: `users` ask, `observers` read everything, `admins` change what others get,
    and do all the rest.

    Without keys everything is open. With API keys and no admin key no client may change anything;
    without API keys every client may ask, and read the records of that.
    """

    users: Keys = field(default_factory=Keys)
    admins: Keys = field(default_factory=Keys)
    observers: Keys = field(default_factory=Keys)

    def sees_all(self, authorization: str | None) -> bool:
        """Whether this header may read the records of other keys' requests."""
        return not self.users or any(
            keys.owner(authorization) is not None for keys in (self.admins, self.observers)
        )

    def authorize(self, method: str, path: str, authorization: str | None) -> str | None:
        """Return who sends this request, as `Keys.owner` has it; None if no key is needed.

        Raises:
            HttpError: 401, no valid key; 403, one that is not allowed this.
        """
        open_path = path in OPEN_PATHS or (path.startswith(OPEN_FILES) and method in READ_METHODS)
        if open_path or not (self.users or self.admins or self.observers):
            return None
        user, admin, observer = (
            keys.owner(authorization) for keys in (self.users, self.admins, self.observers)
        )
        asks, reads = path in USER_PATHS, method in READ_METHODS
        if admin is not None:
            return admin
        if observer is not None and reads:
            return observer
        own = asks or (reads and not is_observers(path))
        if (own and user is not None) or (not self.users and (own or reads)):
            return user
        if user is None and observer is None:
            raise HttpError(
                401,
                "no API key, or one that is not valid here (Authorization: Bearer ...)",
                code="invalid_api_key",
                headers={"www-authenticate": "Bearer"},
            )
        if reads:
            raise HttpError(
                403,
                "this needs an observer's key or an admin key (auth: observer_keys_env)",
                code="observer_key_required",
            )
        if asks:
            raise HttpError(
                403,
                "this needs an API key or an admin key: an observer's key reads, and sends nothing",
                code="api_key_required",
            )
        raise HttpError(
            403,
            "this needs an admin key"
            if self.admins
            else "this needs an admin key, and the deployment names none (auth: admin_key_env)",
            code="admin_key_required",
        )


def is_observers(path: str) -> bool:
    """Whether a path is closed to those who may only ask."""
    return path == "/metrics" or (
        path.startswith("/v1/")
        and not any(path == read or path.startswith(f"{read}/") for read in USER_READS)
    )
