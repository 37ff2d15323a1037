"""Requests that a proxy passes to the orchestrator's replicas itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import uvicorn
from ray import serve
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, StreamingResponse
from starlette.types import Receive, Scope, Send

from deploy.service import direct
from deploy.service.direct import Direct, HttpListener
from deploy.service.http_protocol import BoundedProtocol
from deploy.service.proxy import ProxyMiddleware
from tests.orchestrator.waiting import until
from workers.replica import pool as direct_pool


class Application:
    """A replica's application; notes what becomes of its requests."""

    def __init__(self, name: str) -> None:
        self.name, self.live, self.hung_up = name, 0, 0
        self.go = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.live += 1
        try:
            request = Request(scope, receive)
            if scope["path"] == "/fault":
                raise KeyError("a fault")
            if scope["path"] == "/wait":
                watch = asyncio.create_task(self._watch(receive))
                await StreamingResponse(self._parts())(scope, receive_nothing, send)
                watch.cancel()
                return
            said = {
                "replica": self.name,
                "body": (await request.body()).decode(),
                "url": str(request.url),
                "headers": dict(request.headers),
            }
            await JSONResponse(said)(scope, receive, send)
        finally:
            self.live -= 1

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.hung_up += 1
        self.go.set()

    async def _parts(self) -> AsyncIterator[str]:
        yield "one "
        await self.go.wait()
        yield "two"


async def receive_nothing() -> Any:
    await asyncio.Event().wait()


class Serve:
    """Stands for Serve's proxy, and for its handle of the orchestrator's replicas."""

    deployment_name, app_name = "Orchestrator", "baton"

    def __init__(self, *replicas: HttpListener) -> None:
        self.replicas = [*replicas]
        self.request_timeout_s: float | None = None
        self.prefix = "/"
        self.open = self.most = 0
        running = SimpleNamespace(running_replicas_populated=lambda: True)
        self.proxy_router = SimpleNamespace(match_route=self._match, handles={"one": running})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await PlainTextResponse("Serve")(scope, receive, send)

    def _match(self, path: str) -> Any:
        return (self.prefix, self, False) if path.startswith(self.prefix) else None

    def _ongoing_requests_start(self) -> None:
        self.open += 1
        self.most = max(self.most, self.open)

    def _ongoing_requests_end(self) -> None:
        self.open -= 1

    def broadcast(self, method: str) -> Any:
        assert method == "location"
        calls = [SimpleNamespace(get_async=one.location) for one in self.replicas]

        async def results() -> Any:
            return calls

        return SimpleNamespace(_fetch_replica_results_async=results)


@pytest.fixture(autouse=True)
def pools(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    names = iter(f"replica {n}" for n in range(100))
    tags: dict[Any, str] = {}

    async def location(self: HttpListener) -> Any:
        tag = tags.setdefault(self, next(names))
        return direct.HttpLocation(tag, await self._listener.address("127.0.0.1"), self._room)

    monkeypatch.setattr(HttpListener, "location", location)
    known: dict[str, Any] = {}
    monkeypatch.setattr(direct_pool, "LOOK_S", 0.3)
    monkeypatch.setattr(serve, "get_deployment_handle", lambda *_, **__: known["serve"])
    return known


@asynccontextmanager
async def serving(known: dict[str, Any], proxy: Serve) -> AsyncIterator[httpx.AsyncClient]:
    known["serve"] = proxy
    config = uvicorn.Config(
        ProxyMiddleware(proxy), port=0, log_level="critical", lifespan="off", http=BoundedProtocol
    )
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve())
    await until(lambda: server.started)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
            await client.get("/v1/x")  # Serve answers; the replicas are looked for meanwhile
            await asyncio.sleep(0.1)
            yield client
    finally:
        server.should_exit = True
        await task


async def test_requests_reach_the_replicas_as_they_are(pools: dict[str, Any]) -> None:
    replicas = [HttpListener(Application(name), 100, 60.0) for name in "ab"]
    proxy = Serve(*replicas)
    async with serving(pools, proxy) as client:
        for number in range(4):
            answer = await client.post(f"/v1/x?n={number}", content="é" * 1000)
            said = answer.json()
            assert said["body"] == "é" * 1000
            assert said["url"].endswith(f"/v1/x?n={number}")
            assert answer.headers["x-request-id"] == said["headers"]["x-request-id"]
        named = await client.get("/v1/x", headers={"x-request-id": "mine"})
        assert named.headers.get_list("x-request-id") == ["mine"]
        await until(lambda: not proxy.open)
        assert proxy.most == 1
        long = await client.post("/v1/x", content=b"x" * (2 << 20))
        assert long.text == "Serve"  # which can pass a body on as it comes


