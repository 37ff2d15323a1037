"""One call of a running service: its keys, JSON over HTTP, and errors as Baton's."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import httpx
from httpx_sse import SSEError

from orchestrator.errors import (
    BatonError,
    ConfigError,
    InvalidRequest,
    Overloaded,
    Unsupported,
    WorkerUnavailable,
)
from orchestrator.http.errors import UNSUPPORTED_POLICY
from workers.remote.address import trusted

PATIENCE_S = 15.0
API_KEYS: Final = ("BATON_API_KEY",)
"""Variables of the environment that may hold a client's key; the first that is set counts."""
ADMIN_KEYS: Final = ("BATON_ADMIN_KEY", *API_KEYS)
"""The same for a change."""
READ_KEYS: Final = ("BATON_OBSERVER_KEY", *ADMIN_KEYS)
"""The same for reading."""


def call(
    url: str, method: str, path: str, body: Any = None, *, admin: bool = False, **query: Any
) -> dict[str, Any]:
    """Call the service at `url` with a key of `ADMIN_KEYS`, or of `READ_KEYS` unless `admin`.

    Raises:
        InvalidRequest, Overloaded, WorkerUnavailable: the service refused, or was not reached.
    """
    names = ADMIN_KEYS if admin else READ_KEYS
    with translated_errors(url, " (another service: --url)"):
        response = httpx.request(
            method,
            f"{base_address(url)}{path}",
            json=body,
            params=query or None,
            headers=authorization(names),
            timeout=PATIENCE_S,
            trust_env=False,
            verify=trusted(),
        )
        if not response.is_success:
            raise error_of(response, names)
        answer: dict[str, Any] = response.json()
        return answer


def base_address(url: str) -> str:
    """Return a service's address, also from the base URL of OpenAI's clients, which ends in /v1."""
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


def authorization(names: Sequence[str]) -> dict[str, str]:
    """Return the header with the key of the first of these variables that is set; else none."""
    key = next(filter(None, map(os.environ.get, names)), None)
    return {"authorization": f"Bearer {key}"} if key else {}


@contextmanager
def translated_errors(url: str, hint: str = "") -> Iterator[None]:
    """Turn errors of httpx, and of an answer that is not the service's, into Baton's."""
    try:
        yield
    except (httpx.InvalidURL, httpx.UnsupportedProtocol):
        raise ConfigError(f"{url}: expected an address as http://HOST:PORT") from None
    except (SSEError, ValueError):
        raise WorkerUnavailable(
            f"{url}: expected JSON of a Baton service, got something else; check the address{hint}"
        ) from None
    except httpx.HTTPError as error:
        reason = str(error) or type(error).__name__
        if isinstance(error, httpx.ConnectError) and "SSL" not in reason:
            reason = f"no connection ({error}); is the service running there (`baton serve`)?"
        raise WorkerUnavailable(f"{url}: {reason}{hint}") from None


def error_of(response: httpx.Response, names: Sequence[str] = API_KEYS) -> BatonError:
    """Return an error response as an exception; `names` are variables that may hold the key."""
    try:
        error = response.json()["error"]
        message, param, code = error["message"], error.get("param"), error.get("code")
    except (ValueError, KeyError, TypeError):
        message, param, code = f"HTTP {response.status_code}", None, None
    text = f"{response.url.copy_with(path='/')}: {message}"
    if response.status_code == 401:
        text += f"; this command takes its key from {', '.join(f'${name}' for name in names)}"
    if response.status_code in (429, 503):
        return Overloaded(text)
    if code == UNSUPPORTED_POLICY:
        return Unsupported(text)
    if 400 <= response.status_code < 500:
        return InvalidRequest(text, param=param, code=code)
    return WorkerUnavailable(text)
