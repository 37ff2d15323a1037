"""What a step and a remote token cost stays the same as a thought grows, in calls and in bytes.

Workers answer at once, and function calls are counted instead of seconds: the same in each run.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterator
from math import inf
from types import SimpleNamespace
from typing import Any, cast

import pytest

from orchestrator.http.app import create_app
from orchestrator.http.planning import Catalog, Pools
from orchestrator.http.service import Service
from orchestrator.http.settings import HttpSettings, ServiceLimits
from orchestrator.loop.request import Request
from orchestrator.loop.solve import solve
from orchestrator.types import (
    Author,
    Classification,
    Finish,
    Generation,
    LabelQuery,
    Limits,
    Message,
    Sampling,
    Segment,
    StopCriteria,
    Usage,
    Verification,
)
from orchestrator.worker import Call, Delta
from policies import POLICIES
from tests.workers.replica.handles import Handle, pool
from workers.embedded.checkpoints import resolve
from workers.remote.backend import RemoteBackend
from workers.remote.capabilities import ServerCapabilities
from workers.remote.dialects.vllm import VLLM
from workers.remote.server import Server
from workers.streams import merge_deltas
from workers.text.tokenizer_files import load_tokenizer
from workers.worker import ModelWorker

STEP = 30  # tokens of a step
AROUND = 20  # steps on either side of one that is measured
NAMES = ("small-only", "specreason", "bild", "speculative-thinking", "cascade")
HELD_BYTES = 300
"""Limit on the bytes a token that a live request holds."""


class InstantWorker:
    """A worker whose thought has `steps` steps; it reads `clock` as each begins.

    Steps are equal in length and different in text. As the judge it rejects every tenth draft.
    """

    tokenizer = SimpleNamespace(hash="instant")
    alive = True

    def __init__(self, steps: int, clock: Callable[[], float] = lambda: 0.0) -> None:
        self.steps, self._clock = steps, clock
        self.marks: dict[int, float] = {}

    async def generate(
        self,
        call: Call,
        criteria: StopCriteria,
        sampling: Sampling,
        *,
        stream: bool = True,
        received: Delta | None = None,
    ) -> AsyncIterator[Delta | Generation]:
        author, begin = cast("Author", call.author), call.transcript.chain.tokens
        prompt = Usage(prompt=begin + call.transcript.answer.tokens)
        if criteria.max_tokens == 0:
            yield Generation(Segment(author, "", tokenizer="instant", finish="length"), prompt)
            return
        if call.transcript.closed:
            yield Generation(Segment(author, "42", (2,), (-0.1,), "instant", "eos"), prompt)
            return
        last = STEP * self.steps
        until = begin - begin % STEP + STEP if criteria.until else last
        end = min(until, last, begin + criteria.max_tokens)
        finish: Finish = "think_end" if end == last else "until" if end == until else "length"
        deltas = []
        for first in (begin, *range(begin - begin % STEP + STEP, end, STEP)):
            self.marks.setdefault(first // STEP, self._clock())
            places = range(first, min(end, first - first % STEP + STEP))
            texts = "".join(map(token_at, places))
            deltas.append(Delta(texts, tuple(places), (-0.1,) * len(places)))
            if stream:
                yield deltas[-1]
        whole = merge_deltas(deltas)
        made = Segment(author, whole.text, whole.tokens, whole.logprobs, "instant", finish)
        yield Generation(made, Usage(prompt.prompt, 0, end - begin, end - begin))

    async def classify(self, call: Call, query: LabelQuery) -> Classification:
        chosen = query.labels[0 if call.transcript.chain.tokens // STEP % 10 == 0 else -1]
        shares = tuple(float(one == chosen) for one in query.labels)
        return Classification(query.labels, shares, usage=Usage(passes=1))

    async def verify(
        self, call: Call, segment: Segment, sampling: Sampling, top: int = 0
    ) -> Verification:
        begin, author = call.transcript.chain.tokens, cast("Author", call.author)
        count = len(segment.tokens)
        options = [
            Segment(author, token_at(place), (place,), (-0.1,), "instant")
            for place in range(begin, begin + count + 1)
        ]
        if begin + count >= STEP * self.steps:
            options[-1] = Segment(author, "", tokenizer="instant", finish="think_end")
        return Verification(
            (0.1,) * count,
            (*segment.tokens, begin + count),
            Usage(passes=1),
            pieces=tuple(map(token_at, range(begin, begin + count))),
            options=tuple(options),
            ending=0.1,
        )

    def stats(self) -> dict[str, int]:
        return {"live_rows": 0, "queued": 0, "rows": 1, "slots": 1}

    def close(self) -> None: ...


def token_at(place: int) -> str:
    """The token at a place of the thought."""
    step, word = divmod(place, STEP)
    return f"{step} " if word == 0 else ".\n\n" if word == STEP - 1 else "and "


@pytest.fixture
def calls_made() -> Iterator[Callable[[], int]]:
    """How many function calls there were so far."""
    called = 0

    def count(_: object, event: str, __: object) -> None:
        nonlocal called
        called += event in ("call", "c_call")

    sys.setprofile(count)
    yield lambda: called
    sys.setprofile(None)


async def through_loop(policy: str, workers: Any, max_tokens: int) -> None:
    request = Request("growth", (Message("user", "How many?"),), limits=Limits(max_tokens))
    async for _ in solve(POLICIES[policy](), request, workers):
        pass


def app_over(policy: str, workers: Any) -> Any:
    """The HTTP surface over workers, with no limit on an answer's length or time."""
    limits = ServiceLimits(max_tokens_cap=1 << 30, deadline_s=inf)
    return create_app(Service(Catalog(POLICIES, policy), Pools(workers), HttpSettings(limits)))


