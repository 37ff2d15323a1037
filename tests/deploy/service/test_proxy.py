"""What clients see of replicas that die, of slow bodies and of headers that cannot be read."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import uvicorn
from ray.serve._private.http_util import RequestIdMiddleware
from starlette.datastructures import Headers
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.types import Message, Receive, Scope, Send

from deploy.service import bodies, http_protocol, proxy, recent_refusals
from deploy.service.bodies import LARGE_BYTES, Body, BodyRoom
from deploy.service.http_protocol import BoundedProtocol
from deploy.service.proxy import MAX_HEAD_BYTES, ProxyMiddleware, middlewares
from deploy.service.recent_refusals import RecentRefusals
from orchestrator.http.errors import (
    LIMIT,
    MOST_RETRY_AFTER_S,
    NO_PLACE,
    RESET,
    HttpError,
    http_error,
    no_place,
)
from tests.orchestrator.serving import listening, until

CHAT = "/v1/chat/completions"


class Serve:
    """Stands for Serve's proxy: the given answers one after the other, and then the body itself."""

    def __init__(self, *answers: Callable[[Scope, Receive, Send], Any]) -> None:
        self.answers, self.calls, self.headers = list(answers), 0, list[int]()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.calls += 1
        self.headers.append(len(scope["headers"]))
        scope["headers"].append((b"x-request-id", b"1"))
        if self.answers:
            await self.answers.pop(0)(scope, receive, send)
            return
        message: Message = {"more_body": True}
        body = b""
        while message["more_body"]:
            message = await receive()
            body += message["body"]
        await JSONResponse({"bytes": len(body)})(scope, receive, send)


async def dies(scope: Scope, receive: Receive, send: Send) -> None:
    await receive()


async def fails(scope: Scope, receive: Receive, send: Send) -> None:
    raise RuntimeError("the replica is gone")


def says(status: int) -> Any:
    return PlainTextResponse("Request dropped due to backpressure", status)


async def breaks_off(scope: Scope, receive: Receive, send: Send) -> None:
    headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    data = b'data: {"choices": []}\n\n'
    await send({"type": "http.response.body", "body": data, "more_body": True})


@contextmanager
def serving(app: Any, clock: Callable[[], float] = time.monotonic) -> Iterator[str]:
    middleware = ProxyMiddleware(app)
    middleware.refusals = RecentRefusals(clock)
    config = uvicorn.Config(
        middleware, port=0, log_level="critical", lifespan="off", http=BoundedProtocol
    )
    with listening(config) as url:
        yield url


def connection(url: str) -> socket.socket:
    host, port = url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=60)


def told(url: str, *sent: bytes) -> bytes:
    """What is received on a bare connection until it is closed."""
    received = b""
    with connection(url) as raw, suppress(ConnectionError):
        for part in sent:
            raw.sendall(part)
        while more := raw.recv(4096):
            received += more
    return received


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy, "PAUSE_S", 0.0)


class Starting(Serve):
    """Serve's proxy before a replica of the orchestrator runs."""

    def __init__(self) -> None:
        super().__init__()
        self.runs = False
        handle = SimpleNamespace(running_replicas_populated=lambda: self.runs)
        self.proxy_router = SimpleNamespace(handles={"orchestrator": handle})
        self.request_timeout_s = 60.0  # so Serve passes all requests on


def test_a_service_that_starts_says_so_on_every_path() -> None:
    app = Starting()
    with serving(RequestIdMiddleware(app)) as url:
        page = httpx.get(f"{url}/ui")
        assert (page.status_code, "<html" in page.text) == (200, True)
        assert httpx.get(f"{url}/ui/app.js").status_code == 200
        assert httpx.get(f"{url}/health").status_code == 200
        ready = httpx.get(f"{url}/ready")
        assert (ready.status_code, ready.json()["ready"]) == (503, False)
        for answer in (httpx.get(f"{url}/v1/models"), httpx.post(f"{url}{CHAT}", content=b"x")):
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "starting")
            assert answer.headers["retry-after"]
        message = httpx.post(f"{url}/v1/messages", content=b"x")
        assert message.json()["error"]["type"] == "overloaded_error"
        assert app.calls == 0
        assert httpx.get(f"{url}/-/healthz").json() == {"bytes": 0}  # Serve's own
        app.runs = True
        assert httpx.post(f"{url}{CHAT}", content=b"x").json() == {"bytes": 1}


