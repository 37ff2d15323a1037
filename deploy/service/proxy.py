"""Middleware before Ray Serve's own HTTP handling, in the process of its proxies.

Serve refuses requests in plain text, answers "500 Internal Server Error" if a replica died, and
never ends a stream whose replica died. This middleware

- repeats a lost request once, if that is safe, so that no request crashes more than two replicas;
  else it answers 503 in the API's form, with Retry-After;
- ends a stream that broke off with an error event;
- gathers a body before the request takes a place in a replica, so that slow bodies take none;
- bounds the memory for large bodies (`body_room`);
- answers as a service that starts until Serve has a replica of the orchestrator (`starting`);
- passes large bodies to Serve one after the other, so that small ones need not wait for many;
- refuses headers that Serve cannot read (400) or that are too large (431);
- repeats a 429 for a key that just got one, and gives each refused request another Retry-After
  (`recent_refusals`);
- retries a request that only reads (/health) a few times if Serve has no room;
- lets a page of another origin read refusals if the application has let that origin read an answer
  (or a preflight): the proxy knows no settings.

Ray calls `middlewares` by the name in RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH
(`deploy.launch.environment`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Final

import uvicorn.config
from cachetools import LRUCache
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from deploy.service.body_room import BodyRoom, BodyShare
from deploy.service.recent_refusals import RecentRefusals
from deploy.service.starting import SERVES_OWN, is_starting, starting_app
from orchestrator.errors import InvalidRequest, describe
from orchestrator.http.api import error_form, error_response
from orchestrator.http.auth import READ_METHODS, USER_PATHS
from orchestrator.http.errors import EXPOSED, HttpError, http_error

log = logging.getLogger(__name__)

PAUSE_S: Final = 0.5  # seconds before a lost request is repeated
READ_AGAIN_S: Final = (0.1, 0.2, 0.4)
"""Seconds before each retry of a request that only reads, if there is no room."""
OF_SERVE: Final = {404, 408, 429, 500, 503}  # in plain text these are Serve's own answers
BUFFER_BYTES: Final = 1 << 20  # a longer body is passed on as it comes, and never repeated
LARGE_BYTES: Final = 64 << 10  # a longer body needs room, and waits for its turn
TURN_S: Final = 0.1  # seconds for which it keeps its turn, unless it is answered before
BODY_S: Final = 30.0  # seconds for a body, or its first `BUFFER_BYTES`, to arrive
MAX_HEAD_BYTES: Final = 64 << 10  # of a request's headers
TO_SERVE: Final = {b"x-request-timeout-seconds", b"x-request-disconnect-disabled"}
"""Headers that change how Serve treats a request: a client's are removed."""
ORIGINS: Final = 256  # allowed origins that are remembered
ALLOWED: Final = "access-control-allow-origin"
LOST: Final = HttpError(
    503,
    "the answer was lost with the replica that made it; try again shortly",
    code="replica_lost",
)


def middlewares() -> list[Middleware]:
    """Return the middleware for Ray Serve's proxies to put before their own."""
    uvicorn.config.HTTP_PROTOCOLS["auto"] = "deploy.service.http_protocol:BoundedProtocol"
    return [Middleware(ProxyMiddleware)]


