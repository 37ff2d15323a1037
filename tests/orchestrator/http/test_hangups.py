"""A client that goes away: the work ends within a second, in whatever phase it was."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import httpx
import pytest

from orchestrator.http.service import Service
from orchestrator.http.settings import Patience, ServiceLimits
from orchestrator.types import Generation, Sampling, StopCriteria
from orchestrator.worker import Call, Delta
from tests.orchestrator.serving import HTTP, asking, client, post, scripted, service, serving, until
from tests.workers.scripted import Scripted

FOREVER = 30.0


class Unread(Scripted):
    """Takes for ever to read a prompt."""

    async def generate(
        self, call: Call, criteria: StopCriteria, sampling: Sampling, *, stream: bool = True
    ) -> AsyncIterator[Delta | Generation]:
        with self._counted():
            await asyncio.sleep(FOREVER)
            yield Delta("", ())


PHASES: dict[str, tuple[Any, Any, str]] = {
    "reading": (scripted(), Unread(), "baton"),
    "drafting": (scripted(delay=FOREVER), scripted(), "baton"),
    "judging": (scripted(), scripted(delay=FOREVER), "baton"),
    "writing": (scripted(), scripted(delay=0.3), "large-only"),
}


def busy(made: Service, phase: str) -> bool:
    small, large = made.pools.workers["small"], made.pools.workers["large"]
    assert isinstance(small, Scripted)
    assert isinstance(large, Scripted)
    return bool(small.live if phase == "drafting" else large.live)


def idle(made: Service) -> bool:
    workers = [
        worker.live for worker in made.pools.workers.values() if isinstance(worker, Scripted)
    ]
    return made.live.admission.live == 0 and not any(workers) and _gauge(made) == 0


def _gauge(made: Service) -> float | None:
    return made.registry.get_sample_value("baton_live_requests")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("phase", PHASES)
def test_hang_up(phase: str, stream: bool) -> None:
    small, large, model = PHASES[phase]
    made = service(small, large, patience=Patience(ping_s=0.1))
    with serving(made) as url:
        connections = [_ask(url, model=model, stream=stream) for _ in range(20)]
        until(lambda: made.live.admission.live == 20 and busy(made, phase))
        pace = made.live.admission.retry_after_s(64)
        for connection in connections:
            connection.close()
        until(lambda: idle(made))
        assert made.live.admission.retry_after_s(64) == pace  # says nothing of what an answer takes
        text = HTTP.get(f"{url}/metrics").text
    assert (
        f'outcome="cancelled",policy="{"specreason" if model == "baton" else model}"}} 20.0' in text
    )


def _ask(url: str, **body: Any) -> socket.socket:
    """A request sent on a bare socket, whose reply nobody waits for."""
    host, port = url.removeprefix("http://").split(":")
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # little fits unread
    connection.connect((host, int(port)))
    request = httpx.Request("POST", f"{url}/v1/chat/completions", json=asking(**body))
    lines = [f"{name}: {value}" for name, value in request.headers.items()]
    head = "\r\n".join(["POST /v1/chat/completions HTTP/1.1", *lines, "", ""])
    connection.sendall(head.encode() + request.read())
    return connection


def test_hang_up_in_the_body() -> None:
    made = service()
    with serving(made) as url:
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(
                b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 99\r\n"
                b"content-type: application/json\r\n\r\n{"
            )
        assert post(url).status_code == 200
        until(lambda: idle(made))


def test_a_client_that_breaks_out_of_its_loop() -> None:
    made = service(large=scripted(delay=0.2))
    with serving(made) as url, client(url) as api:
        messages: list[Any] = asking()["messages"]
        stream = api.chat.completions.create(model="large-only", messages=messages, stream=True)
        for chunk in stream:
            trace_id = chunk.id.removeprefix("chatcmpl-")
            break
        stream.close()
        until(lambda: idle(made))
        assert HTTP.get(f"{url}/v1/traces/{trace_id}").json()["status"] == "cancelled"


def test_a_slow_reader_does_not_hold_the_workers() -> None:
    """Far more than the sockets' buffers hold is written, nobody reads, and yet the work ends."""
    words = "word " * 4000
    large = Scripted(story=(words, "Done."))
    made = service(large=large, limits=ServiceLimits(max_tokens=8000))
    with serving(made) as url:
        body = asking(model="large-only", stream=True)
        with HTTP.stream("POST", f"{url}/v1/chat/completions", json=body) as reply:
            until(lambda: large.calls and not large.live)
            assert reply.read().endswith(b"data: [DONE]\n\n")