async def through_http(policy: str, app: Any, max_tokens: int) -> None:
    """Ask for a stream in this process, to its end; nothing but its last part is kept."""
    body = {"model": policy, "messages": [{"role": "user", "content": "How many?"}]}
    sent = json.dumps({**body, "max_tokens": max_tokens, "stream": True}).encode()
    parts, last = [{"type": "http.request", "body": sent}], b""

    async def receive() -> dict[str, Any]:
        if not parts:
            await asyncio.Event().wait()  # the client stays
        return parts.pop()

    async def send(message: dict[str, Any]) -> None:
        nonlocal last
        last = message.get("body") or last

    path = "/v1/chat/completions"
    scope = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "scheme": "http",
             "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b"",
             "headers": [(b"content-type", b"application/json"), (b"host", b"127.0.0.1")],
             "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80)}  # fmt: skip
    await app(scope, receive, send)
    assert last.endswith(b"data: [DONE]\n\n"), last[-200:]


@pytest.mark.parametrize(
    ("policy", "way"),
    [*((name, "loop") for name in NAMES), ("specreason", "replica"), ("bild", "http")],
)
def test_a_step_takes_as_many_calls_however_long_the_thought(
    policy: str, way: str, calls_made: Callable[[], int]
) -> None:
    steps = 300 + AROUND
    instant = {name: InstantWorker(steps, calls_made) for name in ("small", "large")}
    workers: Any = instant
    if way == "replica":
        workers = {name: pool(Handle(one)) for name, one in instant.items()}
    if way == "http":
        asyncio.run(through_http(policy, app_over(policy, workers), (steps + 1) * STEP + 64))
    else:
        asyncio.run(through_loop(policy, workers, (steps + 1) * STEP + 64))
    marks = instant["small"].marks  # a policy need not ask the small worker at every step

    def calls_around(step: int) -> float:
        first, last = (
            min(marks, key=lambda one: abs(one - place)) for place in (step - AROUND, step + AROUND)
        )
        return (marks[last] - marks[first]) / (last - first)

    assert calls_around(300) < 1.25 * calls_around(30)


class KnownServer(RemoteBackend):
    """A server that need not be probed."""

    async def capabilities(self) -> ServerCapabilities:
        return ServerCapabilities("ids", VLLM, top=1)


def event(token: int, text: str, finish: str | None = None) -> bytes:
    named = f"token_id:{token}"
    logprobs = {"tokens": [named], "token_logprobs": [-0.1], "top_logprobs": [{named: -0.1}]}
    choice = {"index": 0, "text": text, "token_ids": [token], "logprobs": logprobs}
    data = {"id": "cmpl", "choices": [choice | {"finish_reason": finish}]}
    return b"data: " + json.dumps(data).encode() + b"\n\n"


async def remote_deltas(size: int) -> None:
    """An answer of `large-only` over a server that sends token by token."""
    tokenizer = load_tokenizer(str(resolve("embedded:large")))
    word, *_ = tokenizer.encode(" and")
    thought = [*[event(word, " and")] * size, event(int(tokenizer.close_id or 0), "")]
    answer = [event(word, " and"), event(int(tokenizer.eos_id or 0), "", "stop")]
    streams = iter([thought, answer])

    async def server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = int(head.partition(b"content-length:")[2].split()[0])
        asked = json.loads(await reader.readexactly(length))
        writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: ")
        if asked.get("stream"):
            writer.write(b"text/event-stream\r\n\r\n")
            writer.writelines([*next(streams), b"data: [DONE]\n\n"])
        else:  # the prompt alone is to be read
            writer.write(b"application/json\r\n\r\n")
            empty = {"choices": [{"text": "", "finish_reason": "length"}]}
            writer.write(json.dumps(empty).encode())
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(server, "127.0.0.1", 0) as serving:
        url = f"http://127.0.0.1:{serving.sockets[0].getsockname()[1]}/v1"
        worker = ModelWorker(KnownServer(Server(url), "model", tokenizer))
        app = app_over("large-only", {"small": worker, "large": worker})
        await through_http("large-only", app, size + 128)
        await worker.backend.aclose()


def test_a_remote_delta_takes_as_many_calls_however_long_the_answer(
    calls_made: Callable[[], int],
) -> None:
    asyncio.run(remote_deltas(10))  # code that runs only once runs here
    each = []
    for size in (200, 2000):
        before = calls_made()
        asyncio.run(remote_deltas(size))
        each.append((calls_made() - before) / size)
    assert each[1] < 1.25 * each[0]


def held_bytes(steps: int) -> float:
    """Bytes a token that a request holds just before its end, as the policy judges a step."""
    held = 0

    class Watched(InstantWorker):
        async def classify(self, call: Call, query: LabelQuery) -> Classification:
            nonlocal held
            if call.transcript.chain.tokens >= (self.steps - AROUND) * STEP:
                held = max(held, tracemalloc.get_traced_memory()[0])
            return await super().classify(call, query)

    app = app_over("specreason", {name: Watched(steps) for name in ("small", "large")})
    asyncio.run(through_http("specreason", app, 4 * STEP))  # imports
    gc.collect()
    tracemalloc.start()
    try:
        asyncio.run(through_http("specreason", app, (steps + 10) * STEP))
    finally:
        tracemalloc.stop()
    return held / (steps * STEP)


def test_what_a_request_holds_is_bounded_by_its_tokens() -> None:
    short, long = held_bytes(40), held_bytes(240)
    assert 0 < long < HELD_BYTES
    assert long < 1.1 * short  # it grows no faster than the thought
