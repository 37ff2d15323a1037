"""Requests from a proxy to the orchestrator's replicas, over one connection to each.

Serve makes a request a call to an actor, its body a second call from the replica back to the proxy,
and each part of the answer a message: some 15 ms of CPU in two processes. Here the request is one
frame, and each part of the answer another (`workers/replica/channel.py`). Serve still starts,
checks, scales and replaces the replicas, and takes what `Direct` does not.

`Direct` is the proxy's end, `HttpListener` the replica's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass
from random import random
from typing import Any, Final

from ray import serve
from ray.serve._private.http_util import RequestIdMiddleware
from ray.util import get_node_ip_address
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from orchestrator.background import stop
from orchestrator.errors import describe
from workers.replica.channel import Connection, Listener
from workers.replica.pool import Location, Pool

log = logging.getLogger(__name__)

END_S: Final = 5.0  # for a request whose client is gone to end by itself
SERVES_OWN: Final = "/-/"  # the paths that Serve's proxy answers itself, such as /-/healthz
SENT: Final = (
    "type", "asgi", "http_version", "method", "scheme", "path", "raw_path", "query_string",
    "root_path", "headers", "client", "server",
)  # fmt: skip
"""What a replica needs of a request's scope, and pickle can write."""


@dataclass(frozen=True, slots=True)
class HttpLocation(Location):
    """A replica that takes requests: at most `room` at once from each proxy."""

    room: int


class HttpListener:
    """A replica's end, and the application that Serve runs: answers requests by `app`.

    Args:
        room: see `HttpLocation`.
        end_s: how long a replica that ends waits for its requests.
    """

    def __init__(self, app: ASGIApp, room: int, end_s: float) -> None:
        self._app, self._room, self._end_s = app, room, end_s
        self._listener = Listener({"http": self._answer})

    async def location(self) -> HttpLocation:
        replica = serve.get_replica_context().replica_tag
        address = await self._listener.address(get_node_ip_address())
        return HttpLocation(replica, address, self._room)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request that Serve passed on. The application's life ends after its requests."""

        async def later() -> Message:
            message = await receive()
            if message["type"] == "lifespan.shutdown":
                await self._listener.close(self._end_s)
            return message

        await self._app(scope, later if scope["type"] == "lifespan" else receive, send)

    async def _answer(self, scope: Mapping[str, Any], body: bytes) -> AsyncGenerator[Message, None]:
        """Yield the messages of the answer; closing this means that the client is gone."""
        messages = asyncio.Queue[Message | None]()
        asked, gone = [{"type": "http.request", "body": body, "more_body": False}], asyncio.Event()

        async def receive() -> Message:
            if asked:
                return asked.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        async def run() -> None:
            try:
                await self._app(dict(scope), receive, messages.put)
            except Exception as error:  # the application has logged what it could not answer
                log.error("an answer broke off: %s", describe(error))
            finally:
                messages.put_nowait(None)

        task, answers = asyncio.create_task(run()), False
        try:
            while (message := await messages.get()) is not None:
                answers = True
                yield message
        finally:
            gone.set()
            try:
                if answers:  # else it may wait for a place, and does not look
                    await asyncio.wait([task], timeout=END_S)
            finally:
                await stop(task)


class Direct:
    """An ASGI application before Serve's `app`, for requests whose body is whole.

    It passes a request to the replica that has the fewest of this proxy's. Serve takes those that
    find no replica with room, those of other applications, and all if it is to time them out.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app, self._forward = app, RequestIdMiddleware(self._pass_on)
        self._pool: Pool[HttpLocation] | None = None
        self._names: tuple[str, str] | None = None  # the pool's

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        proxy = serves_proxy(self._app)
        connection = None if proxy is None else self._choose(proxy, scope["path"])
        if connection is None:
            await self._app(scope, receive, send)
            return
        proxy._ongoing_requests_start()  # it counts them when its node is to go
        try:
            scope = {name: scope[name] for name in SENT if name in scope}
            await self._forward({**scope, "to": connection}, receive, send)
        finally:
            proxy._ongoing_requests_end()

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        connection: Connection = scope.pop("to")
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body, more = body + message.get("body", b""), message.get("more_body", False)

        async def answer() -> None:
            async with aclosing(connection.call("http", scope, body)) as messages:
                async for message in messages:
                    await send(message)

        async def hang_up() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass

        tasks = answering, leaving = [asyncio.create_task(one()) for one in (answer, hang_up)]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await stop(*tasks)
        for one in (answering, leaving):
            with suppress(asyncio.CancelledError):
                one.result()

    def _choose(self, proxy: Any, path: str) -> Connection | None:
        """Return the connection for a path; None if Serve must take the request."""
        if path.startswith(SERVES_OWN) or proxy.request_timeout_s is not None:
            return None
        match = proxy.proxy_router.match_route(path)
        if match is None or match[0] != "/" or match[1].deployment_name != "Orchestrator":
            return None
        names = match[1].deployment_name, match[1].app_name
        if self._pool is None or self._names != names:
            handle = serve.get_deployment_handle(*names, _check_exists=False)
            self._pool, self._names = Pool(handle, "location", HttpLocation), names
        self._pool.look_again()
        known = self._pool.known
        free = [
            (one.calls, random(), one)
            for replica, one in self._pool.connections.items()
            if one.calls < known[replica].room
        ]
        return min(free)[2] if free else None


def serves_proxy(app: ASGIApp) -> Any:
    """Return Serve's proxy, which is at the end of a chain of middleware, or None."""
    inner: Any = app
    while inner is not None and not hasattr(inner, "proxy_router"):
        inner = getattr(inner, "_app", None)
    return inner
