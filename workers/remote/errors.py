"""Translates a server's error responses into errors of `orchestrator.errors`.

Only a text that is too long is the client's fault. A server's message may hold an address or a key,
so no client sees it; only /ready shows it on a loopback address.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from math import isfinite
from typing import Any, Literal

from orchestrator.errors import (
    BatonError,
    ContextLengthExceeded,
    Contradiction,
    Misconfigured,
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
    """The server failed (500) or hung up, as some do at a field that they do not know."""


class Gap(WorkerUnavailable):
    """A stream lacks ids or log-probabilities (`what`) of some tokens, which the probe saw."""

    def __init__(self, what: Literal["ids", "logprobs"]) -> None:
        super().__init__(f"the server's stream lacks {what} of tokens, which the probe saw")
        self.what = what


class Foreign(Contradiction):
    """The ids of tokens that a server returns are not those of the text beside them."""


class NoLogprobs(WorkerError):
    """A position has no log-probabilities although the probe saw some."""


class Absent(Declined, Misconfigured):
    """The server has no such path, or no model of this name."""


def failure(status: int, headers: Mapping[str, str], body: Any, name: str) -> BatonError:
    """Translate an error response; `body` is its parsed JSON, or None."""
    message, code = _message(body)
    description = f"{name}: {message or 'HTTP'} ({status})"
    if 300 <= status < 400:
        return Misconfigured(
            f"{name}: expected an answer, got a redirect ({status}), which is not followed: "
            "give the url that it leads to"
        )
    if status in (401, 403):
        return Misconfigured(f"{description}: is the key right?")
    if status in (429, 503):
        return Overloaded(description, retry_after_s=_retry_after(headers.get("retry-after")))
    if status == 408 or status > 501 or status == 500:
        return (Broke if status == 500 else WorkerUnavailable)(description)
    if status in (404, 405, 501):
        return Absent(f"{description}: check the model's name, and the path of the url")
    if code == "context_length_exceeded" or _TOO_LONG.search(message):
        log.info("%s", description)
        return ContextLengthExceeded(
            "the request is longer than the context of the model's server",
            param="messages",
            code="context_length_exceeded",
        )
    return Declined(description)


def stream_failure(data: Mapping[str, Any], name: str) -> BatonError:
    """Translate an error event of a stream whose status was 200."""
    error = data["error"]
    status = error.get("code") if isinstance(error, dict) else None
    return failure(status if isinstance(status, int) and status >= 400 else 500, {}, data, name)


def _message(body: Any) -> tuple[str, Any]:
    """Return (message, code) of an error body, in any of the shapes that servers use."""
    error = body.get("error", body.get("detail", body)) if isinstance(body, dict) else ""
    message, code = error, None
    if isinstance(error, dict):
        message, code = error.get("message") or "", error.get("code")
    return " ".join(str(message).split())[:300], code


def _retry_after(value: str | None) -> float | None:
    """Return the seconds of a Retry-After header, if it says seconds."""
    try:
        seconds = float(value or "nan")
    except ValueError:  # such as a date
        return None
    return max(0.0, seconds) if isfinite(seconds) else None
