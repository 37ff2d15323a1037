"""What a server's error responses stand for, among the errors of `orchestrator.errors`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from time import time
from typing import Any

from orchestrator.errors import (
    BatonError,
    ContextLengthExceeded,
    InvalidRequest,
    Overloaded,
    Unsupported,
    WorkerError,
    WorkerUnavailable,
)

_TOO_LONG = re.compile(r"context.?(length|window)|maximum context|longer than the|too long", re.I)


def failure(status: int, headers: Mapping[str, str], body: Any, name: str) -> BatonError:
    """An error response as the error it stands for. `body` is what its JSON was, or None."""
    message, param, code = _said(body)
    told = f"{name}: {message or 'HTTP'} ({status})"
    if 300 <= status < 400:
        return WorkerError(f"{name} answers with a redirect ({status}), which is not followed")
    if status in (401, 403):
        return WorkerError(f"{told}: is the key right?")
    if status in (429, 503):
        return Overloaded(told, retry_after_s=_retry_after(headers.get("retry-after")))
    if status in (404, 405, 501):
        return Unsupported(told)
    if status == 408 or status >= 500:
        return WorkerUnavailable(told)
    if code == "context_length_exceeded" or _TOO_LONG.search(message):
        return ContextLengthExceeded(message, param="messages", code="context_length_exceeded")
    return InvalidRequest(message or f"the model's server says {status}", param=param, code=code)


def stream_failure(data: Mapping[str, Any], name: str) -> BatonError:
    """An error event inside a stream that had begun well."""
    error = data["error"]
    status = error.get("code") if isinstance(error, dict) else None
    return failure(status if isinstance(status, int) and status >= 400 else 500, {}, data, name)


def _said(body: Any) -> tuple[str, str | None, str | None]:
    """(message, param, code) of the several shapes that errors come in."""
    if isinstance(body, dict):
        error = body.get("error", body.get("detail", body))
        if isinstance(error, dict):
            text, param, code = (error.get(key) for key in ("message", "param", "code"))
            line = " ".join(str(text or "").split())[:300]
            return (
                line,
                param if isinstance(param, str) else None,
                (code if isinstance(code, str) else None),
            )
        return " ".join(str(error).split())[:300], None, None
    return "", None, None


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
