"""Keys, default-deny: with keys, every path but `OPEN` wants one, also paths that don't exist.

A guard of prefixes forgets the routes that are added later; this one stands before the router, so
a new route is closed until someone opens it here. In the same way whatever changes something wants
an admin key, unless it is one of the `ASKING` paths.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from orchestrator.errors import ConfigError
from orchestrator.http.errors import Refused

OPEN: Final = frozenset({"/health", "/ready"})
"""What a probe may ask without a key. /metrics is not here: it tells load and policy names, and
Prometheus can send a bearer token."""

ASKING: Final = frozenset({"/v1/chat/completions", "/v1/feedback"})
"""What an API key may post to; every other change is the administrator's."""
READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})

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


@dataclass(frozen=True, slots=True)
class Access:
    """Who may do what: `users` may ask, `admins` may change what others get as well.

    With no keys at all everything is open. With API keys and no admin key nobody may change
    anything; with an admin key alone everybody may ask.
    """

    users: Keys = field(default_factory=Keys)
    admins: Keys = field(default_factory=Keys)

    def owner(self, method: str, path: str, authorization: str | None) -> str | None:
        """Who may do this, as `Keys.owner` says it; None where nobody needs to say.

        Raises:
            Refused: 401, no valid key; 403, a key that does not suffice.
        """
        if path in OPEN or not (self.users or self.admins):
            return None
        user, admin = self.users.owner(authorization), self.admins.owner(authorization)
        changes = method not in READING and path not in ASKING
        if admin is not None:
            return admin
        if not changes and (user is not None or not self.users):
            return user
        if user is None:
            raise Refused(
                401,
                "no API key, or one that is not valid here (Authorization: Bearer ...)",
                code="invalid_api_key",
                kind="authentication_error",
                headers={"www-authenticate": "Bearer"},
            )
        raise Refused(
            403,
            "this needs an admin key"
            if self.admins
            else "this needs an admin key, and the deployment names none (auth: admin_key_env)",
            code="admin_key_required",
            kind="permission_error",
        )
