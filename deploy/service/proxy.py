"""Middleware before Ray Serve's own HTTP handling, in the process of its proxies.

Serve refuses requests in plain text, answers "500 Internal Server Error" if a replica died, and
never ends a stream whose replica died. This middleware

- passes requests to the orchestrator's replicas itself, as far as that is the same (`direct`);
- repeats a lost request once, if that is safe, so that no request crashes more than two replicas;
  else it answers 503 in the API's form, with Retry-After;
- ends a stream that broke off with an error event;
- gathers a body before the request takes a place in a replica, so that slow bodies take none, in
  bounded memory (`bodies`);
- answers as a service that starts until Serve has a replica of the orchestrator (`starting`);
- passes large bodies to Serve one after the other, so that small ones need not wait for many;
- refuses headers that Serve cannot read (400) or that are too large (431);
- repeats a 429 for a key that just got one, and gives each refused request another Retry-After
  (`recent_refusals`);
- retries a request that only reads (/health) a few times if Serve has no room;
- lets a page of any origin read its refusals of requests with a key.

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
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from deploy.service.bodies import LARGE_BYTES, Body, BodyRoom
from deploy.service.direct import SERVES_OWN, Direct
from deploy.service.recent_refusals import RecentRefusals
from deploy.service.starting import is_starting, starting_app
from orchestrator.errors import InvalidRequest, describe
from orchestrator.http.api import credentials, error_form, error_response
from orchestrator.http.auth import READ_METHODS, USER_PATHS
from orchestrator.http.errors import EXPOSED, HttpError, http_error

log = logging.getLogger(__name__)

PAUSE_S: Final = 0.5  # seconds before a lost request is repeated
READ_AGAIN_S: Final = (0.1, 0.2, 0.4)
"""Seconds before each retry of a request that only reads, if there is no room."""
OF_SERVE: Final = {404, 408, 429, 500, 503}  # in plain text these are Serve's own answers
TURN_S: Final = 0.1  # seconds for which a large body keeps its turn, unless it is answered before
MAX_HEAD_BYTES: Final = 64 << 10  # of a request's headers
TO_SERVE: Final = {b"x-request-timeout-seconds", b"x-request-disconnect-disabled"}
"""Headers that change how Serve treats a request: a client's are removed."""
READABLE: Final = {
    "access-control-allow-origin": "*",
    "access-control-expose-headers": ", ".join(EXPOSED),
}
"""For requests with a key: a browser sends one only if the application allows the page's origin."""
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
        self.app, self.direct = app, Direct(app)
        self.refusals, self.room = RecentRefusals(), BodyRoom()
        self._large, self._starting = asyncio.Lock(), starting_app()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
        elif is_starting(self.app) and not scope["path"].startswith(SERVES_OWN):
            await self._starting(scope, receive, send)
        else:
            body = Body(self.room)
            try:
                await self._answer(scope, body, receive, send)
            finally:
                body.leave()

    async def _answer(self, scope: Scope, body: Body, receive: Receive, send: Send) -> None:
        try:
            _check_headers(scope["headers"])
            if not await body.gather(receive):
                return
            self.refusals.check(scope, body)
        except (InvalidRequest, HttpError) as error:
            await _refuse(http_error(error), scope, receive, send)
            return
        attempt = partial(self._try, scope, body, receive, send)
        made, reads = await attempt(), scope["method"] in READ_METHODS
        # One that was perhaps carried out is repeated only if that changes nothing.
        safe = body.is_whole and (reads or scope["path"].endswith(tuple(USER_PATHS)))
        if safe and made.is_lost:
            log.warning("%s %r was lost: repeating", scope["method"], scope["path"])
            await asyncio.sleep(PAUSE_S)
            made = await attempt()
        for pause_s in READ_AGAIN_S:
            if not (safe and reads and made.found_no_room):
                break
            await asyncio.sleep(pause_s)
            made = await attempt()
        await made.finish()

    async def _try(self, scope: Scope, body: Body, receive: Receive, send: Send) -> _Attempt:
        """Pass a request on, a large body in its turn."""
        attempt = _Attempt(self.refusals, scope, body, receive, send)
        with ExitStack() as turn:
            if body.size > LARGE_BYTES:
                await self._large.acquire()
                turn.callback(self._large.release)
                turn.callback(body.leave)
                later = asyncio.get_running_loop().call_later(TURN_S, turn.close)
                turn.callback(later.cancel)
            await attempt.run(self.direct if body.is_whole else self.app)
        return attempt


class _Attempt:
    """One try of a request, and the state of its answer."""

    def __init__(
        self,
        refusals: RecentRefusals,
        scope: Scope,
        body: Body,
        receive: Receive,
        send: Send,
    ) -> None:
        headers = [header for header in scope["headers"] if header[0] not in TO_SERVE]
        self._refusals, self._scope = refusals, {**scope, "headers": headers}
        self._body, self._left = body, list(body.messages)
        self._receive, self._send = receive, send
        self._gone = self._ended = self._streams = self._started = self._bodiless = False
        self._refused: int | None = None  # the status of Serve's own answer

    async def run(self, app: ASGIApp) -> None:
        try:
            await app(self._scope, self._next_message, self._relay)
        except Exception as error:
            log.error("a request failed on its way: %s", describe(error))

    @property
    def is_lost(self) -> bool:
        """Whether it got no answer, and its client still waits."""
        return not (self._gone or self._started or self._refused)

    @property
    def found_no_room(self) -> bool:
        """Whether Serve refused it, since too many are waiting."""
        return self._refused == 503

    async def finish(self) -> None:
        """End an incomplete answer with an error."""
        if self._gone or self._ended:
            return
        if not self._started:
            await _refuse(self._error(), self._scope, self._receive, self._send)
        elif self._streams:
            data = error_form(self._scope["path"]).event(LOST)
            await self._send({"type": "http.response.body", "body": data, "more_body": False})

    async def _next_message(self) -> Message:
        message = self._left.pop(0) if self._left else await self._receive()
        self._gone |= message["type"] == "http.disconnect"
        return message

    async def _relay(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers, status = Headers(raw=message["headers"]), message["status"]
            kind = headers.get("content-type", "")
            if status in OF_SERVE and kind.startswith("text/plain"):
                self._refused = status
                return
            if status == 408 and self._body.is_whole:  # it was lost on its way to the replica
                self._bodiless = True
                return
            turn_s = self._refusals.note(self._scope, self._body, status, headers)
            if turn_s is not None:
                later = MutableHeaders(raw=list(message["headers"]))
                later["retry-after"] = str(turn_s)
                message = {**message, "headers": later.raw}
            self._started, self._streams = True, kind.startswith("text/event-stream")
        elif self._refused or self._bodiless:
            return
        else:
            self._ended = not message.get("more_body", False)
        await self._send(message)

    def _error(self) -> HttpError:
        if self._refused is None:
            return LOST
        if self._refused == 404:
            return HttpError(404, "not found", code="not_found")
        if self._refused == 429:
            message = "too many requests are waiting; try again shortly"
            return HttpError(429, message, code="rate_limit_exceeded")
        message = "the service has no room now; try again shortly"
        later = {"retry-after": str(self._refusals.to_turn_s(self._scope))}
        return HttpError(503, message, code="overloaded", headers=later)


async def _refuse(error: HttpError, scope: Scope, receive: Receive, send: Send) -> None:
    if credentials(Headers(scope=scope)):
        error = replace(error, headers={**error.headers, **READABLE})
    await error_response(error, scope)(scope, receive, send)


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
