"""Keys, default-deny: with keys, every path needs one except `OPEN_PATHS`, also unknown paths.

The check runs before the router, so a route that is added later is closed until it is listed here.
In the same way every change needs an admin key, except on `USER_PATHS`.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from orchestrator.errors import ConfigError
from orchestrator.http.errors import RequestRefused

OPEN_PATHS: Final = frozenset({"/health", "/ready", "/", "/ui"})
"""What needs no key: what a probe reads, and the console, a page that holds nothing. /metrics is
not here: it shows load and policy names, and Prometheus can send a bearer token."""
OPEN_FILES: Final = "/ui/"
"""Where the console's files are."""

USER_PATHS: Final = frozenset(
    {"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/feedback"}
)
"""What an API key may post to; every other change needs the admin key."""
READ_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})

_KEY: Final = re.compile(r"[!-~]+")


class Keys:
    """Valid keys. Only digests are kept; no keys means that everything is open.

    Raises:
        ConfigError: a key that no Authorization header can carry, the empty one among them.
    """

    def __init__(self, keys: Iterable[str] = ()) -> None:
        given = tuple(keys)
        if not all(_KEY.fullmatch(key) for key in given):
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
    """Who may do what: `users` may send requests, `admins` may also change what others get.

    With no keys at all everything is open. With API keys and no admin key nobody may change
    anything; with an admin key alone everybody may send requests.
    """

    users: Keys = field(default_factory=Keys)
    admins: Keys = field(default_factory=Keys)

    def sees_all(self, authorization: str | None) -> bool:
        """Whether this header may read what other keys' requests left behind."""
        return not self.users or self.admins.owner(authorization) is not None

    def owner(self, method: str, path: str, authorization: str | None) -> str | None:
        """Who sends this request, as `Keys.owner` has it; None where no key is needed.

        Raises:
            RequestRefused: 401, no valid key; 403, a key that is not an admin key.
        """
        open_path = path in OPEN_PATHS or (path.startswith(OPEN_FILES) and method in READ_METHODS)
        if open_path or not (self.users or self.admins):
            return None
        user, admin = self.users.owner(authorization), self.admins.owner(authorization)
        changes = method not in READ_METHODS and path not in USER_PATHS
        if admin is not None:
            return admin
        if not changes and (user is not None or not self.users):
            return user
        if user is None:
            raise RequestRefused(
                401,
                "no API key, or one that is not valid here (Authorization: Bearer ...)",
                code="invalid_api_key",
                kind="authentication_error",
                headers={"www-authenticate": "Bearer"},
            )
        raise RequestRefused(
            403,
            "this needs an admin key"
            if self.admins
            else "this needs an admin key, and the deployment names none (auth: admin_key_env)",
            code="admin_key_required",
            kind="permission_error",
        )
