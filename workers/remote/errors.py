"""What a server's error responses stand for, among the errors of `orchestrator.errors`.

A client is only blamed for a text that is too long. Whatever else a server refuses was asked by
this deployment, and what it says stays between the two.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from time import time
from typing import Any

from orchestrator.errors import (
    BatonError,
    ContextLengthExceeded,
    Overloaded,
    WorkerError,
    WorkerUnavailable,
)

_TOO_LONG = re.compile(r"context.?(length|window)|maximum context|longer than the|too long", re.I)


class Declined(WorkerError):
    """The server will not do what was asked of it; it might do less."""


class Absent(Declined):
    """The server has nothing at this path, or no model of this name."""


def failure(status: int, headers: Mapping[str, str], body: Any, name: str) -> BatonError:
    """An error response as the error it stands for. `body` is what its JSON was, or None."""
    message, code = _said(body)
    told = f"{name}: {message or 'HTTP'} ({status})"
    if 300 <= status < 400:
        return WorkerError(f"{name} answers with a redirect ({status}), which is not followed")
    if status in (401, 403):
        return WorkerError(f"{told}: is the key right?")
    if status in (429, 503):
        return Overloaded(told, retry_after_s=_retry_after(headers.get("retry-after")))
    if status in (404, 405, 501):
        return Absent(told)
    if status == 408 or status >= 500:
        return WorkerUnavailable(told)
    if code == "context_length_exceeded" or _TOO_LONG.search(message):
        return ContextLengthExceeded(message, param="messages", code="context_length_exceeded")
    return Declined(told)


def stream_failure(data: Mapping[str, Any], name: str) -> BatonError:
    """An error event inside a stream that had begun well."""
    error = data["error"]
    status = error.get("code") if isinstance(error, dict) else None
    return failure(status if isinstance(status, int) and status >= 400 else 500, {}, data, name)


def _said(body: Any) -> tuple[str, Any]:
    """(message, code) of the several shapes that errors come in."""
    if isinstance(body, dict):
        error = body.get("error", body.get("detail", body))
        if isinstance(error, dict):
            return " ".join(str(error.get("message") or "").split())[:300], error.get("code")
        return " ".join(str(error).split())[:300], None
    return "", None


def _retry_after(value: str | None) -> float | None:
    """Seconds of a Retry-After header, a number or a date."""
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(value).timestamp() - time()
        except ValueError:
            return None
    return max(0.0, seconds) if seconds == seconds else None
