"""A client that goes away: the work ends within a second, in whatever phase it was."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
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


def live(made: Service, name: str) -> int:
    worker = made.pools.workers[name]  # type: ignore[index]
    return worker.live if isinstance(worker, Scripted) else 0


def idle(made: Service) -> bool:
    running = made.registry.get_sample_value("baton_live_requests")
    return not (made.live.admission.live or live(made, "small") or live(made, "large") or running)


@contextmanager
def asked(*args: Any, **more: Any) -> Iterator[list[httpx.Response]]:
    """Ask by a thread; the reply is there after the block."""
    replies: list[httpx.Response] = []

    def ask() -> None:
        with suppress(httpx.HTTPError):
            replies.append(post(*args, **more))

    asker = threading.Thread(target=ask, daemon=True)
    asker.start()
    yield replies
    asker.join()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("phase", PHASES)
def test_hang_up(phase: str, stream: bool) -> None:
    small, large, model = PHASES[phase]
    worker = "small" if phase == "drafting" else "large"
    made = service(small, large, patience=Patience(ping_s=0.1))
    with serving(made) as url:
        connections = [_ask(url, model=model, stream=stream) for _ in range(20)]
        until(lambda: made.live.admission.live == 20 and live(made, worker))
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


def test_a_service_that_drains_finishes_what_it_has_and_takes_no_more() -> None:
    made = service(large=scripted(delay=0.5))
    with serving(made) as url:
        with asked(url, {"model": "large-only", "stream": True}) as replies:
            until(lambda: live(made, "large"))
            assert HTTP.get(f"{url}/ready").status_code == 200
            assert made.live.drain() == 1
            refused = post(url)
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutting_down")
            assert int(refused.headers["retry-after"]) >= 1
            assert HTTP.get(f"{url}/ready").status_code == 503
            assert HTTP.get(f"{url}/health").status_code == 200
        until(lambda: made.live.drain() == 0)  # a request counts until its last byte was sent
    assert replies[0].text.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize("stream", [False, True])
def test_answers_that_are_cut_say_so_and_are_on_record(stream: bool) -> None:
    made = service(large=scripted(delay=FOREVER), patience=Patience(headers_s=0.05))
    with serving(made) as url:
        with asked(url, {"model": "large-only", "stream": stream}) as replies:
            # A stream has begun as soon as its first response is counted.
            began = made.registry.get_sample_value
            name, labels = "baton_http_responses_total", {"code": "200"}
            until(lambda: live(made, "large") and (began(name, labels) or not stream))
            made.shared.watcher._task.get_loop().call_soon_threadsafe(made.live.cut)  # type: ignore[union-attr]
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