@pytest.mark.parametrize("way", [dies, fails])
def test_a_request_of_which_nothing_was_answered_is_made_again(way: Any) -> None:
    app = Serve(way)
    with serving(app) as url:
        reply = httpx.post(f"{url}{CHAT}", content=b"x" * 100_000)
    assert (reply.status_code, reply.json()) == (200, {"bytes": 100_000})
    assert app.calls == 2
    assert len(set(app.headers)) == 1  # each try is made of the request as it came


@pytest.mark.parametrize(
    ("method", "path", "size", "calls"),
    [
        ("POST", CHAT, 10, 2),  # it may be what ends replicas
        ("GET", "/v1/models", 0, 2),
        ("POST", "/v1/policies", 10, 1),  # perhaps it was carried out
        ("POST", CHAT, (1 << 20) + (1 << 18), 1),  # its beginning is not kept
    ],
)
def test_one_that_is_lost_for_good_is_told_in_openais_form(
    method: str, path: str, size: int, calls: int
) -> None:
    app = Serve(*[dies] * 9)
    with serving(app) as url:
        reply = httpx.request(method, f"{url}{path}", content=b"x" * size)
    assert app.calls == calls
    assert reply.status_code == 503
    assert reply.json()["error"]["code"] == "replica_lost"
    assert int(reply.headers["retry-after"]) >= 1


@pytest.mark.parametrize(
    ("status", "told", "code"),
    [(503, 503, "overloaded"), (408, 503, "overloaded"), (429, 429, "rate_limit_exceeded")],
)
def test_what_serve_refuses_is_told_in_openais_form(status: int, told: int, code: str) -> None:
    app = Serve(says(status))
    with serving(app) as url:
        reply = httpx.post(f"{url}{CHAT}", content=b"{}")
    assert (reply.status_code, reply.json()["error"]["code"], app.calls) == (told, code, 1)
    assert "retry-after" in reply.headers
    with serving(Serve(says(404))) as url:
        assert httpx.get(f"{url}/nowhere").json()["error"]["code"] == "not_found"


def test_a_page_reads_a_refusal_only_of_a_request_with_a_key() -> None:
    # A browser sends a key only if the application allows the page's origin; else any page could
    # read the refusals of a service that has no keys.
    with serving(Serve(says(503), says(503))) as url:
        keyless = httpx.post(f"{url}{CHAT}", content=b"{}")
        keyed = httpx.post(f"{url}{CHAT}", content=b"{}", headers={"authorization": "Bearer k"})
    assert (keyless.status_code, keyed.status_code) == (503, 503)
    assert "access-control-allow-origin" not in keyless.headers
    assert keyed.headers["access-control-allow-origin"] == "*"
    assert "retry-after" in keyed.headers["access-control-expose-headers"]


def test_what_only_reads_is_asked_again_where_there_is_no_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(proxy, "READ_AGAIN_S", (0.0, 0.0))
    app = Serve(says(503), says(503))
    with serving(app) as url:
        assert (httpx.get(f"{url}/health").status_code, app.calls) == (200, 3)
    app = Serve(*[says(503)] * 9)
    with serving(app) as url:
        assert (httpx.get(f"{url}/health").status_code, app.calls) == (503, 3)


def test_an_answer_of_the_application_passes_as_it_is() -> None:
    own = JSONResponse({"error": {"code": "its own"}}, 500)
    cors = PlainTextResponse("Disallowed CORS origin", 400)  # to a page's preflight
    with serving(Serve(own, cors, PlainTextResponse("metrics"))) as url:
        assert httpx.post(f"{url}{CHAT}").json() == {"error": {"code": "its own"}}
        refused = httpx.request("OPTIONS", f"{url}{CHAT}")
        assert (refused.status_code, refused.text) == (400, "Disallowed CORS origin")
        assert httpx.get(f"{url}/metrics").text == "metrics"


