"""What a step costs as a thought grows: the step loop, the HTTP surface, remote deltas, a call.

Workers answer at once (`instant`), and what is measured is the CPU time of one thread, so the rest
of the machine says little. A step's cost at n is the mean over the steps around the n-th, and of
several runs the lowest.
"""

from __future__ import annotations

import asyncio
import gc
import json
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from queue import Queue
from threading import Thread
from time import perf_counter, thread_time
from typing import Any, Final

from deploy.evaluation.summary import Row
from deploy.evaluation.tables import Column
from deploy.lab.bench.instant import STEP, InstantWorker, LoopbackHandle
from orchestrator.http.app import create_app
from orchestrator.http.limits import ServiceLimits
from orchestrator.http.service import Service
from orchestrator.loop.solve import solve
from orchestrator.types import Limits, Message, Sampling, Segment, Transcript
from orchestrator.worker import Call, Worker
from policies import POLICIES
from workers.remote.protocol import ServerCapabilities
from workers.remote.server import Server
from workers.remote.worker import RemoteWorker
from workers.replica.client import ReplicaWorker
from workers.replica.prefixes import PrefixReceiver, PrefixSender
from workers.text.tokenizer import Tokenizer

CHOICE: Final = ("small-only", "specreason", "bild", "speculative-thinking")
WAYS: Final = ("loop", "replica", "http")
"""The step loop alone; with each call pickled to a replica and back; behind the HTTP surface."""
AROUND: Final = 20  # steps around the n-th
QUESTION: Final = "How many?"
MANY: Final = 1 << 30
ABOUT: Final = (
    f"Steps have {STEP} tokens; one of ten drafts is rejected where a policy judges. CPU time: of "
    "a step, with workers that answer at once, in the step loop alone, with each call pickled to "
    "a replica and back, and behind the HTTP surface, streamed; of a remote delta, all but the "
    "server's."
)


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
                    "measure": "step",
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
    events = solve(
        POLICIES[policy](),
        (Message("user", QUESTION),),
        workers,
        request="bench",
        sampling=Sampling(),
        limits=Limits(max_tokens),
    )
    async for _ in events:
        pass


async def _through_http(policy: str, workers: Any, max_tokens: int) -> None:
    limits = ServiceLimits(max_tokens_cap=MANY, deadline_s=None)
    app = create_app(Service(POLICIES, workers, policy, limits=limits))
    body = {
        "model": policy,
        "messages": [{"role": "user", "content": QUESTION}],
        "max_tokens": max_tokens,
        "stream": True,
    }
    last = await post(app, "/v1/chat/completions", body)
    if not last.endswith(b"data: [DONE]\n\n"):
        raise RuntimeError(f"expected a stream that ends, got {last[-200:]!r}")


async def post(app: Any, path: str, body: Any) -> bytes:
    """The last piece of the response to a request made in this process."""
    told, pieces = False, [b""]

    async def receive() -> dict[str, Any]:
        nonlocal told
        if told:
            await asyncio.Event().wait()  # the client stays
        told = True
        return {"type": "http.request", "body": json.dumps(body).encode()}

    async def send(message: Mapping[str, Any]) -> None:
        pieces[0] = message.get("body") or pieces[0]

    headers = [(b"content-type", b"application/json"), (b"host", b"127.0.0.1")]
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": headers,
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }
    await app(scope, receive, send)
    return pieces[0]


# --- a remote server's deltas --------------------------------------------------------------------


class _KnownServer(RemoteWorker):
    """A worker that need not probe its server."""

    async def capabilities(self) -> ServerCapabilities:
        return ServerCapabilities("ids", ids=True, top=1)


def bench_deltas(
    tokenizer: Tokenizer, sizes: Sequence[int], *, tell: Callable[[str], None] = lambda _: None
) -> list[Row]:
    """A row for each size: seconds of CPU for `large-only` over a server's one-token deltas.

    All of it counts but the server: the connection, parsing, the step loop and streaming.
    `tokenizer` is that of the model which the server would have; it marks a thought's end.
    """
    rows: list[Row] = []
    for size in sizes:
        tell(f"{size} remote deltas")
        gc.collect()
        began = thread_time()
        asyncio.run(_deltas(tokenizer, size))
        seconds = thread_time() - began
        rows.append(
            {"measure": "deltas", "deltas": size, "cpu_s": seconds, "us": 1e6 * seconds / size}
        )
    return rows


