"""Every error as an HTTP response: OpenAI's form, a status, and when to try again.

The client sees the message of errors that Baton raises on purpose. A worker's message may name
hosts or files, and an unexpected exception anything: for these the client gets a fixed sentence,
and the log gets the rest.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import KW_ONLY, dataclass, field, replace
from http import HTTPStatus
from math import ceil
from typing import Annotated, Any, Final

from pydantic import Field
from starlette.exceptions import HTTPException
from starlette.responses import Response
from typing_extensions import TypedDict

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
    Unusable,
    WorkerError,
)

MOST_RETRY_AFTER_S: Final = 59
"""The longest Retry-After: some of OpenAI's clients ignore a minute."""
RETRY_AFTER_S = 1
"""Seconds after which a refused client may try again: about the time of a step."""
NO_PLACE = ("x-ratelimit-remaining-requests", "0")
"""The header of a 429 that would also meet the key's next request."""
RESET = "x-ratelimit-reset-requests"
"""The header for how long it holds, in OpenAI's form: "612ms"."""
LIMIT = "x-ratelimit-limit-requests"
"""The header for how many requests of the key find a place in a minute, at this pace."""
EXPOSED = ("x-request-id", "retry-after", "x-should-retry", NO_PLACE[0], RESET, LIMIT)
"""Headers of an answer that an allowed page of another origin may read."""


class ErrorBody(TypedDict):
    message: Annotated[str, Field(description="what was expected, and what came")]
    type: str
    param: str | None
    code: str | None


class Error(TypedDict):
    """Every error, in OpenAI's form. 429 and 503 come with Retry-After."""

    error: ErrorBody


_INVALID = "invalid_request_error"
_KINDS = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


@dataclass(eq=False)
class HttpError(BatonError):
    """One error as a client sees it: the HTTP status and the body `{"error": {...}}`.

    The HTTP layer raises one to refuse a request before any work. `type` follows from the
    status, and 429 and 503 always say when to try again.
    """

    status: int
    message: str
    _: KW_ONLY
    code: str | None = None
    param: str | None = None
    headers: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.status in (429, 503):
            self.headers = {"retry-after": str(RETRY_AFTER_S), **self.headers}

    def __str__(self) -> str:
        return self.message

    @property
    def body(self) -> dict[str, Any]:
        kind = "server_error" if self.status >= 500 else _KINDS.get(self.status, _INVALID)
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return {"error": error}

    def response(self) -> Response:
        return Response(
            json.dumps(self.body, ensure_ascii=False).encode(),
            status_code=self.status,
            headers=self.headers,
            media_type="application/json",
        )


def http_error(error: BaseException) -> HttpError:
    """The error that the client sees for `error`."""
    match error:
        case HttpError():
            return replace(error)  # which no traceback, and so no body in its frames, holds on to
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
            after_s = min(max(RETRY_AFTER_S, ceil(error.retry_after_s or 0)), MOST_RETRY_AFTER_S)
            return HttpError(
                503,
                "the workers have no room now; try again shortly",
                code="overloaded",
                headers={"retry-after": str(after_s)},
            )
        case WorkerError():
            message = "a worker is not available now; try again shortly"
            return HttpError(503, message, code="worker_unavailable")
        case Conflict():
            return HttpError(409, str(error), code="conflict")
        case StoreUnavailable():
            message = "the store is not available now; try again shortly"
            return HttpError(503, message, code="store_unavailable")
        case Unusable():
            return HttpError(
                500, str(error), code="store_unusable", headers={"x-should-retry": "false"}
            )
        case StoreError():
            return HttpError(
                500,
                "what the store holds cannot be used",
                code="store_unusable",
                headers={"x-should-retry": "false"},
            )
        case DeadlineExceeded():
            # A client that repeats by itself what took too long once doubles the load.
            again = {"x-should-retry": "false"}
            return HttpError(
                503, "the request's time is up", code="deadline_exceeded", headers=again
            )
        case asyncio.CancelledError():
            return http_error(shutting_down())
        case HTTPException():
            return _routing_error(error)
        case _:
            return HttpError(500, "internal error", code="internal_error")


def no_place(after_s: int, holds_s: float = 0.0, turn_s: float = 0.0) -> HttpError:
    """The error of a request without a place; in `after_s` seconds there should be one.

    `holds_s`: seconds for which the key's next requests would get the same, since others are
    before them. `turn_s`: seconds from one such request that finds a place to the next.
    """
    headers = {"retry-after": str(after_s)}
    if turn_s:
        headers[LIMIT] = str(max(1, round(60 / turn_s)))
    if holds_ms := round(holds_s * 1000):
        headers |= {NO_PLACE[0]: NO_PLACE[1], RESET: f"{holds_ms}ms"}
    return HttpError(
        429,
        "too many requests are being answered; try again later",
        code="rate_limit_exceeded",
        headers=headers,
    )


def shutting_down() -> HttpError:
    """The error of requests that come, or are being answered, while the service ends."""
    return HttpError(503, "the server is stopping; try again shortly", code="shutting_down")


def _routing_error(error: HTTPException) -> HttpError:
    status = HTTPStatus(error.status_code)
    code = {404: "not_found", 405: "method_not_allowed"}.get(status, "http_error")
    headers = {name.lower(): value for name, value in (error.headers or {}).items()}
    return HttpError(status, status.phrase.lower(), code=code, headers=headers)
