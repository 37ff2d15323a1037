"""The replica's side: the Ray Serve deployment class around a worker with its own engine."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass
from itertools import takewhile
from types import MappingProxyType
from typing import Any, Literal

from ray import serve
from ray.serve import Application
from ray.util import get_node_ip_address

from orchestrator.efforts import TemplateEfforts
from orchestrator.errors import BatonError, WorkerError, WorkerUnavailable, describe
from orchestrator.types import GREEDY, Generation, Sampling
from orchestrator.worker import Call, Delta
from workers.replica.channel import Listener
from workers.replica.pool import Location
from workers.replica.prefixes import PrefixMissing, PrefixReceiver, Sent
from workers.streams import batch_stream
from workers.worker import EngineWorker

log = logging.getLogger(__name__)

STALL_TIMEOUT_S = 30.0  # an engine at work takes a step at least this often
HEALTH_CHECK_S = 2.0
PROGRESS = ("passes", "rounds", "generated_tokens")
"""Counters that only the engine's progress changes; those of calls change without it."""
SHUTDOWN_S = 10.0  # for a replica's end; calls have all but `MARGIN_S` of them
MARGIN_S = 2.0
RECENT_S = 10.0  # a request that called within this time may call again and want its prefix
MAX_TRACKED = 4096  # requests whose last call is remembered
Operation = Literal["generate", "classify", "verify"]
Export = Callable[[Mapping[str, int]], None]


class EngineDied(WorkerUnavailable):
    """The engine stopped while it had the call, which may be the cause."""


@dataclass(frozen=True, slots=True)
class ReplicaStatus(Location):
    """A replica's counters and gauges, and its model's context length, sampling and efforts."""

    stats: dict[str, int]
    context: int | None
    sampling: Sampling = GREEDY
    efforts: TemplateEfforts | None = None


class RecentRequests:
    """The requests that called recently, for the counters of affinity and the cache's load."""

    def __init__(self) -> None:
        self._last_call: dict[str, float] = {}  # the latest is last

    def record(self, request: str) -> bool:
        """Record a call; return whether its request had called before."""
        known = self._last_call.pop(request, None) is not None
        self._last_call[request] = time.monotonic()
        if len(self._last_call) > MAX_TRACKED:
            del self._last_call[next(iter(self._last_call))]
        return known

    def count(self) -> int:
        """Return how many have called within `RECENT_S`."""
        since = time.monotonic() - RECENT_S
        return sum(1 for _ in takewhile(since.__lt__, reversed(self._last_call.values())))


class ReplicaServer:
    """One replica; deployed as `SmallWorker` and as `LargeWorker` (see `deployment`).

    Args:
        load: makes the worker.
        exporter: makes the function that exports the replica's counters and gauges as metrics,
            which every health check calls.
    """

    def __init__(
        self, load: Callable[[], EngineWorker[Any]], exporter: Callable[[], Export] | None = None
    ) -> None:
        self._worker, self._export = load(), exporter and exporter()
        self._progress, self._busy = list[int](), False
        self._checked, self._stalled_s = time.monotonic(), 0.0
        self._recent, self._prefixes = RecentRequests(), PrefixReceiver()
        self._counts = dict.fromkeys(("calls", "later_calls", "affine_calls"), 0)
        self._streams = 0  # open streams that have sent an item
        self._listener = Listener({"answer": self.answer_call, "stream": self.stream_call})

    async def check_health(self) -> None:
        """Check the engine; Serve replaces the replica if this raises three times in a row.

        Raises:
            WorkerUnavailable: the engine has stopped; or it has work and made no progress for
                `STALL_TIMEOUT_S`, as when a GPU hangs.
        """
        if self._export is not None:
            self._export(self.stats())
        if not self._worker.alive:
            raise WorkerUnavailable("the engine has stopped")
        stats, now = self._worker.stats(), time.monotonic()
        progress = [stats.get(name, 0) for name in PROGRESS]
        was_busy, self._busy = self._busy, bool(stats["live_rows"] or stats["queued"])
        # A process that was suspended has not stalled: a check counts at most two intervals.
        self._stalled_s += min(now - self._checked, 2 * HEALTH_CHECK_S)
        self._checked = now
        if progress != self._progress or not (was_busy and self._busy):
            self._progress, self._stalled_s = progress, 0.0
        if self._stalled_s > STALL_TIMEOUT_S:
            raise WorkerUnavailable(f"the engine has made no progress for {STALL_TIMEOUT_S:g} s")

    def stats(self) -> dict[str, int]:
        """Return the engine's counters and gauges, and the counters of calls."""
        return {**self._worker.stats(), **self._counts, "prefixes": self._recent.count()}

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Return the replica's load, from which Serve decides how many replicas to run.

        The load is 1 if there are as many running or waiting sequences as rows, or as many recent
        requests as the cache has slots for their prefixes; it exceeds 1 with more.
        """
        stats = self.stats()
        live = (stats["live_rows"] + stats["queued"]) / stats["rows"]
        return {"load": max(live, stats["prefixes"] / stats["slots"])}

    async def status(self) -> ReplicaStatus:
        """Return the status; call this only in a replica of Ray Serve."""
        replica = serve.get_replica_context().replica_tag
        address = await self._listener.address(get_node_ip_address())
        stats, worker = self.stats(), self._worker
        return ReplicaStatus(
            replica, address, stats, worker.context, worker.sampling, worker.efforts
        )

    async def answer_call(
        self, request: str, returning: bool, sent: Sent, operation: Operation, *args: Any
    ) -> Any:
        """Return the answer to a call, its BatonError, or `PrefixMissing`.

        Args:
            returning: whether the request has called this pool before.
            args: further arguments of the worker's method `operation`.
        """
        call, alive = self._begin(request, returning, sent), self._worker.alive
        if call is None:
            return PrefixMissing()
        try:
            answer = await self._answer(operation, call, *args)
        except Exception as error:
            return _error_to_send(operation, request, error, alive=alive)
        self._prefixes.keep(call)
        return answer

    async def _answer(self, operation: Operation, call: Call, *args: Any) -> Any:
        if operation == "classify":
            return await self._worker.classify(call, *args)
        if operation == "verify":
            return await self._worker.verify(call, *args)
        async with aclosing(self._worker.generate(call, *args, stream=False)) as items:
            return await anext(items)

    async def stream_call(
        self, request: str, returning: bool, sent: Sent, received: Delta, *args: Any
    ) -> AsyncGenerator[Any, None]:
        """Yield deltas and the whole generation, or what `answer_call` returns in its place.

        `received` is what the caller has already (see `ModelWorker.generate`).
        """
        call, alive = self._begin(request, returning, sent), self._worker.alive
        if call is None:
            yield PrefixMissing()
            return
        generation = self._taken(call, self._worker.generate(call, *args, received=received))
        async with aclosing(batch_stream(generation, lambda: self._streams)) as items:
            try:
                async for item in items:
                    yield item
            except Exception as error:
                yield _error_to_send("generate", request, error, alive=alive)

    def _begin(self, request: str, returning: bool, sent: Sent) -> Call | None:
        """Return the whole call and count it; None if its prefix is not here."""
        call = self._prefixes.restore(sent)
        if call is not None:
            known = self._recent.record(request)
            self._counts["calls"] += 1
            self._counts["later_calls"] += returning
            self._counts["affine_calls"] += returning and known
        return call

    async def _taken(
        self, call: Call, items: AsyncGenerator[Delta | Generation, None]
    ) -> AsyncGenerator[Delta | Generation, None]:
        """Yield the items. At the first one, when the call was accepted and has a row, count the
        stream and keep the call's transcript."""
        taken = False
        try:
            async with aclosing(items):
                async for item in items:
                    if not taken:
                        taken = True
                        self._streams += 1
                        self._prefixes.keep(call)
                    yield item
        finally:
            self._streams -= taken

    def __del__(self) -> Coroutine[Any, Any, None] | None:
        """End; Serve awaits what this returns, so that running calls may end first."""
        with suppress(AttributeError):  # it never loaded
            if self._listener.is_open:
                return self._leave()
            self._end()
        return None

    async def _leave(self) -> None:
        await self._listener.close(SHUTDOWN_S - MARGIN_S)
        self._end()

    def _end(self) -> None:
        if self._export is not None:
            self._export(self.stats())
        self._worker.close()