async def _deltas(tokenizer: Tokenizer, size: int) -> None:
    word, *_ = tokenizer.encode(" and")
    think_end, eos = tokenizer.close_id, tokenizer.eos_id
    if think_end is None or eos is None:
        raise ValueError("expected a tokenizer with tokens that end a thought and a turn")
    thought = [*[_event(word, " and")] * size, _event(think_end, "")]
    answers = iter([thought, [_event(word, " and"), _event(eos, "", "stop")]])
    with _serving(lambda: next(answers)) as url:
        worker = _KnownServer(Server(url), "model", tokenizer)
        await _through_http("large-only", {"small": worker, "large": worker}, size + 128)
        await worker.aclose()


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

    It has a thread of its own, so that its time is not ours.
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


# --- a call --------------------------------------------------------------------------------------


def bench_calls(sizes: Sequence[int], *, tokens: int = 20, rounds: int = 20) -> list[Row]:
    """Two rows for each number of segments: kilobytes, and microseconds to pack and to unpack.

    `whole` is the first call that a replica gets of a transcript, `next` the one after it, with a
    segment more.
    """
    rows: list[Row] = []
    for size in sizes:
        transcript = Transcript((Message("user", QUESTION),))
        for number in range(size):
            transcript = transcript.extend(_segment(number, tokens))
        sender, receiver = PrefixSender(), PrefixReceiver()

        def pack(call: Call, sender: PrefixSender = sender) -> bytes:
            return pickle.dumps(next(sender.forms(call)), protocol=pickle.HIGHEST_PROTOCOL)

        def unpack(data: bytes, receiver: PrefixReceiver = receiver) -> None:
            call = receiver.restore(pickle.loads(data))  # noqa: S301
            if call is None:
                raise RuntimeError("expected the replica to have what was sent before")
            receiver.keep(call)

        whole = Call("bench", transcript)
        for kind in ("whole", "next"):
            bytes_, packing, unpacking = 0, [], []
            for number in range(rounds):
                call = whole
                if kind == "next":
                    call = Call("bench", transcript.extend(_segment(size + number, tokens)))
                began = perf_counter()
                data = pack(call)
                packed = perf_counter()
                unpack(data)
                packing.append(packed - began)
                unpacking.append(perf_counter() - packed)
                bytes_ = len(data)
            sender.delivered(whole)
            rows.append(
                {
                    "measure": "call",
                    "kind": kind,
                    "segments": size,
                    "tokens": transcript.thought.tokens,
                    "kb": bytes_ / 1e3,
                    "pack_us": 1e6 * min(packing),
                    "unpack_us": 1e6 * min(unpacking),
                }
            )
    return rows


def _segment(number: int, tokens: int) -> Segment:
    places = range(number * tokens, (number + 1) * tokens)
    text = f"{number}:" + " and" * (tokens - 2) + ".\n\n"
    return Segment("small", text, tuple(places), (-0.1,) * tokens, "instant")


# --- tables --------------------------------------------------------------------------------------


def step_columns(sizes: Sequence[int]) -> list[Column]:
    """Milliseconds at each of `sizes` steps, and their growth."""
    return [
        ("policy", lambda row: row["policy"]),
        ("way", lambda row: row["way"]),
        *((f"ms at {n} steps", lambda row, n=n: f"{row['ms'][str(n)]:.3f}") for n in sizes),
        ("last to first", lambda row: f"{row['growth']:.2f}x"),
    ]


DELTAS: list[Column] = [
    ("remote deltas", lambda row: str(row["deltas"])),
    ("CPU s", lambda row: f"{row['cpu_s']:.2f}"),
    ("µs a delta", lambda row: f"{row['us']:.0f}"),
]
CALLS: list[Column] = [
    ("call", lambda row: row["kind"]),
    ("segments", lambda row: str(row["segments"])),
    ("tokens", lambda row: str(row["tokens"])),
    ("KB", lambda row: f"{row['kb']:.1f}"),
    ("µs to pack", lambda row: f"{row['pack_us']:.0f}"),
    ("µs to unpack", lambda row: f"{row['unpack_us']:.0f}"),
]
