"""API keys, default-deny: if there are keys, every path but `OPEN_PATHS` needs one, unknown or not.

The check runs before the router, so a route that is added later is closed until it is listed here.
Likewise every change needs an admin key, except on `USER_PATHS`, and every read under `/v1/` an
observer's key, except those of `USER_READS`.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Final

from orchestrator.errors import ConfigError
from orchestrator.http.api import APIS, KEY_HEADERS
from orchestrator.http.errors import HttpError

# Probes, and the console, a page without data. Not /metrics: it shows load and names of policies,
# and Prometheus can send a bearer token.
OPEN_PATHS: Final = frozenset({"/health", "/ready", "/", "/ui", "/docs"})
OPEN_FILES: Final = "/ui/"  # the console's
USER_PATHS: Final = frozenset({"/v1/feedback", *(path for api in APIS for path in api.paths)})
"""What an API key may post to; every other change needs the admin key."""
_ANSWER_NOW: Final = re.compile(r"/v1/requests/[^/]+/answer")  # a key finds its own requests there
# What an API key may read, of the traces only its own. The rest shows what others do: policies,
# experiments with their secrets, the audit log.
USER_READS: Final = ("/v1/models", "/v1/traces")
READ_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_KEY: Final = re.compile(r"[!-~]+")
_AT_REST: Final = re.compile(r"sha256:([0-9a-f]{64})")  # a digest in place of the key


class Keys:
    """Valid keys, given as they are or as `sha256:` and the digest's hex digits; digests are kept.

    Raises:
        ConfigError: a key is empty or cannot be sent in an Authorization header, or two have the
            same name in logs and records.
    """

    def __init__(self, keys: Iterable[str] = ()) -> None:
        given = tuple(keys)
        if not all(_KEY.fullmatch(key) for key in given):
            raise ConfigError("an API key must be printable ASCII without spaces, and not empty")
        self._digests = tuple(dict.fromkeys(map(_stored, given)))
        if len({digest[:4] for digest in self._digests}) < len(self._digests):
            raise ConfigError("two API keys have one short name: make another in place of one")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Keys) and self._digests == other._digests

    def __bool__(self) -> bool:
        return bool(self._digests)

    def owner(self, authorization: str | None) -> str | None:
        """Return the name of the header's key, 8 hex digits of its digest; None if it is not valid.

        Takes the same time whichever key matches, or none.
        """
        scheme, _, key = (authorization or "").partition(" ")
        digest = _digest(key.strip())
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        return digest.hex()[:8] if any(matches) and scheme.lower() == "bearer" else None


def _stored(key: str) -> bytes:
    at_rest = _AT_REST.fullmatch(key)
    return bytes.fromhex(at_rest[1]) if at_rest else _digest(key)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode(errors="surrogateescape")).digest()


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent a request: the name of the key (`Keys.owner`), None if no key is needed and no valid
    one was sent. `sees_all`: may read the records of other keys' requests."""

    key: str | None = None
    sees_all: bool = False


@dataclass(frozen=True, slots=True)
class Access:
    """Who may do what: `users` send requests, `observers` read everything, `admins` may do both and
    make changes.

    Without any keys everything is open. With other keys but no admin key no client may change
    anything. Without user keys every client may send requests and read everything.
    """

    users: Keys = field(default_factory=Keys)
    admins: Keys = field(default_factory=Keys)
    observers: Keys = field(default_factory=Keys)

    def authorize(self, method: str, path: str, authorization: str | None) -> Caller:
        """Check whether the sender of this header may send such a request.

        Raises:
            HttpError: 401, no valid key; 403, this key may not do that.
        """
        asks, reads = is_for_users(path), method in READ_METHODS
        open_path = path in OPEN_PATHS or (path.startswith(OPEN_FILES) and reads)
        if open_path or not (self.users or self.admins or self.observers):
            return Caller(sees_all=not self.users)
        user, admin, observer = (
            keys.owner(authorization) for keys in (self.users, self.admins, self.observers)
        )
        own = asks or (reads and not needs_observer(path))
        if admin is not None:
            return Caller(admin, sees_all=True)
        if observer is not None and reads:
            return Caller(observer, sees_all=True)
        if (own and user is not None) or (not self.users and (own or reads)):
            return Caller(user, sees_all=observer is not None or not self.users)
        if user is None and observer is None:
            raise HttpError(
                401,
                "no API key, or one that is not valid here (Authorization: Bearer ..., or "
                f"{', '.join(KEY_HEADERS)})",
                code="invalid_api_key",
                headers={"www-authenticate": "Bearer"},
            )
        if reads:
            code = "observer_key_required"
            needs = "an observer's key or an admin key (auth: observer_keys_env)"
        elif asks:
            code = "api_key_required"
            needs = "an API key or an admin key: an observer's key reads, and sends nothing"
        else:
            code, needs = "admin_key_required", "an admin key"
            if not self.admins:
                needs += ", and the deployment names none (auth: admin_key_env)"
        raise HttpError(403, f"this needs {needs}", code=code)


def is_for_users(path: str) -> bool:
    """Return whether an API key may post to a path."""
    return path in USER_PATHS or _ANSWER_NOW.fullmatch(path) is not None


def needs_observer(path: str) -> bool:
    """Return whether reading a path needs an observer's or an admin key."""
    own = any(path == read or path.startswith(f"{read}/") for read in USER_READS)
    return path == "/metrics" or (path.startswith("/v1/") and not own)


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
