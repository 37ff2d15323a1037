"""What a server's error responses stand for, among the errors of `orchestrator.errors`.

Only a text that is too long is the client's fault. Whatever else a server refuses is a fault of
this deployment. A server's own words may hold an address or a key: no client sees them.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from math import isfinite
from time import time
from typing import Any, Literal

from orchestrator.errors import (
    BatonError,
    ContextLengthExceeded,
    Contradiction,
    Overloaded,
    WorkerError,
    WorkerUnavailable,
)

log = logging.getLogger(__name__)

_TOO_LONG = re.compile(
    r"context.?(length|window|size)|maximum context|longer than the|too long", re.I
)


class Declined(WorkerError):
    """The server refuses a request; it may accept one with fewer fields."""


class Broke(WorkerUnavailable):
    """The server answered that it failed, or hung up: so do some over a field that they lack."""


class Gap(WorkerUnavailable):
    """A stream lacks what the probe saw: `what` is ids or log-probabilities of some tokens."""

    def __init__(self, what: Literal["ids", "logprobs"]) -> None:
        super().__init__(f"the server's stream lacks {what} of tokens, which the probe saw")
        self.what = what


class Foreign(Contradiction):
    """The ids of tokens that a server returns are not those of the text beside them."""


class NoLogprobs(WorkerError):
    """A position has no log-probabilities although the probe saw some."""


class Absent(Declined):
    """The server has no such path, or no model of this name."""


def failure(status: int, headers: Mapping[str, str], body: Any, name: str) -> BatonError:
    """An error response as the error it stands for. `body` is what its JSON was, or None."""
    message, code = _message(body)
    description = f"{name}: {message or 'HTTP'} ({status})"
    if 300 <= status < 400:
        return WorkerError(
            f"{name}: expected an answer, got a redirect ({status}), which is not followed: "
            "give the url that it leads to"
        )
    if status in (401, 403):
        return WorkerError(f"{description}: is the key right?")
    if status in (429, 503):
        return Overloaded(description, retry_after_s=_retry_after(headers.get("retry-after")))
    if status in (404, 405, 501):
        return Absent(description)
    if status == 500:
        return Broke(description)
    if status == 408 or status > 500:
        return WorkerUnavailable(description)
    if code == "context_length_exceeded" or _TOO_LONG.search(message):
        log.info("%s", description)
        return ContextLengthExceeded(
            "the request is longer than the context of the model's server",
            param="messages",
            code="context_length_exceeded",
        )
    return Declined(description)


def stream_failure(data: Mapping[str, Any], name: str) -> BatonError:
    """An error event inside a stream whose status was 200."""
    error = data["error"]
    status = error.get("code") if isinstance(error, dict) else None
    return failure(status if isinstance(status, int) and status >= 400 else 500, {}, data, name)


def _message(body: Any) -> tuple[str, Any]:
    """(message, code) of an error body, in any of the shapes that servers use."""
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
    return max(0.0, seconds) if isfinite(seconds) else None
