"""CPU time of a step and of a remote delta as a thought grows.

Workers answer at once (`instant`), and only the CPU time of one thread is measured, so other load
on the machine changes little. A step's cost at n is the mean over the steps around the n-th, and
the lowest of several runs.
"""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from math import inf
from queue import Queue
from threading import Thread
from time import thread_time
from typing import Any, Final

from deploy.evaluation.summary import Row
from deploy.lab.bench.instant import STEP, InstantWorker, LoopbackHandle
from orchestrator.http.app import create_app
from orchestrator.http.planning import Catalog
from orchestrator.http.service import Pools, Service
from orchestrator.http.settings import HttpSettings, ServiceLimits
from orchestrator.loop.request import Request
from orchestrator.loop.solve import solve
from orchestrator.types import Limits, Message
from orchestrator.worker import Worker
from policies import POLICIES
from workers.remote.backend import RemoteBackend
from workers.remote.capabilities import ServerCapabilities
from workers.remote.dialects.vllm import VLLM
from workers.remote.server import Server
from workers.replica.client import ReplicaWorker
from workers.text.tokenizer import Tokenizer
from workers.worker import ModelWorker

WAYS: Final = ("loop", "replica", "http")
"""The step loop alone; with each call pickled to a replica and back; over the HTTP surface."""
AROUND: Final = 20  # steps on either side of the n-th
QUESTION: Final = "How many?"
MANY: Final = 1 << 30
CHAT: Final = "/v1/chat/completions"


def bench_steps(
    policies: Sequence[str],
    sizes: Sequence[int],
    *,
    repeats: int = 3,
    ways: Sequence[str] = WAYS,
    tell: Callable[[str], None] = lambda _: None,
) -> list[Row]:
    """A row for each policy and way: milliseconds of CPU a step at each of `sizes` steps."""
    rows: list[Row] = []
    for way in ways:
        for policy in policies:
            costs: list[list[float]] = []
            for number in range(repeats):
                tell(f"{policy}, {way}, run {number + 1}")
                gc.collect()
                costs.append(asyncio.run(_steps(policy, way, sizes)))
            best = [min(cost) for cost in zip(*costs, strict=True)]
            rows.append(
                {
                    "policy": policy,
                    "way": way,
                    "ms": dict(zip(map(str, sizes), best, strict=True)),
                    "growth": best[-1] / best[0],
                }
            )
    return rows


async def _steps(policy: str, way: str, sizes: Sequence[int]) -> list[float]:
    """Milliseconds of CPU a step at each of `sizes` steps, in one request."""
    steps = max(sizes) + AROUND
    instant = {name: InstantWorker(steps, thread_time) for name in ("small", "large")}
    workers: Any = instant
    if way == "replica":
        workers = {name: ReplicaWorker(LoopbackHandle(one)) for name, one in instant.items()}
    answer = _through_http if way == "http" else _through_loop
    await answer(policy, workers, (steps + 1) * STEP + 64)
    marks = instant["small"].marks
    begun = sorted(marks)  # a policy need not ask the small worker at every step

    def at(step: int) -> tuple[int, float]:
        found = min(begun, key=lambda one: abs(one - step))
        return found, marks[found]

    costs = []
    for size in sizes:
        (first, began), (last, ended) = at(size - AROUND), at(size + AROUND)
        costs.append(1e3 * (ended - began) / (last - first))
    return costs


async def _through_loop(policy: str, workers: Mapping[Any, Worker], max_tokens: int) -> None:
    request = Request("bench", (Message("user", QUESTION),), limits=Limits(max_tokens))
    events = solve(POLICIES[policy](), request, workers)
    async for _ in events:
        pass


async def _through_http(policy: str, workers: Any, max_tokens: int) -> None:
    await ask(service_app(policy, workers), policy, max_tokens)


def service_app(policy: str, workers: Any) -> Any:
    """The HTTP surface over workers, with no limit on an answer's length or time."""
    settings = HttpSettings(ServiceLimits(max_tokens_cap=MANY, deadline_s=inf))
    return create_app(Service(Catalog(POLICIES, policy), Pools(workers), settings))