def test_a_reader_that_stopped_reading() -> None:
    """Its connection stays open, and still its place is given to somebody else."""
    large = Scripted(
        story=("".join(f"{i:0900} " for i in range(4000)), "Done.")
    )  # 4 MB on the wire
    made = service(
        large=large, limits=ServiceLimits(max_tokens=8000), patience=Patience(send_s=0.2)
    )
    with serving(made) as url:
        connection = _ask(url, model="large-only", stream=True)
        until(lambda: large.calls)
        until(lambda: idle(made))
        begun = connection.recv(4096).decode()
        trace_id = begun.partition("chatcmpl-")[2].partition('"')[0]
        assert HTTP.get(f"{url}/v1/traces/{trace_id}").json()["status"] == "cancelled"
        connection.close()


@pytest.mark.parametrize("stream", [False, True])
def test_a_server_that_stops_says_so(stream: bool) -> None:
    made = service(large=scripted(delay=FOREVER))
    replies: list[httpx.Response] = []

    def ask(url: str) -> None:
        with suppress(httpx.HTTPError):
            replies.append(post(url, {"model": "large-only", "stream": stream}, timeout=120))

    with serving(made, grace_s=0) as url:
        asker = threading.Thread(target=ask, args=(url,), daemon=True)
        asker.start()
        until(lambda: busy(made, "writing"))
    asker.join()
    assert idle(made)
    assert "shutting_down" in replies[0].text
    assert replies[0].status_code == (200 if stream else 503)


def test_a_service_that_drains_finishes_what_it_has_and_takes_no_more() -> None:
    made, replies = service(large=scripted(delay=0.5)), list[httpx.Response]()
    with serving(made) as url:
        body = {"model": "large-only", "stream": True}
        asker = threading.Thread(target=lambda: replies.append(post(url, body)), daemon=True)
        asker.start()
        until(lambda: busy(made, "writing"))
        assert HTTP.get(f"{url}/ready").status_code == 200
        assert made.live.drain() == 1
        refused = post(url)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutting_down")
        assert int(refused.headers["retry-after"]) >= 1
        assert HTTP.get(f"{url}/ready").status_code == 503
        assert HTTP.get(f"{url}/health").status_code == 200
        asker.join()
        until(lambda: made.live.drain() == 0)  # a request counts until its last byte was sent
    assert replies[0].text.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize("stream", [False, True])
def test_answers_that_are_cut_say_so_and_are_on_record(stream: bool) -> None:
    patience = Patience(headers_s=0.05)
    made, replies = (
        service(large=scripted(delay=FOREVER), patience=patience),
        list[httpx.Response](),
    )

    def ask() -> None:
        body = asking(model="large-only", stream=stream)
        with HTTP.stream("POST", f"{url}/v1/chat/completions", json=body) as reply:
            replies.append(reply)
            reply.read()

    with serving(made) as url:
        asker = threading.Thread(target=ask, daemon=True)
        asker.start()
        until(lambda: busy(made, "writing") and (replies or not stream))
        made.shared.watcher._task.get_loop().call_soon_threadsafe(made.live.cut)  # type: ignore[union-attr]
        asker.join()
        until(lambda: idle(made))
        (outcome,) = HTTP.get(f"{url}/v1/traces").json()["data"]
    assert "shutting_down" in replies[0].text
    assert replies[0].status_code == (200 if stream else 503)
    assert outcome["status"] == "failed"


def test_a_prompt_that_takes_long_to_read_begins_the_stream() -> None:
    made = service(large=Unread(), patience=Patience(headers_s=0.05, ping_s=0.05))
    with serving(made) as url:
        body = asking(stream=True)
        with HTTP.stream("POST", f"{url}/v1/chat/completions", json=body) as reply:
            assert reply.status_code == 200
            lines = reply.iter_lines()
            while next(lines) != ": ping":
                pass
        until(lambda: idle(made))
