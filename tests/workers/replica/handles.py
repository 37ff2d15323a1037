"""A Serve handle without Serve: replicas in this process, over scripted workers and pipes."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import replace
from math import inf
from typing import Any

from orchestrator.types import (
    Generation,
    Message,
    Sampling,
    StopCriteria,
    Transcript,
    Usage,
)
from orchestrator.worker import Call, Delta
from tests.workers.scripted import Scripted, segment
from workers.replica.channel import HEAD, Address, Connection, Kind
from workers.replica.client import ReplicaWorker
from workers.replica.server import ReplicaServer, ReplicaStatus
from workers.worker import NOTHING

THOUGHT = "One and two and three.\n\nFour and five.\n\n"
GREEDY = Sampling()
CRITERIA = StopCriteria(100, until=("\n\n",))


class ScriptedEngineWorker(Scripted):
    alive = True
    efforts = None

    async def generate(
        self, call: Call, criteria: StopCriteria, *args: Any, received: Delta = NOTHING, **more: Any
    ) -> AsyncGenerator[Delta | Generation, None]:
        """As `ModelWorker.generate`: what was received is not made again."""
        count = len(received.tokens)
        sent = segment(call.author, received.text, "length")
        ended = any(one in sent.text for one in criteria.until)
        if count and (ended or count == criteria.max_tokens):
            yield Generation(
                replace(sent, finish="until" if ended else "length"), Usage(0, 0, count)
            )
            return
        if count:
            call = replace(call, transcript=call.transcript.extend(sent))
            criteria = criteria.after(count)
        async for item in super().generate(call, criteria, *args, **more):
            if count and isinstance(item, Generation):
                made = item.usage
                usage = replace(made, prompt=made.prompt - count, generated=count + made.generated)
                item = replace(item, segment=sent + item.segment, usage=usage)
            yield item

    def stats(self) -> dict[str, int]:
        return {"live_rows": self.live, "queued": 0, "rows": 4, "slots": 8}

    def close(self) -> None: ...


def story(**more: Any) -> ScriptedEngineWorker:
    return ScriptedEngineWorker(story=(THOUGHT, "5"), **more)


def call(transcript: Transcript | None = None) -> Call:
    return Call("r1", transcript or Transcript((Message("user", "How many?"),)), "large")


class Writer:
    """One end of a pipe: what is written here is read there."""

    def __init__(self, reader: asyncio.StreamReader, passes: Callable[[bytes], bool]) -> None:
        self._reader, self._passes, self._closed = reader, passes, False

    def write(self, data: bytes) -> None:
        if not self._closed and self._passes(data):
            self._reader.feed_data(data)

    @property
    def transport(self) -> Writer:
        return self

    def is_closing(self) -> bool:
        return self._closed

    def abort(self) -> None:
        self.close()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._reader.feed_eof()


class Replica:
    """A replica, and what happens to its connections.

    Args:
        deaths: for each call, in order, after how many items the replica ends; None: it does not.

    Attributes:
        frozen: nothing passes to or from it, as if its process were stopped.
        freezes_after: how many items it sends before it freezes.
        got: what it was sent of each call.
        cancels: how many calls were cancelled.
    """

    def __init__(self, tag: str, worker: Any, deaths: Sequence[int | None] = ()) -> None:
        self.tag, self.server, self.deaths = tag, ReplicaServer(lambda: worker), [*deaths]
        self.frozen, self.freezes_after = False, inf
        self.got: list[Any] = []
        self.cancels = 0
        self._dies_after = inf
        self._ends: list[Writer] = []

    async def connect(self, on_left: Callable[[Connection], object]) -> Connection:
        here, there = asyncio.StreamReader(), asyncio.StreamReader()
        answers, asks = Writer(here, self._answers), Writer(there, self._asks)
        self._ends = [answers, asks]
        listener: Any = self.server._listener
        there.feed_data(listener._key)
        self._serving = asyncio.create_task(listener._connected(there, answers))
        return Connection(self.tag, here, asks, on_left)  # type: ignore[arg-type]

    def end(self) -> None:
        for one in self._ends:
            one.close()

    def _asks(self, frame: bytes) -> bool:
        kind = HEAD.unpack(frame[: HEAD.size])[2]
        if kind == Kind.CALL:
            self.got.append(pickle.loads(frame[HEAD.size :])[1][2])
            dies_after = self.deaths.pop(0) if self.deaths else None
            self._dies_after = inf if dies_after is None else dies_after
        self.cancels += kind == Kind.CANCEL
        return not self.frozen

    def _answers(self, frame: bytes) -> bool:
        if HEAD.unpack(frame[: HEAD.size])[2] in (Kind.ITEM, Kind.LAST):
            if self._dies_after <= 0:
                self.end()
                return False
            self._dies_after -= 1
            self.frozen |= self.freezes_after <= 0
            self.freezes_after -= 1
        return not self.frozen


class Broadcast:
    """What a handle's broadcast of `status` returns; each replica is asked apart."""

    def __init__(self, replicas: Sequence[Replica]) -> None:
        self._replicas = replicas

    async def _fetch_replica_results_async(self) -> list[Broadcast]:
        return [Broadcast([one]) for one in self._replicas]

    async def get_async(self) -> ReplicaStatus:
        (one,) = self._replicas
        while one.frozen:
            await asyncio.sleep(0.01)
        return ReplicaStatus(one.tag, Address(one.tag, 1, b""), one.server.stats(), None)


class Handle:
    """A Serve handle on a pool in this process, of a replica for each worker.

    Attributes:
        silent: Serve does not answer.
    """

    def __init__(self, *workers: Any, deaths: Sequence[int | None] = ()) -> None:
        self.replicas = [Replica(f"replica {n}", worker) for n, worker in enumerate(workers)]
        self.replicas[0].deaths = [*deaths]
        self.silent = False

    @property
    def replica(self) -> Replica:
        (one,) = self.replicas
        return one

    @property
    def calls(self) -> int:
        """How often the pool was called."""
        return sum(len(one.got) for one in self.replicas)

    def counted(self, name: str) -> int:
        return sum(one.server.stats()[name] for one in self.replicas)

    def broadcast(self, method: str) -> Broadcast:
        return Broadcast([] if self.silent else self.replicas)

    async def connect(self, replica: str, _: Address, on_left: Any) -> Connection:
        (one,) = (one for one in self.replicas if one.tag == replica)
        return await one.connect(on_left)


def pool(handle: Handle, **more: Any) -> ReplicaWorker:
    """Return the caller's side of a pool."""
    return ReplicaWorker(handle, connect=handle.connect, **more)
