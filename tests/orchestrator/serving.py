"""A real server on a loopback port, for tests of the HTTP surface."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import httpx
import uvicorn
from openai import OpenAI

from orchestrator.http.apis import chat, completions, responses
from orchestrator.http.app import create_app
from orchestrator.http.ask import Ask, Incoming, RequestPlan
from orchestrator.http.planning import Catalog, Facts, ModelFacts, Pools
from orchestrator.http.service import Service
from orchestrator.http.settings import HttpSettings
from orchestrator.types import Generation, Provenance
from orchestrator.worker import Delta
from policies import POLICIES
from tests.workers.scripted import Scripted, words

HTTP = httpx.Client(verify=False, timeout=120)
"""Shared: making one takes longer than a request does."""

STORY = ("First, 2+2 is 4.\n\nSo twice that is 8.", "\n The answer is 8. \n")


def scripted(**settings: Any) -> Scripted:
    """A worker that knows the story."""
    return Scripted(story=STORY, **settings)


class Speculating(Scripted):
    """Of three tokens the draft model had the first two, wrote "draft" for every other third, and
    nothing behind the others."""

    async def generate(self, *args: Any, **more: Any) -> AsyncIterator[Delta | Generation]:
        async for item in super().generate(*args, **more):
            if isinstance(item, Generation) and (written := words(item.segment.text)):
                count = len(written)
                origins = "aaraab" * count
                rejected = tuple((n, ("draft ",)) for n in range(count) if origins[n] == "r")
                rounds = -(-count // 3)
                made = Provenance(
                    origins[:count],
                    tuple(map(len, written)),
                    rejected,
                    (rounds, rounds, -(-rounds // 2)),
                    (rounds, rounds, 0),
                )
                item = replace(item, provenance=made)
            yield item


def service(small: Any = None, large: Any = None, *, spans: Any = None, **settings: Any) -> Service:
    """A service over two workers; each setting goes where it belongs.

    `facts` has what is known of a model, by worker; None: it still loads.
    """

    def taken(*names: str) -> dict[str, Any]:
        return {name: settings.pop(name) for name in names if name in settings}

    async def facts(names: Any) -> Facts:
        return {name: known.get(name, ModelFacts()) for name in names}

    known = settings.pop("facts", {})
    catalog = taken("policies", "default", "params", "methods", "speculation", "when_busy")
    own = taken("access", "store")
    workers: Any = {"small": small or scripted(), "large": large or scripted()}
    made = Service(
        Catalog(**{"policies": POLICIES, "default": "specreason", **catalog}),
        Pools(workers, facts=facts, **taken("troubles", "sampling")),
        HttpSettings(**settings),
        **own,
    )
    made.spans = spans
    return made


def asked(path: str = "chat", /, **body: Any) -> Ask:
    """A request of an API as its file parses it: a right one, with `body` on top."""
    given = asking(**body) if path == "chat" else body
    parse = {"chat": chat.parse, "completions": completions.parse, "responses": responses.parse}
    return parse[path](json.dumps(given).encode(), HttpSettings())


async def planned(made: Service, model: str) -> RequestPlan:
    """How the service answers a request for a model."""
    return await made.planner.plan(asked(model=model), Incoming("request-1"))


@contextmanager
def serving(made: Service, grace_s: int = 1) -> Iterator[str]:
    """The base URL of a server that runs `made` until the block ends."""
    config = uvicorn.Config(
        create_app(made),
        host="127.0.0.1",
        port=0,
        log_level="error",
        timeout_graceful_shutdown=grace_s,
    )
    with listening(config) as url:
        yield url


@contextmanager
def listening(config: uvicorn.Config) -> Iterator[str]:
    """The base URL of a server on a free port, in a thread, until the block ends."""
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        until(lambda: server.started, seconds=60)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(60)
    assert not thread.is_alive(), "the server did not stop"


def client(url: str, key: str = "none", **settings: Any) -> OpenAI:
    return OpenAI(
        base_url=f"{url}/v1", api_key=key, **{"max_retries": 0, "timeout": 600, **settings}
    )


def post(url: str, body: Any = None, **settings: Any) -> httpx.Response:
    """A chat completion with `body` on top of a request that is right."""
    return HTTP.post(f"{url}/v1/chat/completions", json=asking(**(body or {})), **settings)


def asking(**more: Any) -> dict[str, Any]:
    question = [{"role": "user", "content": "Twice 2+2?"}]
    return {"model": "baton", "messages": question, **more}


def until(true: Callable[[], object], seconds: float = 60.0) -> float:
    """Wait for something to become true; how many seconds it took."""
    began = time.perf_counter()
    while not true():
        waited = time.perf_counter() - began
        assert waited < seconds, "it never came true"
        time.sleep(0.005)
    return time.perf_counter() - began
