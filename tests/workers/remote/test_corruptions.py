"""Corrupted answers of servers in every dialect, under several policies.

Whatever goes wrong on the way, a request ends with what the models wrote, or with an error that
names the server or what it lacks. A corruption begins with the first request, or after the probe;
or every other answer has it. Some of the combinations are tried; `CORRUPTIONS=all` takes every one.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import ExitStack, aclosing
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from deploy.lab.peers.llama_cpp import embedded_gguf, serving_gguf
from orchestrator.errors import ContextLengthExceeded, Unsupported, WorkerError
from orchestrator.http.errors import http_error
from orchestrator.loop.events import RequestCompleted
from orchestrator.loop.request import Request
from orchestrator.loop.solve import solve
from orchestrator.types import GREEDY, Limits, Message, StopCriteria, Transcript
from orchestrator.worker import Call
from policies import POLICIES
from tests.workers.remote.corruptions import (
    CORRUPTIONS,
    SHAPES,
    UNSEEN_IN_TEXT,
    UNSEEN_ONCE,
    Corrupting,
)
from tests.workers.remote.test_worker import CHAT, MODEL, PLAIN, QUESTIONS, SGLANG
from tests.workers.remote.vllm_like import PAIR, ServerBehavior, VllmLike, serving
from workers.remote.backend import RemoteBackend
from workers.remote.capabilities import ServerCapabilities
from workers.remote.server import Server
from workers.worker import EngineWorker, ModelWorker

BEHAVIORS = {
    "vllm": ServerBehavior(),
    "sglang": SGLANG,
    "plain": PLAIN,
    "chat": CHAT,
    "plain-chat": replace(CHAT, token_ids=False, max_logprobs=0, stops_at_controls=True),
}
DIALECTS = (*BEHAVIORS, "llama.cpp")
TEXT_ALONE = {"plain", "plain-chat"}
RUNS: dict[str, dict[str, Any]] = {
    "large-only": {},
    "specreason": {"judge": "short", "scoring": "greedy"},
    "bild": {},
}
WHEN = ("at once", "late", "at times")
HOW = (*CORRUPTIONS, *SHAPES)


def unseen(dialect: str, when: str) -> Collection[str]:
    """The corruptions that nothing shows."""
    kind = "text" if dialect in TEXT_ALONE else dialect
    if when == "at times":
        return UNSEEN_ONCE.get(kind, ())
    return UNSEEN_IN_TEXT if kind == "text" else ()


ALL = [
    (dialect, how, policy, when)
    for dialect, how, policy, when in product(DIALECTS, HOW, RUNS, WHEN)
    if how not in unseen(dialect, when)
]
PLACES = {case: place for place, case in enumerate(product(DIALECTS, HOW))}
SOME = [
    case
    for case in ALL
    if PLACES[case[:2]] % 18 == 6 * list(RUNS).index(case[2]) + WHEN.index(case[3])
]
CAPABLE: dict[tuple[str, str], ServerCapabilities] = {}
"""What was probed without a corruption."""
WRITTEN: dict[tuple[Any, ...], str] = {}
"""What the models write behind a transcript."""
CASES = ALL if os.environ.get("CORRUPTIONS") == "all" else SOME


@pytest.fixture(scope="module")
def proxies(
    pair: dict[Any, EngineWorker], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, dict[str, tuple[str, Corrupting]]]]:
    """By dialect and worker: the address of a proxy, and the proxy."""
    with ExitStack() as stack:
        found: dict[str, dict[str, tuple[str, Corrupting]]] = {}
        for dialect in DIALECTS:
            found[dialect] = {}
            for name in PAIR:
                if dialect == "llama.cpp":
                    gguf = embedded_gguf(name, tmp_path_factory.mktemp("gguf"))
                    url = stack.enter_context(serving_gguf(gguf, 1024))
                else:
                    app = VllmLike(pair[name], BEHAVIORS[dialect])
                    app.known = {}
                    url = stack.enter_context(serving(app.app))
                proxy = Corrupting(url)
                found[dialect][name] = (stack.enter_context(serving(proxy.app)), proxy)
        yield found


@pytest.mark.parametrize(("dialect", "how", "policy", "when"), CASES)
async def test_an_answer_is_what_the_models_wrote_or_an_error_by_name(
    dialect: str,
    how: str,
    policy: str,
    when: str,
    pair: dict[Any, EngineWorker],
    proxies: dict[str, dict[str, tuple[str, Corrupting]]],
) -> None:
    workers: dict[Any, ModelWorker] = {}
    for name, (url, proxy) in proxies[dialect].items():
        workers[name] = ModelWorker(
            RemoteBackend(Server(url, retries=0), MODEL, pair[name].tokenizer)
        )
        proxy.how, proxy.every = None, 1
        if when != "at once":
            if (dialect, name) not in CAPABLE:
                CAPABLE[dialect, name] = await workers[name].backend.capabilities()
            workers[name].backend._capabilities = CAPABLE[dialect, name]
        proxy.how, proxy.every = how, 2 if when == "at times" else 1
    done: RequestCompleted | None = None
    failed: Exception | None = None
    try:
        done = await solved(policy, workers)
    except (WorkerError, ContextLengthExceeded) as error:
        failed = error
    finally:
        for worker in workers.values():
            await worker.backend.aclose()
    if done is not None:
        await check_written(done, pair)
        return
    assert failed is not None
    names = [worker.backend.server.name for worker in workers.values()]
    assert isinstance(failed, Unsupported) or any(name in str(failed) for name in names)
    seen = http_error(failed)
    assert seen.status in (400, 503)
    assert not any(word in seen.message for word in ("10.0.0.7", "sk-1"))


async def solved(policy: str, workers: dict[Any, Any]) -> RequestCompleted:
    request = Request("r", (Message("user", QUESTIONS[0]),), limits=Limits(160))
    events = solve(POLICIES[policy](**RUNS[policy]), request, workers)
    async with aclosing(events):
        async for event in events:
            last = event
    assert isinstance(last, RequestCompleted)
    return last


async def check_written(done: RequestCompleted, pair: dict[Any, EngineWorker]) -> None:
    """Each segment is what its author writes there; the answer ends where its author ends it."""
    before = Transcript(done.transcript.messages)
    for phase in (done.transcript.thought, done.transcript.answer):
        for segment in phase:
            if segment.author == "policy":
                before = before.extend(segment)
                continue
            whole = await written(pair[segment.author], before)
            assert whole.startswith(segment.text)
            before = before.extend(segment)
        author = phase[-1].author if phase else "large"
        if phase is done.transcript.answer and done.transcript.finish == "stop":
            assert await written(pair[author], before) == ""
        before = replace(before, closed=True)


async def written(worker: EngineWorker, transcript: Transcript) -> str:
    key = id(worker), transcript.thought.text(), transcript.answer.text(), transcript.closed
    if key not in WRITTEN:
        call = Call("check", transcript, "large")
        items = [item async for item in worker.generate(call, StopCriteria(160), GREEDY)]
        WRITTEN[key] = items[-1].segment.text  # type: ignore[union-attr]
    return WRITTEN[key]
