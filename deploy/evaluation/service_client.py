"""One call of a running service's administration: JSON over HTTP; errors become Baton's."""

from __future__ import annotations

from typing import Any

import httpx

from deploy.evaluation.clients import (
    API_KEYS,
    authorization,
    base_address,
    error_of,
    no_address,
    reason,
)
from orchestrator.errors import WorkerUnavailable
from workers.remote.address import trusted

PATIENCE_S = 15.0
ADMIN_KEYS = ("BATON_ADMIN_KEY", *API_KEYS)
"""Variables that may hold the key for a change; the first that is set counts."""
READ_KEYS = ("BATON_OBSERVER_KEY", *ADMIN_KEYS)
"""Variables that may hold the key for reading."""


def call(
    url: str, method: str, path: str, body: Any = None, *, admin: bool = False, **query: Any
) -> dict[str, Any]:
    """Call the service at `url` with a key of `ADMIN_KEYS`, or of `READ_KEYS` unless `admin`.

    Raises:
        InvalidRequest, Overloaded, WorkerUnavailable: the service refused, or was not reached.
    """
    names = ADMIN_KEYS if admin else READ_KEYS
    try:
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
    except (httpx.InvalidURL, httpx.UnsupportedProtocol):
        raise no_address(url) from None
    except httpx.HTTPError as error:
        raise WorkerUnavailable(f"{url}: {reason(error)} (another service: --url)") from None
    if not response.is_success:
        raise error_of(response, names)
    try:
        answer: dict[str, Any] = response.json()
    except ValueError:
        raise WorkerUnavailable(
            f"{url}: the answer is not JSON, so this is not a Baton service (name one with --url)"
        ) from None
    return answer
