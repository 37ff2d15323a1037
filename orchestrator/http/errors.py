"""Every error as HTTP says it: OpenAI's form, a status, and when to come back.

Only errors that Baton raises on purpose speak in their own words. A worker's own message may name
hosts or files, and an unexpected exception anything at all, so the client gets a fixed sentence
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


class Refused(BatonError):
    """The HTTP layer turns a request away before any work: 401, 403, 408, 413, 429."""

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
class Problem:
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


def problem(error: BaseException) -> Problem:
    """What to tell the client about `error`."""
    match error:
        case Refused():
            return Problem(
                error.status, error.message, error.kind, code=error.code, headers=error.headers
            )
        case ContextLengthExceeded():
            code = error.code or "context_length_exceeded"
            return Problem(400, error.message, param=error.param or "messages", code=code)
        case UnknownPolicy():
            code = error.code or "model_not_found"
            return Problem(404, error.message, param=error.param or "model", code=code)
        case InvalidRequest():
            return Problem(
                400, error.message, param=error.param, code=error.code or "invalid_value"
            )
        case Unsupported():
            # Retrying cannot help, so this is no 5xx: clients retry those.
            return Problem(
                400,
                f"{f'policy {error.policy}' if error.policy else 'this policy'} asks for what this "
                f"deployment does not have: {error}",
                param="model",
                code="unsupported_policy",
            )
        case Overloaded():
            return _later(
                "the workers have no room now; try again shortly", "overloaded", error.retry_after_s
            )
        case WorkerError():
            return _later("a worker is not available now; try again shortly", "worker_unavailable")
        case Conflict():
            return Problem(409, str(error), code="conflict")
        case StoreUnavailable():
            return _later("the store is not available now; try again shortly", "store_unavailable")
        case StoreError():
            return Problem(
                500,
                "what the store holds cannot be used",
                "server_error",
                code="store_unusable",
                headers={"x-should-retry": "false"},
            )
        case DeadlineExceeded():
            # The work was done in vain once; a client that repeats it by itself doubles the load.
            headers = {"retry-after": str(RETRY_AFTER_S), "x-should-retry": "false"}
            return Problem(
                503,
                "the request's time is up",
                "server_error",
                code="deadline_exceeded",
                headers=headers,
            )
        case asyncio.CancelledError():
            return _later("the server is stopping; try again shortly", "shutting_down")
        case HTTPException():
            return _http(error)
        case _:
            return Problem(500, "internal error", "server_error", code="internal_error")


def _later(message: str, code: str, after_s: float | None = None) -> Problem:
    headers = {"retry-after": str(max(RETRY_AFTER_S, ceil(after_s or 0)))}
    return Problem(503, message, "server_error", code=code, headers=headers)


def _http(error: HTTPException) -> Problem:
    status = HTTPStatus(error.status_code)
    code = {404: "not_found", 405: "method_not_allowed"}.get(status, "http_error")
    kind = "server_error" if status >= 500 else "invalid_request_error"
    headers = dict(error.headers or {})
    return Problem(status, status.phrase.lower(), kind, code=code, headers=headers)
