"""The table of APIs: a row says what keys, errors, routes, the description and the proxy must know.

A new API is a row here and a file in `apis`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from starlette.responses import Response
from starlette.types import Scope

from orchestrator.http.errors import HttpError


def dump(value: dict[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def sse(value: dict[str, Any], event: str = "") -> bytes:
    """Return a server-sent event; `event` is its name, if it has one."""
    named = f"event: {event}\n".encode() if event else b""
    return named + b"data: " + dump(value) + b"\n\n"


class ErrorForm:
    """OpenAI's form of errors: a body, and the event that ends a stream that failed."""

    def body(self, error: HttpError, request_id: str | None = None) -> dict[str, Any]:
        return error.body

    def event(self, error: HttpError, request_id: str | None = None) -> bytes:
        return sse(self.body(error, request_id))


class NamedEventErrors(ErrorForm):
    """The same body, and an event named `error` that has its fields at the top as well."""

    def event(self, error: HttpError, request_id: str | None = None) -> bytes:
        body = self.body(error, request_id)
        return sse({**body["error"], **body, "type": "error"}, "error")


_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


class AnthropicErrors(ErrorForm):
    """Anthropic's form; the client's typed errors follow from the status, as OpenAI's do."""

    def body(self, error: HttpError, request_id: str | None = None) -> dict[str, Any]:
        kind = "api_error" if error.status >= 500 else "invalid_request_error"
        message = error.message
        if error.code == "context_length_exceeded":
            # Agents look for these words, and then shorten the conversation.
            message = f"prompt is too long: {message}"
        said = {
            "type": _TYPES.get(error.status, kind),
            "message": message,
            "details": {"error_code": error.code, "param": error.param},
        }
        return {"type": "error", "error": said, "request_id": request_id}

    def event(self, error: HttpError, request_id: str | None = None) -> bytes:
        return sse(self.body(error, request_id), "error")


OPENAI_ERRORS: Final = ErrorForm()


@dataclass(frozen=True, slots=True)
class Api:
    path: str  # of requests for an answer
    operation: str  # as OpenTelemetry names it
    id_prefix: str  # of answers
    question: str  # the name of the parameter with the question
    errors: ErrorForm = OPENAI_ERRORS
    also: tuple[str, ...] = ()  # further paths that an API key may post to
    key_header: str = ""  # may hold the API key in place of Authorization
    id_header: str = ""  # clients look for the request's id there, beside x-request-id
    session_header: str = ""  # names the session in place of x-session-id
    ping: bytes = b": ping\n\n"  # is sent in a stream that is silent

    @property
    def paths(self) -> tuple[str, ...]:
        return (self.path, *self.also)


CHAT: Final = Api("/v1/chat/completions", "chat", "chatcmpl-", "messages")
TEXT_COMPLETION: Final = Api("/v1/completions", "text_completion", "cmpl-", "prompt")
RESPONSES: Final = Api("/v1/responses", "chat", "resp_", "input", NamedEventErrors())
MESSAGES: Final = Api(
    "/v1/messages",
    "chat",
    "msg_",
    "messages",
    AnthropicErrors(),
    also=("/v1/messages/count_tokens",),
    key_header="x-api-key",
    id_header="request-id",
    session_header="x-claude-code-session-id",
    ping=sse({"type": "ping"}, "ping"),
)
APIS: Final = (CHAT, TEXT_COMPLETION, RESPONSES, MESSAGES)

SESSION_HEADERS: Final = (
    "x-session-id",
    *(api.session_header for api in APIS if api.session_header),
)
KEY_HEADERS: Final = tuple(api.key_header for api in APIS if api.key_header)


def api_at(path: str) -> Api | None:
    """Return the API at a path, which may have a prefix; None if there is none."""
    return next((api for api in APIS if path.endswith(api.paths)), None)


def error_form(path: str) -> ErrorForm:
    """Return the form of errors at a path: OpenAI's, if no API is there."""
    api = api_at(path)
    return OPENAI_ERRORS if api is None else api.errors


def error_response(error: HttpError, scope: Scope) -> Response:
    """Return an error in the form of the request's API."""
    request_id = scope.get("state", {}).get("request_id")
    return error.response(error_form(scope["path"]).body(error, request_id))


def credentials(headers: Mapping[str, str]) -> str | None:
    """Return the Authorization header, or what it would be with the key in an API's own header."""
    given = headers.get("authorization")
    if given is not None:
        return given
    return next((f"Bearer {key}" for name in KEY_HEADERS if (key := headers.get(name))), None)
