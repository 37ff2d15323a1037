"""Every error as an HTTP response: OpenAI's form, a status, and when to try again.

The client sees the message of errors that Baton raises on purpose. A worker's message may name
hosts or files, and an unexpected exception may hold anything: then the client gets a fixed
sentence, and the log gets the message.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass, field, replace
from http import HTTPStatus
from math import ceil
from typing import Annotated, Any, Final, NotRequired

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
    Misconfigured,
    Overloaded,
    StoreError,
    StoreUnavailable,
    UnknownPolicy,
    Unsupported,
    Unusable,
    WorkerError,
)

MOST_RETRY_AFTER_S: Final = 59  # some of OpenAI's clients ignore one of a minute or more
RETRY_AFTER_S: Final = 1  # about the time of a step
NO_PLACE: Final = ("x-ratelimit-remaining-requests", "0")  # a header: no place is left for the key
RESET: Final = "x-ratelimit-reset-requests"  # how long that holds, in OpenAI's form: "612ms"
LIMIT: Final = "x-ratelimit-limit-requests"  # the key's requests in a minute, at this pace
EXPOSED: Final = ("x-request-id", "retry-after", "x-should-retry", NO_PLACE[0], RESET, LIMIT)
"""The headers of an answer that an allowed page of another origin may read."""
UNSUPPORTED_POLICY: Final = "unsupported_policy"
"""The code of an error of a policy that cannot run here."""
_NO_RETRY: Final = {"x-should-retry": "false"}


class ErrorBody(TypedDict):
    message: Annotated[str, Field(description="what was expected, and what came")]
    type: str
    param: NotRequired[str | None]
    code: NotRequired[str | None]


class Error(TypedDict):
    """The body of every error; Anthropic's form has `details` in place of `param` and `code`. 429
    and 503 come with Retry-After."""

    error: ErrorBody


_INVALID = "invalid_request_error"
_KINDS = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


@dataclass(eq=False)
class HttpError(BatonError):
    """An error as a client sees it: the HTTP status and the body `{"error": {...}}`.

    The HTTP layer raises one to refuse a request before any work. `type` follows from the
    status, and 429 and 503 always have a Retry-After.
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

    def response(self, body: dict[str, Any] | None = None) -> Response:
        """Return the response, with the body in another form if one is given."""
        return Response(
            json.dumps(body or self.body, ensure_ascii=False).encode(),
            status_code=self.status,
            headers=self.headers,
            media_type="application/json",
        )


def http_error(error: Exception) -> HttpError:
    """Return the error that the client sees for `error`."""
    match error:
        case HttpError():
            return replace(error)  # a copy without traceback, whose frames would keep the body
        case ContextLengthExceeded():
            code = error.code or "context_length_exceeded"
            return HttpError(400, error.message, param=error.param, code=code)
        case UnknownPolicy():
            code = error.code or "model_not_found"
            return HttpError(404, error.message, param=error.param or "model", code=code)
        case InvalidRequest():
            code = error.code or "invalid_value"
            return HttpError(400, error.message, param=error.param, code=code)
        case Unsupported():  # no 5xx, which clients would retry in vain
            policy = f"policy {error.policy}" if error.policy else "this policy"
            message = f"{policy} needs what this deployment does not have: {error}"
            return HttpError(400, message, param="model", code=UNSUPPORTED_POLICY)
        case Overloaded():
            named = f"the {error.worker} worker has" if error.worker else "the workers have"
            message = f"{named} no room now; try again shortly"
            later = {"retry-after": str(whole_seconds(error.retry_after_s or 0))}
            return HttpError(503, message, code="overloaded", headers=later)
        case Misconfigured():
            named = f"the {error.worker} worker's server" if error.worker else "a worker's server"
            message = f"{named} refused this call, as set up now; the service's log says why"
            return HttpError(503, message, code="worker_misconfigured", headers=_NO_RETRY)
        case WorkerError():
            named = f"the {error.worker} worker" if error.worker else "a worker"
            message = f"{named} is not available now; try again shortly"
            return HttpError(503, message, code="worker_unavailable")
        case Conflict():
            return HttpError(409, str(error), code="conflict")
        case StoreUnavailable():
            message = "the store is not available now; try again shortly"
            return HttpError(503, message, code="store_unavailable")
        case StoreError():
            usable = not isinstance(error, Unusable)  # only its message is for clients
            message = "what the store holds cannot be used" if usable else str(error)
            return HttpError(500, message, code="store_unusable", headers=_NO_RETRY)
        case DeadlineExceeded():  # an automatic retry of a slow request would double the load
            message = "the request's time is up"
            return HttpError(503, message, code="deadline_exceeded", headers=_NO_RETRY)
        case HTTPException():
            return _routing_error(error)
        case _:
            return HttpError(500, "internal error", code="internal_error")


def whole_seconds(seconds: float) -> int:
    """Round up to a Retry-After within `RETRY_AFTER_S` and `MOST_RETRY_AFTER_S`."""
    return min(max(RETRY_AFTER_S, ceil(seconds)), MOST_RETRY_AFTER_S)


def no_place(after_s: int, holds_s: float = 0.0, turn_s: float = 0.0) -> HttpError:
    """Return the error of a request without a place; in `after_s` seconds one should be free.

    `holds_s`: seconds for which the key's next requests would get the same, since others wait
    before them. `turn_s`: seconds from one request of the key that gets a place to the next.
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


def still_loading(names: Iterable[str]) -> HttpError:
    message = f"models that still load: {', '.join(names)}; try again shortly"
    return HttpError(503, message, code="loading")


def shutting_down() -> HttpError:
    """Return the error of requests that arrive, or are being answered, while the service stops."""
    return HttpError(503, "the server is stopping; try again shortly", code="shutting_down")


def _routing_error(error: HTTPException) -> HttpError:
    status = HTTPStatus(error.status_code)
    code = {404: "not_found", 405: "method_not_allowed"}.get(status, "http_error")
    headers = {name.lower(): value for name, value in (error.headers or {}).items()}
    return HttpError(status, status.phrase.lower(), code=code, headers=headers)