@pytest.mark.parametrize("path", [CHAT, "/v1/responses"])
def test_a_stream_that_breaks_off_ends_by_one_error(path: str) -> None:
    app = Serve(breaks_off)
    with serving(app) as url:
        lines = httpx.post(f"{url}{path}", content=b"{}").text.strip().splitlines()
    told = json.loads(lines[-1].removeprefix("data: "))
    assert told["error"]["code"] == "replica_lost"
    assert app.calls == 1
    assert ("event: error" in lines) == path.endswith("responses")


@pytest.mark.parametrize("name", ["authorization", "x-request-id", "x-session-id", "traceparent"])
def test_headers_that_are_no_text_are_refused(name: str) -> None:
    app = Serve()
    with serving(app) as url:
        reply = httpx.post(f"{url}{CHAT}", headers=[(name.encode(), b"a\xffb")])
        assert (reply.status_code, app.calls) == (400, 0)
        assert reply.json()["error"]["code"] == "invalid_header"
        assert name in reply.json()["error"]["message"]
        text = httpx.post(f"{url}{CHAT}", headers=[(name.encode(), "Café".encode())])
        assert text.status_code == 200


def test_headers_are_bounded() -> None:
    app = Serve()
    with serving(app) as url:
        for size in (MAX_HEAD_BYTES + 1, 40 * MAX_HEAD_BYTES):
            sent = b"GET /health HTTP/1.1\r\nhost: a\r\nx: " + b"y" * size + b"\r\n\r\n"
            assert told(url, sent)[:12] in (b"HTTP/1.1 431", b"")  # it may close before it is read
        assert httpx.get(f"{url}/health").status_code == 200
    assert app.calls == 1


def test_what_is_no_request_is_refused_in_the_same_form() -> None:
    app = Serve()
    with serving(app) as url:
        for sent in (b"nonsense\r\n\r\n", b"GET / HTTP/1.1\r\nno colon\r\n\r\n"):
            head, _, body = told(url, sent).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 400")
            assert json.loads(body)["error"]["code"] == "invalid_http"
    assert app.calls == 0


def test_trailers_are_read_past() -> None:
    app = Serve()
    head = b"POST /x HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\n"
    with serving(app) as url:
        with connection(url) as raw:
            for end in (b"", b"x: \xff\r\ny: " + b"z" * 1000 + b"\r\n"):
                raw.sendall(head + end + b"\r\n")
                assert raw.recv(4096).startswith(b"HTTP/1.1 200")
        assert app.headers[0] == app.headers[1]
        told(url, head, *[b"x: " + b"y" * MAX_HEAD_BYTES + b"\r\n"] * 40)  # it is closed in the end


def test_a_client_does_not_tell_serve_how_to_treat_it() -> None:
    app = Serve()
    own = {"X-Request-Timeout-Seconds": "0", "x-request-disconnect-disabled": "?1"}
    with serving(app) as url:
        for headers in ({}, own):
            assert httpx.post(f"{url}{CHAT}", headers=headers).status_code == 200
    assert app.headers[0] == app.headers[1]