def _error_to_send(
    operation: Operation, request: str, error: Exception, *, alive: bool
) -> BatonError:
    """Return what the caller gets; `alive`: whether the engine was before the call."""
    if isinstance(error, WorkerUnavailable) and alive:
        return EngineDied(str(error))
    if isinstance(error, BatonError):
        return error
    log.error("%s failed: %s", operation, describe(error), extra={"trace_id": request})
    return WorkerError(f"{operation} failed on the replica: {type(error).__name__}")


def deployment(
    name: str,
    load: Callable[[], EngineWorker[Any]],
    *,
    gpu: float = 0.0,
    gpus: int = 1,
    scaling: Mapping[str, Any] = MappingProxyType({"num_replicas": 1}),
    nodes: Mapping[str, str] = MappingProxyType({}),
    exporter: Callable[[], Export] | None = None,
) -> Application:
    """Return the application of a pool of replicas.

    Args:
        load, exporter: see `ReplicaServer`.
        gpu: a replica's share of a GPU (Ray counts shares; the engine's `load` observes them).
        gpus: whole GPUs. More than one make a placement group, in which vLLM starts an actor for
            each, as in Ray Serve's own LLM deployment.
        scaling: Serve's options for the number of replicas.
        nodes: labels of the Ray nodes that may run them.
    """
    resources: dict[str, Any] = {"num_cpus": 0.2, "num_gpus": gpu}
    if gpus > 1:
        resources = {"num_cpus": 0.2}
        bundles = [{"CPU": 0.2, "GPU": 1.0}, *({"GPU": 1.0} for _ in range(gpus - 1))]
        scaling = {**scaling, "placement_group_bundles": bundles}
        scaling["placement_group_strategy"] = "PACK"
        if nodes:  # the actor's label selector covers the first bundle alone
            scaling["placement_group_bundle_label_selector"] = [dict(nodes) for _ in bundles]
    return serve.deployment(
        ReplicaServer,
        name=name,
        **scaling,
        max_ongoing_requests=100,  # questions for the status; calls do not go through Serve
        # Calls last a step, not a request; a call cut off here is retried elsewhere.
        graceful_shutdown_timeout_s=SHUTDOWN_S,
        graceful_shutdown_wait_loop_s=0.1,
        # Three failures in a row replace a replica: after 6 s instead of 30.
        health_check_period_s=HEALTH_CHECK_S,
        health_check_timeout_s=30,
        # By default 20: but a model that does not load twice will not load later.
        max_constructor_retry_count=2,
        # Small CPU shares, so that three deployments and the proxy fit on two cores; the number of
        # torch's threads is a separate setting.
        ray_actor_options={**resources, "label_selector": dict(nodes)},
    ).bind(load, exporter)
