"""A Serve handle without Serve: calls go to one replica in this process, over a scripted worker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Generator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from orchestrator.types import Message, Sampling, StopCriteria, Transcript
from orchestrator.worker import Call
from tests.workers.scripted import Scripted
from workers.replica.server import ReplicaServer, ReplicaStatus

THOUGHT = "One and two and three.\n\nFour and five.\n\n"
GREEDY = Sampling()
CRITERIA = StopCriteria(100, until=("\n\n",))


class ScriptedEngineWorker(Scripted):
    tokenizer = SimpleNamespace(hash="words")
    alive = True
    efforts = None

    def stats(self) -> dict[str, int]:
        return {"live_rows": self.live, "queued": 0, "rows": 4, "slots": 8}

    def close(self) -> None: ...


def story(**more: Any) -> ScriptedEngineWorker:
    return ScriptedEngineWorker(story=(THOUGHT, "5"), **more)


def call(transcript: Transcript | None = None) -> Call:
    return Call("r1", transcript or Transcript((Message("user", "How many?"),)), "large")


Death = tuple[int, BaseException] | None


class Stream:
    """What a streaming handle call returns; `dies` fails after that many items."""

    def __init__(self, items: AsyncGenerator[Any, None], dies: Death) -> None:
        self._items, self._dies, self._sent = items, dies, 0
        self.cancelled: asyncio.Future[Any] | None = None

    async def __anext__(self) -> Any:
        if self._dies is not None and self._sent == self._dies[0]:
            raise self._dies[1]
        self._sent += 1
        return await self._items.__anext__()

    def cancel(self) -> None:
        self.cancelled = asyncio.ensure_future(self._items.aclose())


def taken_by(replica: str | None) -> Any:
    """Serve's metadata of a call that a replica took; None: of one that waits."""
    return SimpleNamespace(replica=replica)


def tag(replica: ReplicaServer) -> str:
    return f"replica {id(replica)}"


class Response:
    """What a handle call with one answer returns; `dies` fails instead."""

    def __init__(self, answer: Coroutine[Any, Any, Any], dies: Death, replica: str) -> None:
        self._dies, self._request_metadata = dies, taken_by(replica)
        self.cancelled = asyncio.ensure_future(answer)

    def __await__(self) -> Generator[Any, None, Any]:
        if self._dies is not None:
            raise self._dies[1]
        return (yield from self.cancelled.__await__())

    def cancel(self) -> None:
        self.cancelled.cancel()


def respond(replica: ReplicaServer, method: str, args: Any, dies: Death = None) -> Any:
    """The response of a replica's method to a handle's call."""
    called = getattr(replica, method)(*args)
    return Stream(called, dies) if method == "stream_call" else Response(called, dies, tag(replica))


@dataclass
class Broadcast:
    """What a handle's broadcast of `status` returns; each replica is asked on its own."""

    replicas: list[ReplicaServer]

    async def _fetch_replica_results_async(self) -> list[Broadcast]:
        return [Broadcast([one]) for one in self.replicas]

    async def get_async(self) -> ReplicaStatus:
        (one,) = self.replicas
        return ReplicaStatus(tag(one), one.stats(), None)


@dataclass
class Handle:
    """A Serve handle on one replica in this process. `deaths`: one a call, in order."""

    backend: Any
    deaths: list[Death] = field(default_factory=list)
    sessions: list[str] = field(default_factory=list)
    methods: list[str] = field(default_factory=list)
    responses: list[Any] = field(default_factory=list)
    silent: bool = False  # to the question for its status
    deployment_name: str = "Pool"
    replica: ReplicaServer = field(init=False)

    def __post_init__(self) -> None:
        self.replica = ReplicaServer(lambda: self.backend)

    def options(self, *, session_id: str, method_name: str, **_: Any) -> Handle:
        self.sessions.append(session_id)
        self.methods.append(method_name)
        return self

    def broadcast(self, method: str) -> Broadcast:
        return Broadcast([] if self.silent else [self.replica])

    def remote(self, *args: Any) -> Any:
        dies = self.deaths.pop(0) if self.deaths else None
        self.responses.append(respond(self.replica, self.methods[-1], args, dies))
        return self.responses[-1]