class ProxyMiddleware:
    """ASGI middleware around the proxy of Ray Serve."""

    def __init__(self, app: ASGIApp) -> None:
        self.app, self.origins, self.refusals = app, AllowedOrigins(), RecentRefusals()
        self._large, self._room = asyncio.Lock(), BodyRoom()
        self._starting = starting_app()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if is_starting(self.app) and not scope["path"].startswith(SERVES_OWN):
            await self._starting(scope, receive, send)
            return
        share = BodyShare(self._room)
        try:
            await self._answer(scope, receive, send, share)
        finally:
            share.leave()

    async def _answer(self, scope: Scope, receive: Receive, send: Send, share: BodyShare) -> None:
        try:
            _check_headers(scope["headers"])
            body = await _gather(receive, share)
            if body is not None:
                self.refusals.check(scope, body)
        except (InvalidRequest, HttpError) as error:
            refusal = self.origins.readable(http_error(error), scope)
            await error_response(refusal, scope)(scope, receive, send)
            return
        if body is None:
            return
        begin = partial(_Attempt, self, scope, body, receive, send)
        attempt = begin()
        whole = not body[-1]["more_body"]
        if await self._carry(attempt, share) and whole and _may_be_repeated(scope):
            log.warning("%s %r was lost: repeating", scope["method"], scope["path"])
            await asyncio.sleep(PAUSE_S)
            attempt = begin()
            await self._carry(attempt, share)
        for pause_s in READ_AGAIN_S:
            if not attempt.found_no_room or scope["method"] not in READ_METHODS or not whole:
                break
            await asyncio.sleep(pause_s)
            attempt = begin()
            await self._carry(attempt, share)
        await attempt.finish()

    async def _carry(self, attempt: _Attempt, share: BodyShare) -> bool:
        """Pass a request to Serve, a large body in its turn; return whether it was lost."""
        if attempt.body_bytes <= LARGE_BYTES:
            return await attempt.was_lost(self.app)
        await self._large.acquire()
        with ExitStack() as turn:
            turn.callback(self._large.release)
            turn.callback(share.leave)
            later = asyncio.get_running_loop().call_later(TURN_S, turn.close)
            turn.callback(later.cancel)
            return await attempt.was_lost(self.app)


class AllowedOrigins:
    """Origins whose pages the application lets read its answers, with the header it sent them."""

    def __init__(self) -> None:
        self._allowed: LRUCache[str, str] = LRUCache(ORIGINS)

    def note(self, scope: Scope, answered: Headers) -> None:
        """Remember whether the application lets a request's origin read the answer."""
        origin = _origin(scope)
        if origin is None:
            return
        self._allowed.pop(origin, None)
        if (allowed := answered.get(ALLOWED)) is not None:
            self._allowed[origin] = allowed

    def readable(self, error: HttpError, scope: Scope) -> HttpError:
        """Let a request's page read its refusal, if that page may read answers."""
        origin = self._allowed.get(_origin(scope) or "")
        if origin is None:
            return error
        allowed = {ALLOWED: origin, "access-control-expose-headers": ", ".join(EXPOSED)}
        return replace(error, headers={**error.headers, **allowed, "vary": "Origin"})


def _with_retry_after(start: Message, after_s: int) -> Message:
    """Return the start of an answer with this Retry-After."""
    later = MutableHeaders(raw=list(start["headers"]))
    later["retry-after"] = str(after_s)
    return {**start, "headers": later.raw}


def _origin(scope: Scope) -> str | None:
    value = next((value for name, value in scope["headers"] if name == b"origin"), None)
    return None if value is None or len(value) > 256 else value.decode("latin-1")