async def ask(app: Any, policy: str, max_tokens: int) -> None:
    """Ask for a stream in this process, to its end."""
    message = {"role": "user", "content": QUESTION}
    body = {"model": policy, "messages": [message], "max_tokens": max_tokens, "stream": True}
    request = {"type": "http.request", "body": json.dumps(body).encode()}
    told, last = False, b""

    async def receive() -> dict[str, Any]:
        nonlocal told
        if told:
            await asyncio.Event().wait()  # the client stays
        told = True
        return request

    async def send(message: Mapping[str, Any]) -> None:
        nonlocal last
        last = message.get("body") or last

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": CHAT,
        "raw_path": CHAT.encode(),
        "query_string": b"",
        "headers": [(b"content-type", b"application/json"), (b"host", b"127.0.0.1")],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }
    await app(scope, receive, send)
    if not last.endswith(b"data: [DONE]\n\n"):
        raise RuntimeError(f"expected a stream that ends, got {last[-200:]!r}")


# --- a remote server's deltas --------------------------------------------------------------------


class _KnownServer(RemoteBackend):
    """A server that need not be probed."""

    async def capabilities(self) -> ServerCapabilities:
        return ServerCapabilities("ids", VLLM, top=1)


def bench_deltas(
    tokenizer: Tokenizer, sizes: Sequence[int], *, tell: Callable[[str], None] = lambda _: None
) -> list[Row]:
    """A row for each size: seconds of CPU for `large-only` over a server's one-token deltas.

    The connection, parsing, the step loop and streaming count; the server does not. `tokenizer`
    belongs to the model that the server would have; it marks a thought's end.
    """
    rows: list[Row] = []
    for size in sizes:
        tell(f"{size} remote deltas")
        gc.collect()
        began = thread_time()
        asyncio.run(_deltas(tokenizer, size))
        seconds = thread_time() - began
        rows.append({"deltas": size, "cpu_s": seconds, "us": 1e6 * seconds / size})
    return rows


async def _deltas(tokenizer: Tokenizer, size: int) -> None:
    word, *_ = tokenizer.encode(" and")
    think_end, eos = tokenizer.close_id, tokenizer.eos_id
    if think_end is None or eos is None:
        raise ValueError("expected a tokenizer with tokens that end a thought and a turn")
    thought = [*[_event(word, " and")] * size, _event(think_end, "")]
    answers = iter([thought, [_event(word, " and"), _event(eos, "", "stop")]])
    with _serving(lambda: next(answers)) as url:
        worker = ModelWorker(_KnownServer(Server(url), "model", tokenizer))
        await _through_http("large-only", {"small": worker, "large": worker}, size + 128)
        await worker.backend.aclose()


def _event(token: int, text: str, finish: str | None = None) -> bytes:
    named = f"token_id:{token}"
    logprobs = {"tokens": [named], "token_logprobs": [-0.1], "top_logprobs": [{named: -0.1}]}
    choice = {
        "index": 0,
        "text": text,
        "token_ids": [token],
        "logprobs": logprobs,
        "finish_reason": finish,
    }
    return b"data: " + json.dumps({"id": "cmpl", "choices": [choice]}).encode() + b"\n\n"


@contextmanager
def _serving(answer: Callable[[], Sequence[bytes]]) -> Iterator[str]:
    """The base URL of a server that streams the events of `answer` to each request.

    It has a separate thread, so that its time is not ours.
    """
    started: Queue[tuple[asyncio.AbstractEventLoop, asyncio.Event, int]] = Queue()

    async def serve() -> None:
        stopped = asyncio.Event()
        server = await asyncio.start_server(partial(_respond, answer), "127.0.0.1", 0)
        started.put((asyncio.get_running_loop(), stopped, server.sockets[0].getsockname()[1]))
        async with server:
            await stopped.wait()

    thread = Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    loop, stopped, port = started.get()
    try:
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        loop.call_soon_threadsafe(stopped.set)
        thread.join()


async def _respond(
    answer: Callable[[], Sequence[bytes]],
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    size = next(
        int(line.partition(b":")[2])
        for line in head.lower().splitlines()
        if line.startswith(b"content-length:")
    )
    asked = json.loads(await reader.readexactly(size))
    writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\n")
    if asked.get("stream"):
        writer.write(b"content-type: text/event-stream\r\n\r\n")
        for event in answer():
            writer.write(event)
            await writer.drain()
            await asyncio.sleep(0)  # each by itself, as a server makes them
        writer.write(b"data: [DONE]\n\n")
    else:  # the prompt alone is to be read
        writer.write(b"content-type: application/json\r\n\r\n")
        writer.write(json.dumps({"choices": [{"text": "", "finish_reason": "length"}]}).encode())
    writer.close()