async def test_a_replica_with_fewer_requests_gets_the_next_one(pools: dict[str, Any]) -> None:
    apps = [Application(name) for name in "ab"]
    async with serving(pools, Serve(*(HttpListener(one, 2, 60.0) for one in apps))) as client:
        waiting = [asyncio.create_task(client.get("/wait")) for _ in range(4)]
        await until(lambda: [one.live for one in apps] == [2, 2])
        assert (await client.get("/v1/x")).text == "Serve"  # the replicas have no room
        for one in apps:
            one.go.set()
        assert [answer.text for answer in await asyncio.gather(*waiting)] == ["one two"] * 4
        assert (await client.get("/v1/x")).json()["replica"] in "ab"


async def test_a_client_that_hangs_up_is_noticed(pools: dict[str, Any]) -> None:
    app = Application("a")
    async with serving(pools, Serve(HttpListener(app, 100, 60.0))) as client:
        async with client.stream("GET", "/wait") as answer:
            assert await anext(answer.aiter_text()) == "one "
        await until(lambda: app.hung_up == 1)
        await until(lambda: app.live == 0)


async def test_a_request_is_made_again_if_its_replica_ends(pools: dict[str, Any]) -> None:
    apps = [Application(name) for name in "ab"]
    replicas = [HttpListener(one, 100, 60.0) for one in apps]
    proxy = Serve(*replicas)
    async with serving(pools, proxy) as client:
        waiting = asyncio.create_task(client.get("/wait"))
        await until(lambda: sum(one.live for one in apps) == 1)
        first = next(n for n, one in enumerate(apps) if one.live)
        proxy.replicas.pop(first)
        await replicas[first]._listener.close(0)
        with pytest.raises(httpx.RemoteProtocolError):
            await waiting  # some of the answer was there
        for _ in range(3):
            assert (await client.get("/v1/x")).json()["replica"] == apps[1 - first].name


async def test_a_replica_that_leaves_ends_its_requests_first(pools: dict[str, Any]) -> None:
    old, new = Application("old"), Application("new")
    listener = HttpListener(old, 100, 60.0)
    proxy = Serve(listener)
    async with serving(pools, proxy) as client:
        waiting = asyncio.create_task(client.get("/wait"))
        await until(lambda: old.live == 1)
        proxy.replicas = [HttpListener(new, 100, 60.0)]
        left = asyncio.Event()
        leaving = asyncio.create_task(lifespan(listener, left))
        await asyncio.sleep(0.1)
        assert (await client.get("/v1/x")).text == "Serve"  # no other is known yet
        await asyncio.sleep(direct_pool.LOOK_S)
        for _ in range(2):
            said = await client.get("/v1/x")
            await asyncio.sleep(0.1)
        assert said.json()["replica"] == "new"
        assert not left.is_set()
        old.go.set()
        assert (await waiting).text == "one two"
        await leaving
        assert left.is_set()


async def lifespan(app: Any, left: asyncio.Event) -> None:
    """End an application's life as Serve does."""
    messages = [{"type": "lifespan.shutdown"}]

    async def inner(scope: Scope, receive: Receive, send: Send) -> None:
        assert (await receive())["type"] == "lifespan.shutdown"
        left.set()

    app._app = inner

    async def receive() -> Any:
        return messages.pop()

    await app({"type": "lifespan"}, receive, receive_nothing)


async def test_a_fault_of_the_application_is_an_error(pools: dict[str, Any]) -> None:
    async with serving(pools, Serve(HttpListener(Application("a"), 100, 60.0))) as client:
        answer = await client.get("/fault")
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "replica_lost")


@pytest.mark.parametrize("what", ["prefix", "timeout", "other", "none", "own"])
async def test_serve_takes_the_rest(pools: dict[str, Any], what: str) -> None:
    proxy = Serve(HttpListener(Application("a"), 100, 60.0))
    if what == "prefix":
        proxy.prefix = "/v1"
    elif what == "timeout":
        proxy.request_timeout_s = 5.0
    elif what == "other":
        proxy.deployment_name = "Another"
    elif what == "none":
        proxy.replicas = []
    async with serving(pools, proxy) as client:
        path = "/-/healthz" if what == "own" else "/v1/x"
        assert (await client.get(path)).text == "Serve"


async def test_what_is_not_serves_proxy_is_called_as_it_is() -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await PlainTextResponse("other")(scope, receive, send)

    await Direct(app)({"type": "http", "path": "/"}, receive_nothing, send)
    assert sent[-1]["body"] == b"other"