class _Attempt:
    """One try of a request at Serve, and the state of its answer."""

    def __init__(
        self,
        middleware: ProxyMiddleware,
        scope: Scope,
        body: Sequence[Message],
        receive: Receive,
        send: Send,
    ) -> None:
        self._origins, self._refusals = middleware.origins, middleware.refusals
        self._given = body
        self.body_bytes = sum(len(message.get("body", b"")) for message in body)
        headers = [header for header in scope["headers"] if header[0] not in TO_SERVE]
        self._scope, self._body = {**scope, "headers": headers}, list(body)
        self._receive, self._send = receive, send
        self._whole = not body[-1]["more_body"]
        self._gone = self._ended = self._streams = self._bodiless = False
        self._started: Message | None = None
        self._refused: Message | None = None  # the start of Serve's own answer

    async def was_lost(self, app: ASGIApp) -> bool:
        """Carry the request out; return whether it got no answer, and its client still waits."""
        try:
            await app(self._scope, self._next_message, self._relay)
        except Exception as error:
            log.error("Serve's proxy failed: %s", describe(error))
        return not (self._gone or self._started or self._refused)

    @property
    def found_no_room(self) -> bool:
        """Whether Serve refused it, since too many are waiting."""
        return self._refused is not None and self._refused["status"] == 503

    async def finish(self) -> None:
        """End an incomplete answer with an error."""
        if self._gone or self._ended:
            return
        if self._started is None:
            error = self._origins.readable(self._error(), self._scope)
            await error_response(error, self._scope)(self._scope, self._receive, self._send)
        elif self._streams:
            data = error_form(self._scope["path"]).event(LOST)
            await self._send({"type": "http.response.body", "body": data, "more_body": False})

    async def _next_message(self) -> Message:
        message = self._body.pop(0) if self._body else await self._receive()
        self._gone |= message["type"] == "http.disconnect"
        return message

    async def _relay(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = Headers(raw=message["headers"])
            kind = headers.get("content-type", "")
            if message["status"] in OF_SERVE and kind.startswith("text/plain"):
                self._refused = message
                return
            if message["status"] == 408 and self._whole:  # it was lost on its way to the replica
                self._bodiless = True
                return
            turn_s = self._refusals.note(self._scope, self._given, message["status"], headers)
            if turn_s is not None:
                message = _with_retry_after(message, turn_s)
            self._started, self._streams = message, kind.startswith("text/event-stream")
            self._origins.note(self._scope, headers)
        elif self._refused is not None or self._bodiless:
            return
        else:
            self._ended = not message.get("more_body", False)
        await self._send(message)

    def _error(self) -> HttpError:
        if self._refused is None:
            return LOST
        status = self._refused["status"]
        if status == 404:
            return HttpError(404, "not found", code="not_found")
        if status == 429:
            message = "too many requests are waiting; try again shortly"
            return HttpError(429, message, code="rate_limit_exceeded")
        message = "the service has no room now; try again shortly"
        later = {"retry-after": str(self._refusals.to_turn_s(self._scope))}
        return HttpError(503, message, code="overloaded", headers=later)


def _check_headers(headers: Sequence[tuple[bytes, bytes]]) -> None:
    """Raise InvalidRequest or HttpError if Serve could not read them."""
    if sum(len(name) + len(value) for name, value in headers) > MAX_HEAD_BYTES:
        raise HttpError(
            431, f"send at most {MAX_HEAD_BYTES} bytes of headers", code="headers_too_large"
        )
    for name, value in headers:
        try:
            name.decode("ascii"), value.decode()
        except UnicodeDecodeError:
            shown = name.decode("ascii", "replace")[:64]
            raise InvalidRequest(
                f"the header {shown} is not UTF-8", param=shown, code="invalid_header"
            ) from None


async def _gather(receive: Receive, share: BodyShare) -> list[Message] | None:
    """Return a request's body, or its first `BUFFER_BYTES`; None if the client went away.

    Raises:
        HttpError: 408, it did not arrive in time; 503, it gave way to others.
    """
    messages, size = list[Message](), 0
    try:
        async with asyncio.timeout(BODY_S) as share.scope:
            while not messages or (messages[-1]["more_body"] and size <= BUFFER_BYTES):
                message = await receive()
                if message["type"] == "http.disconnect":
                    return None
                size += len(message.get("body", b""))
                messages.append({"more_body": False, **message})
                share.check()
                if size > LARGE_BYTES:
                    share.grow(size - share.size)
                    share.check()
    except TimeoutError:
        share.check()
        text = f"the body did not arrive within {BODY_S:g} s"
        raise HttpError(408, text, code="request_timeout") from None
    finally:
        share.arrived()
    return messages


def _may_be_repeated(scope: Scope) -> bool:
    """Return whether a request that was perhaps carried out may be repeated."""
    return scope["method"] in READ_METHODS or scope["path"].endswith(tuple(USER_PATHS))
