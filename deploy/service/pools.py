"""The status of each worker: whether it answers, and what it reports of its model."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

from orchestrator.errors import WorkerUnavailable
from orchestrator.http.planning import ModelFacts
from orchestrator.loop.actions import WorkerName
from workers.replica.client import ReplicaWorker

if TYPE_CHECKING:
    from workers.remote.backend import RemoteBackend
    from workers.replica.server import ReplicaStatus
    from workers.worker import ModelWorker

    AnyWorker = ReplicaWorker | ModelWorker[RemoteBackend]

REUSE_S = 1.0  # seconds for which an answer, or the lack of one, is reused
TIMEOUT_S = 2.0  # seconds for a pool or a server to answer


HIDDEN = "its server does not answer, or refuses; the service's log says why"


class WorkerView:
    """A worker's last known status.

    Concurrent callers share one status call, whose result is reused for `REUSE_S`. What a pool
    reports of its model never changes, so it is kept.
    """

    def __init__(self, worker: AnyWorker, clock: Callable[[], float] = time.monotonic) -> None:
        self._worker, self._clock = worker, clock
        self._lock, self._until = asyncio.Lock(), -1.0
        self._trouble: str | None = None
        self._facts: ModelFacts | None = None

    async def trouble(self) -> str | None:
        """Return why no replica of the pool, or not the server, answers; None if one does."""
        async with self._lock:
            if self._clock() >= self._until:
                self._trouble = await self._ask()
                self._until = self._clock() + REUSE_S
        return self._trouble

    async def facts(self) -> ModelFacts | None:
        """Return what is known of the model; None: its pool has not answered since the start."""
        if not isinstance(self._worker, ReplicaWorker):
            return _facts(self._worker)
        if self._facts is None:
            await self.trouble()
        return self._facts

    async def _ask(self) -> str | None:
        if not isinstance(self._worker, ReplicaWorker):
            return await self._worker.backend.trouble(timeout_s=TIMEOUT_S)
        try:
            self._facts = _facts(await self._worker.status(timeout_s=TIMEOUT_S))
        except WorkerUnavailable:
            return "its model loads, or its replicas are lost"
        return None


class WorkerViews:
    """The status of both workers, as `Pools` wants it. Only if it `shows` them, troubles hold what
    a server said, which may name addresses."""

    def __init__(self, workers: Mapping[WorkerName, AnyWorker], *, shows: bool = True) -> None:
        self._views = {name: WorkerView(worker) for name, worker in workers.items()}
        self._hides = {
            name: not (shows or isinstance(worker, ReplicaWorker))
            for name, worker in workers.items()
        }

    async def troubles(self) -> dict[WorkerName, str | None]:
        troubles = await asyncio.gather(*(view.trouble() for view in self._views.values()))
        return {
            name: HIDDEN if why is not None and self._hides[name] else why
            for name, why in zip(self._views, troubles, strict=True)
        }

    async def facts(self, names: Collection[WorkerName]) -> dict[WorkerName, ModelFacts | None]:
        found = await asyncio.gather(*(self._views[name].facts() for name in names))
        return dict(zip(names, found, strict=True))


def _facts(of: ReplicaStatus | ModelWorker[RemoteBackend]) -> ModelFacts:
    return ModelFacts(of.context, of.sampling, of.efforts)
