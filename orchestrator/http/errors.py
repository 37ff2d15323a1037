"""Every error as an HTTP response: OpenAI's form, a status, and when to try again.

Of errors that Baton raises on purpose the client sees the message. A worker's message may name
hosts or files, and an unexpected exception anything at all: there the client gets a fixed sentence,
and the log gets the rest.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from math import ceil
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import Response

from orchestrator.errors import (
    BatonError,
    Conflict,
    ContextLengthExceeded,
    DeadlineExceeded,
    InvalidRequest,
    Overloaded,
    StoreError,
    StoreUnavailable,
    UnknownPolicy,
    Unsupported,
    WorkerError,
)

RETRY_AFTER_S = 1
"""Seconds after which a refused client may try again; a step takes about that long."""
NO_PLACE = ("x-ratelimit-remaining-requests", "0")
"""The header of a 429 for want of a place that holds for a key's next request, too."""
EXPOSED = ("x-request-id", "retry-after", "x-should-retry", NO_PLACE[0])
"""Headers of an answer that a page of another origin may read, where it may read answers."""


class RequestRefused(BatonError):
    """The HTTP layer turns a request away before any work: 401, 403, 408, 413, 429, 503."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str,
        kind: str = "invalid_request_error",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.code, self.kind = status, message, code, kind
        self.headers = dict(headers or {})


@dataclass(frozen=True, slots=True)
class HttpError:
    """One error as a client sees it: the HTTP status and the body `{"error": {...}}`."""

    status: int
    message: str
    kind: str = "invalid_request_error"
    param: str | None = None
    code: str | None = None
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def body(self) -> dict[str, Any]:
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}
        return {"error": error}

    def response(self) -> Response:
        return Response(
            json.dumps(self.body, ensure_ascii=False).encode(),
            status_code=self.status,
            headers=self.headers,
            media_type="application/json",
        )


def http_error(error: BaseException) -> HttpError:
    """What the client sees of `error`."""
    match error:
        case RequestRefused():
            return HttpError(
                error.status, error.message, error.kind, code=error.code, headers=error.headers
            )
        case ContextLengthExceeded():
            code = error.code or "context_length_exceeded"
            return HttpError(400, error.message, param=error.param, code=code)
        case UnknownPolicy():
            code = error.code or "model_not_found"
            return HttpError(404, error.message, param=error.param or "model", code=code)
        case InvalidRequest():
            return HttpError(
                400, error.message, param=error.param, code=error.code or "invalid_value"
            )
        case Unsupported():
            # Retrying cannot help, so this is no 5xx: clients retry those.
            return HttpError(
                400,
                f"{f'policy {error.policy}' if error.policy else 'this policy'} needs what this "
                f"deployment does not have: {error}",
                param="model",
                code="unsupported_policy",
            )
        case Overloaded():
            return _unavailable(
                "the workers have no room now; try again shortly", "overloaded", error.retry_after_s
            )
        case WorkerError():
            return _unavailable(
                "a worker is not available now; try again shortly", "worker_unavailable"
            )
        case Conflict():
            return HttpError(409, str(error), code="conflict")
        case StoreUnavailable():
            return _unavailable(
                "the store is not available now; try again shortly", "store_unavailable"
            )
        case StoreError():
            return HttpError(
                500,
                "what the store holds cannot be used",
                "server_error",
                code="store_unusable",
                headers={"x-should-retry": "false"},
            )
        case DeadlineExceeded():
            # A client that repeats by itself what took too long once doubles the load.
            headers = {"retry-after": str(RETRY_AFTER_S), "x-should-retry": "false"}
            return HttpError(
                503,
                "the request's time is up",
                "server_error",
                code="deadline_exceeded",
                headers=headers,
            )
        case asyncio.CancelledError():
            return http_error(shutting_down())
        case HTTPException():
            return _routing_error(error)
        case _:
            return HttpError(500, "internal error", "server_error", code="internal_error")


def no_place(after_s: int, *, holds: bool = True) -> RequestRefused:
    """What requests are told that there is no place for; in `after_s` seconds there should be.

    `holds`: also for the next request of that key, which would wait behind others.
    """
    return RequestRefused(
        429,
        "too many requests are being answered; try again later",
        code="rate_limit_exceeded",
        kind="rate_limit_error",
        headers={"retry-after": str(after_s)} | (dict([NO_PLACE]) if holds else {}),
    )


def shutting_down() -> RequestRefused:
    """What requests are told that come, or are still being answered, while the service ends."""
    return RequestRefused(
        503,
        "the server is stopping; try again shortly",
        code="shutting_down",
        kind="server_error",
        headers={"retry-after": str(RETRY_AFTER_S)},
    )


def _unavailable(message: str, code: str, after_s: float | None = None) -> HttpError:
    headers = {"retry-after": str(max(RETRY_AFTER_S, ceil(after_s or 0)))}
    return HttpError(503, message, "server_error", code=code, headers=headers)


def _routing_error(error: HTTPException) -> HttpError:
    status = HTTPStatus(error.status_code)
    code = {404: "not_found", 405: "method_not_allowed"}.get(status, "http_error")
    kind = "server_error" if status >= 500 else "invalid_request_error"
    headers = {name.lower(): value for name, value in (error.headers or {}).items()}
    return HttpError(status, status.phrase.lower(), kind, code=code, headers=headers)
