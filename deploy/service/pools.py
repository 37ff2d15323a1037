"""The status of each worker: whether it answers, its context, its checkpoint's sampling, and the
levels of effort that its template has."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

from orchestrator.efforts import TemplateEfforts
from orchestrator.errors import WorkerUnavailable
from orchestrator.loop.actions import WorkerName
from orchestrator.types import GREEDY, PartialSampling, Sampling
from workers.replica.client import ReplicaWorker

if TYPE_CHECKING:
    from workers.remote.backend import RemoteBackend
    from workers.worker import ModelWorker

    AnyWorker = ReplicaWorker | ModelWorker[RemoteBackend]

REUSE_S = 1.0  # seconds for which an answer, or the lack of one, is reused
TIMEOUT_S = 2.0  # seconds for a pool or a server to answer


class WorkerView:
    """A worker's last known status.

    Concurrent callers share one status call, whose result is reused for `REUSE_S`. A model's
    context and sampling never change, so once reported they are kept.
    """

    def __init__(self, worker: AnyWorker, clock: Callable[[], float] = time.monotonic) -> None:
        self._worker, self._clock = worker, clock
        self._lock, self._until = asyncio.Lock(), -1.0
        self._answers = False
        self._context: int | None = None
        self._sampling: Sampling | None = None
        self._efforts: TemplateEfforts | None = None

    async def answers(self) -> bool:
        """Return whether a replica of the pool, or the server, answers."""
        async with self._lock:
            if self._clock() >= self._until:
                self._answers = await self._ask()
                self._until = self._clock() + REUSE_S
        return self._answers

    async def is_loading(self) -> bool:
        """Return whether the model of a pool has not answered since the start."""
        if not isinstance(self._worker, ReplicaWorker) or self._sampling is not None:
            return False
        return not await self.answers()

    async def context(self) -> int | None:
        """Return the model's context in tokens; None if it is not known."""
        if not isinstance(self._worker, ReplicaWorker):
            return self._worker.context
        if self._context is None:
            await self.answers()
        return self._context

    async def sampling(self) -> Sampling:
        """Return the sampling of the model's checkpoint.

        Raises:
            WorkerUnavailable: its pool has not reported it yet.
        """
        if not isinstance(self._worker, ReplicaWorker):
            return self._worker.sampling
        if self._sampling is None:
            await self.answers()
        if self._sampling is None:
            raise WorkerUnavailable("the model is still loading; try again shortly")
        return self._sampling

    async def efforts(self) -> TemplateEfforts | None:
        """Return the levels of effort of the model's template; None if it has none, or its pool has
        not reported them yet."""
        if not isinstance(self._worker, ReplicaWorker):
            return self._worker.efforts
        if self._sampling is None:  # it has not reported yet
            await self.answers()
        return self._efforts

    async def _ask(self) -> bool:
        if not isinstance(self._worker, ReplicaWorker):
            return await self._worker.backend.is_available(timeout_s=TIMEOUT_S)
        try:
            status = await self._worker.status(timeout_s=TIMEOUT_S)
        except WorkerUnavailable:
            return False
        self._context, self._sampling = status.context, status.sampling
        self._efforts = status.efforts
        return True


class WorkerViews:
    """Both workers' status, and the default sampling of requests."""

    def __init__(self, workers: Mapping[WorkerName, AnyWorker], sampling: PartialSampling) -> None:
        self._views = {name: WorkerView(worker) for name, worker in workers.items()}
        self._sampling = sampling

    async def ready(self) -> dict[str, bool]:
        """Return whether each worker answers, by name."""
        answers = await asyncio.gather(*(view.answers() for view in self._views.values()))
        return dict(zip(self._views, answers, strict=True))

    async def loading(self, names: Collection[WorkerName]) -> list[WorkerName]:
        """Return those of the models that have not answered since the start."""
        return [name for name in names if await self._views[name].is_loading()]

    async def contexts(self) -> dict[WorkerName, int | None]:
        """Return each model's context in tokens, by name; None if it is not known."""
        contexts = await asyncio.gather(*(view.context() for view in self._views.values()))
        return dict(zip(self._views, contexts, strict=True))

    async def efforts(self) -> dict[WorkerName, TemplateEfforts | None]:
        """Return the levels of effort that each model's template has, by name."""
        efforts = await asyncio.gather(*(view.efforts() for view in self._views.values()))
        return dict(zip(self._views, efforts, strict=True))

    async def sampling(self) -> Sampling:
        """Return the deployment file's sampling, completed by the large model's checkpoint.

        Raises:
            WorkerUnavailable: the file leaves something out that the pool has not reported yet.
        """
        if self._sampling.is_complete:
            return self._sampling.over(GREEDY)
        return self._sampling.over(await self._views["large"].sampling())