def test_headers_and_bodies_arrive_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    made, connection_made = list[BoundedProtocol](), BoundedProtocol.connection_made

    def record(self: BoundedProtocol, transport: Any) -> None:
        connection_made(self, transport)
        made.append(self)

    monkeypatch.setattr(BoundedProtocol, "connection_made", record)
    monkeypatch.setattr(bodies, "BODY_S", 0.2)
    app = Serve()
    with serving(app) as url:
        begun = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\n{"
        with connection(url) as body:
            body.sendall(begun)
            assert body.recv(100).startswith(b"HTTP/1.1 408")
        with connection(url) as slow:
            slow.sendall(b"GET /health HTTP/1.1\r\nx")
            until(lambda: len(made) == 2 and made[1]._head_bytes)
            made[1].loop.call_soon_threadsafe(made[1]._too_late)
            assert slow.recv(100).startswith(b"HTTP/1.1 408")
        monkeypatch.setattr(http_protocol, "HEAD_S", 0.2)
        assert told(url) == b""  # one that sends nothing is closed
        assert app.calls == 0


def test_each_request_of_a_connection_has_time_for_its_head(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    awaited, await_head = list[str](), BoundedProtocol._await_head

    def record(self: BoundedProtocol) -> None:
        await_head(self)
        awaited.append("begun")

    monkeypatch.setattr(BoundedProtocol, "_await_head", record)
    with serving(Serve()) as url, httpx.Client() as kept:
        for _ in range(3):
            assert kept.get(f"{url}/health").status_code == 200
    assert len(awaited) == 3


def test_ray_is_told_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uvicorn.config, "HTTP_PROTOCOLS", dict(uvicorn.config.HTTP_PROTOCOLS))
    (one,) = middlewares()
    assert one.cls is ProxyMiddleware
    assert uvicorn.Config(Serve(), http="auto").http == "auto"
    config = uvicorn.Config(Serve())
    config.load()
    assert config.http_protocol_class is BoundedProtocol


def test_a_body_that_did_not_reach_the_replica_is_sent_again() -> None:
    late = JSONResponse({"error": {"code": "request_timeout"}}, 408)
    app = Serve(late)
    with serving(app) as url:
        reply = httpx.post(f"{url}{CHAT}", content=b"x" * 10)
        assert (reply.status_code, reply.json(), app.calls) == (200, {"bytes": 10}, 2)
        app.answers = [late, late]
        assert httpx.post(f"{url}{CHAT}", content=b"x").json()["error"]["code"] == "replica_lost"
        app.answers = [late]  # it is the client that was late with a body that is not kept
        assert httpx.post(f"{url}{CHAT}", content=b"x" * (3 << 20)).status_code == 408


async def _ask(app: Any, path: str, size: int, rest: asyncio.Event | None = None) -> int | None:
    """Send a body of this size, and again after `rest`; return the status."""
    came, status = 0, list[int]()

    async def receive() -> Message:
        nonlocal came
        came += 1
        if came == 2 and rest is not None:
            await rest.wait()
        more = rest is not None and came == 1
        return {"type": "http.request", "body": b"x" * size, "more_body": more}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            status.append(message["status"])

    await app({"type": "http", "method": "POST", "path": path, "headers": []}, receive, send)
    return status[0]


async def test_large_bodies_have_room_for_so_much_and_the_slowest_gives_way() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        held.append(scope["path"])
        await answered.wait()
        await JSONResponse({})(scope, receive, send)

    def ask(path: str, size: int, rest: asyncio.Event | None = None) -> asyncio.Task[int | None]:
        return asyncio.create_task(_ask(middleware, path, size, rest))

    middleware, held, large = ProxyMiddleware(app), list[str](), LARGE_BYTES + 1
    answered, never = asyncio.Event(), asyncio.Event()
    middleware.room = BodyRoom(4 * large)
    slow = [ask(f"/slow{n}", large, never) for n in range(4)]
    await asyncio.sleep(0)
    whole = [ask("/whole", large) for _ in range(3)]
    assert await asyncio.gather(*slow[:3]) == [503] * 3  # those that came first
    small = ask("/small", LARGE_BYTES)
    while held.count("/small") < 1 or held.count("/whole") < 1:
        await asyncio.sleep(0)
    more = [ask("/more", large) for _ in range(2)]
    assert (await slow[3], await more[1]) == (503, 503)  # nothing that arrives is left but itself
    answered.set()
    assert await asyncio.gather(*whole, small, more[0]) == [200] * 5
    assert await asyncio.gather(*(ask("/later", large) for _ in range(4))) == [200] * 4


async def test_a_body_that_gives_way_when_its_time_is_up_breaks_none() -> None:
    room = BodyRoom(1)
    late, other = Body(room), Body(room)
    async with asyncio.timeout(60) as late._wait:
        pass  # its time cannot change any more
    late.size = other.size = 1
    room.grow(late)
    room.grow(other)
    assert (late.held, other.held) == (0, 1)


async def test_large_bodies_have_their_turns_and_small_ones_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(proxy, "TURN_S", 3600.0)
    live, order = list[str](), list[str]()
    answered = {"large": asyncio.Event(), "small": asyncio.Event(), "slow": asyncio.Event()}

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        name = scope["path"]
        live.append(name)
        assert live.count("large") <= 1
        await answered[name].wait()
        live.remove(name)
        order.append(name)
        await JSONResponse({})(scope, receive, send)

    def ask(name: str, size: int = LARGE_BYTES + 1) -> asyncio.Task[int | None]:
        return asyncio.create_task(_ask(middleware, name, size))

    middleware = ProxyMiddleware(app)
    large, small = [ask("large") for _ in range(5)], ask("small", 100)
    while sorted(live) != ["large", "small"]:
        await asyncio.sleep(0)
    answered["small"].set()
    await small
    answered["large"].set()
    await asyncio.gather(*large)
    assert order == ["small", *["large"] * 5]
    monkeypatch.setattr(proxy, "TURN_S", 0.0)
    slow = ask("slow")
    await ask("large")  # the other's turn ends before its answer
    answered["slow"].set()
    await slow
    assert order[-2:] == ["large", "slow"]


def test_what_a_key_was_just_told_it_is_told_again_at_no_cost() -> None:
    now = [0.0]

    def full(_: Scope, __: Receive, ___: Send) -> Any:
        return http_error(no_place(3, 9.0, 2.0)).response()(_, __, ___)

    app = Serve(full, full)
    with serving(app, clock=lambda: now[0]) as url:

        def ask(key: str, path: str = CHAT) -> httpx.Response:
            return httpx.post(url + path, json={}, headers={"authorization": f"Bearer {key}"})

        first, again = ask("loud"), ask("loud")
        assert (first.status_code, again.status_code, app.calls) == (429, 429, 1)
        assert again.json() == first.json()
        later = [one.headers["retry-after"] for one in (first, again, ask("loud"))]
        assert later == ["3", "5", "7"]  # each has a turn of its own
        assert ask("quiet").status_code == 429  # a key of its own: it is asked about
        assert app.calls == 2
        assert ask("loud", "/v1/messages/count_tokens").status_code == 429  # it takes a place, too
        assert app.calls == 2
        assert ask("loud", "/v1/feedback").status_code == 200
        assert httpx.get(f"{url}/health").status_code == 200
        now[0] += recent_refusals.MOST_S
        assert ask("loud").status_code == 200


def body(parameters: dict[str, Any]) -> Body:
    made, text = Body(BodyRoom()), json.dumps(parameters).encode()
    half = len(text) // 2
    made.messages = [
        {"type": "http.request", "body": text[:half], "more_body": True},
        {"type": "http.request", "body": text[half:], "more_body": False},
    ]
    return made


PLAIN = body({"messages": [{"role": "user", "content": 'the words "n" and "priority"'}]})


def scope(key: int = 0, path: str = CHAT) -> dict[str, Any]:
    header = (b"authorization", b"Bearer %d" % key)
    return {"method": "POST", "path": path, "headers": [header]}


class Refusals(RecentRefusals):
    """By a clock that a test moves; `again` is the Retry-After of a repeated refusal."""

    def __init__(self) -> None:
        super().__init__(lambda: self.now, random.Random(1))
        self.now = 0.0

    def noted(
        self, headers: dict[str, str], key: int = 0, *, sent: Body = PLAIN, status: int = 429
    ) -> int | None:
        return self.note(scope(key), sent, status, Headers(headers))

    def again(self, key: int = 0) -> int:
        with pytest.raises(HttpError, match="too many requests") as told:
            self.check(scope(key), PLAIN)
        return int(told.value.headers["retry-after"])


def test_only_a_refusal_for_want_of_a_place_is_told_again() -> None:
    refusals, known = Refusals(), no_place(1, 0.6, 10.0).headers
    refusals.noted(dict([NO_PLACE]), status=200)
    refusals.noted({"retry-after": "1"})  # of another kind
    for other in ({"retry-after": "soon"}, {LIMIT: "0"}, {LIMIT: "many"}):
        assert refusals.noted({**known, **other}) is None
    for missing in ("retry-after", LIMIT):  # another release may say less
        assert refusals.noted({k: v for k, v in known.items() if k != missing}) is None
    for other in ({RESET: "1s"}, {RESET: "-5ms"}, {NO_PLACE[0]: "1"}):  # it holds for no other
        assert refusals.noted({**known, **other}) is not None
    refusals.check(scope(0), PLAIN)
    for key in range(recent_refusals.KEYS + 1):
        refusals.noted(known, key)
    refusals.check(scope(0), PLAIN)  # the oldest of too many
    assert refusals.again(1) == 11
    refusals.now = 0.25
    with pytest.raises(HttpError) as told:
        refusals.check(scope(1), PLAIN)
    assert told.value.headers == no_place(21, 0.35, 10.0).headers  # the third turn
    refusals.now = 0.6
    refusals.check(scope(1), PLAIN)
    refusals.noted(no_place(1, 60, 1.0).headers, 1)
    refusals.now += 0.9 * recent_refusals.MOST_S
    refusals.again(1)
    refusals.now += 0.1 * recent_refusals.MOST_S
    refusals.check(scope(1), PLAIN)  # however long it says that it holds


def test_each_that_is_refused_has_a_turn_of_its_own() -> None:
    refusals, refused = Refusals(), no_place(4, 0.5, 1.5).headers
    assert refusals.noted(refused) == 4
    assert [refusals.again() for _ in range(4)] == [6, 7, 8, 10]
    refusals.now = 2.0  # the turns of others are kept, whatever holds
    assert refusals.noted(no_place(4, 0.0, 1.5).headers) == 10
    refusals.check(scope(), PLAIN)  # which said that it holds for no other
    assert refusals.noted(refused) == 11
    turns = [refusals.again() for _ in range(15)]
    assert turns == [12, 14, 16, 17, 18, 20, 22, 23, 24, 26, 28, 29, 30, 32, 34]
    assert {refusals.again() for _ in range(60)} == {*range(19, 35)}
    refusals.now = 36.0  # the last turn is in 35.5 s
    assert refusals.noted(refused) == 4
    assert refusals.noted(refused, 1) == 4
    refusals.now = 200.0
    slow = no_place(59, 0.5, 60.0).headers
    assert [refusals.noted(slow) for _ in range(3)] == [MOST_RETRY_AFTER_S] * 3


def test_those_that_serve_refuses_have_turns_too() -> None:
    refusals = Refusals()
    later = [refusals.to_turn_s(scope()) for _ in range(41)]
    assert later == sorted(later)
    assert (later[0], later[-1]) == (1, 5)  # a tenth of a second each
    refusals.noted(no_place(2, 0.0, 5.0).headers, 1)
    assert [refusals.to_turn_s(scope(1)) for _ in range(3)] == [7, 12, 17]
    assert refusals.to_turn_s(scope(1, "/v1/feedback")) == 1


@pytest.mark.parametrize(
    "own", [{"priority": -1}, {"n": 1}, {"prompt": ["a", "b"]}, {"prompt": [[1], [2]]}]
)
def test_who_says_when_it_is_their_turn_is_asked_about(own: dict[str, Any]) -> None:
    refusals, refused = Refusals(), no_place(1, 0.6, 1.0).headers
    assert refusals.noted(refused, sent=body(own)) == 1  # it has a turn, too
    refusals.check(scope(), PLAIN)  # what it was told holds for no other
    refusals.noted(refused)
    refusals.check(scope(), body(own))
    refusals.again()
