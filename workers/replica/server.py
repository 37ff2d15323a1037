"""The replica's side: the Ray Serve deployment class, around a worker with its own engine."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass
from itertools import takewhile
from types import MappingProxyType
from typing import Any, Literal, Protocol

from ray import serve
from ray.serve import Application
from ray.serve.config import RequestRouterConfig

from orchestrator.errors import BatonError, WorkerError, WorkerUnavailable, describe
from orchestrator.types import GREEDY, Generation, Sampling
from orchestrator.worker import Call, Delta, Worker
from workers.replica.prefixes import PrefixMissing, PrefixReceiver, Sent
from workers.streams import batch_stream, resume_generation

log = logging.getLogger(__name__)

STALL_TIMEOUT_S = 30.0  # an engine at work takes a step at least this often
HEALTH_CHECK_S = 2.0
PROGRESS = ("passes", "rounds", "generated_tokens")
"""Counters that the engine alone moves: those of calls that come and go say nothing of it."""
RECENT_S = 10.0  # a request whose last call was so long ago may call again: its prefix is wanted
MAX_TRACKED = 4096  # requests of which the last call is remembered
Operation = Literal["generate", "classify", "verify"]
Export = Callable[[Mapping[str, int]], None]
NOTHING = Delta("", ())


class Hashed(Protocol):
    """A tokenizer, as far as it matters here."""

    @property
    def hash(self) -> str: ...


class ServedWorker(Worker, Protocol):
    """What a replica serves: a worker over an engine in its own process."""

    @property
    def tokenizer(self) -> Hashed: ...

    @property
    def alive(self) -> bool: ...

    @property
    def context(self) -> int | None: ...

    @property
    def sampling(self) -> Sampling: ...

    def stats(self) -> dict[str, int]: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """A replica's name, its counters and gauges, and of its model the context in tokens and the
    sampling that its checkpoint wants."""

    replica: str  # as Serve names it
    stats: dict[str, int]
    context: int | None
    sampling: Sampling = GREEDY


class RecentRequests:
    """The requests that called lately, for the counters of affinity and the load of the cache."""

    def __init__(self) -> None:
        self._last_call: dict[str, float] = {}  # the latest is last

    def record(self, request: str) -> bool:
        """Record a call; whether this request had called before."""
        known = self._last_call.pop(request, None) is not None
        self._last_call[request] = time.monotonic()
        if len(self._last_call) > MAX_TRACKED:
            del self._last_call[next(iter(self._last_call))]
        return known

    def count(self) -> int:
        """How many have called within `RECENT_S`."""
        since = time.monotonic() - RECENT_S
        return sum(1 for _ in takewhile(since.__lt__, reversed(self._last_call.values())))


class ReplicaServer:
    """One replica; deployed as `SmallWorker` and as `LargeWorker` (see `deployment`).

    Args:
        load: makes the worker.
        exporter: makes the function that exports the replica's counters and gauges as metrics; it
            is called with every health check.
    """

    def __init__(
        self, load: Callable[[], ServedWorker], exporter: Callable[[], Export] | None = None
    ) -> None:
        self._worker, self._export = load(), exporter and exporter()
        self._progress, self._busy = list[int](), False
        self._checked, self._stalled_s = time.monotonic(), 0.0
        self._recent, self._prefixes = RecentRequests(), PrefixReceiver()
        self._counts = dict.fromkeys(("calls", "later_calls", "affine_calls"), 0)
        self._streams = 0  # that have begun to write, now

    async def check_health(self) -> None:
        """Serve replaces the replica when this raises three times in a row.

        Raises:
            WorkerUnavailable: the engine has stopped; or it has work and made no progress for
                `STALL_TIMEOUT_S` (a GPU that does not come back).
        """
        self._export_stats()
        if not self._worker.alive:
            raise WorkerUnavailable("the engine has stopped")
        stats, now = self._worker.stats(), time.monotonic()
        progress = [stats.get(name, 0) for name in PROGRESS]
        was_busy, self._busy = self._busy, bool(stats["live_rows"] or stats["queued"])
        # A process that was stopped for a while has not stalled: no check counts for much more
        # than the time between two.
        self._stalled_s += min(now - self._checked, 2 * HEALTH_CHECK_S)
        self._checked = now
        if progress != self._progress or not (was_busy and self._busy):
            self._progress, self._stalled_s = progress, 0.0
        if self._stalled_s > STALL_TIMEOUT_S:
            raise WorkerUnavailable(f"the engine has made no progress for {STALL_TIMEOUT_S:g} s")

    def stats(self) -> dict[str, int]:
        """The engine's counters and gauges, and those of the requests that called."""
        return {**self._worker.stats(), **self._counts, "prefixes": self._recent.count()}

    def record_autoscaling_stats(self) -> dict[str, float]:
        """How full the replica is, for the decision how many there should be.

        1 where as many sequences are worked on or waiting as there are rows, or where as many
        requests want their prefixes kept as the cache has slots; more where more are.
        """
        stats = self.stats()
        live = (stats["live_rows"] + stats["queued"]) / stats["rows"]
        return {"load": max(live, stats["prefixes"] / stats["slots"])}

    async def status(self) -> ReplicaStatus:
        """Call it in a replica of Ray Serve."""
        replica = serve.get_replica_context().replica_tag
        worker = self._worker
        return ReplicaStatus(replica, self.stats(), worker.context, worker.sampling)

    def _export_stats(self) -> None:
        if self._export is not None:
            self._export(self.stats())

    async def answer_call(
        self, request: str, returning: bool, sent: Sent, operation: Operation, *args: Any
    ) -> Any:
        """One call with one answer: that, its BatonError, or `PrefixMissing`.

        Errors are sent as values: Serve would wrap what is raised, and log a traceback for each.

        Args:
            returning: whether the request has called this pool before.
            sent: the call.
            args: the others of the worker's method of that name.
        """
        call = self._begin(request, returning, sent)
        if call is None:
            return PrefixMissing()
        try:
            answer = await self._answer(operation, call, *args)
        except Exception as error:
            return _told(operation, request, error)
        self._prefixes.keep(call)
        return answer

    async def _answer(self, operation: Operation, call: Call, *args: Any) -> Any:
        if operation == "classify":
            return await self._worker.classify(call, *args)
        if operation == "verify":
            return await self._worker.verify(call, *args)
        async with aclosing(self._generate(NOTHING, call, *args, False)) as items:
            return await anext(items)

    async def stream_call(
        self, request: str, returning: bool, sent: Sent, received: Delta, *args: Any
    ) -> AsyncGenerator[Any, None]:
        """A generation: heartbeats (None), deltas, and at last the whole, or what `answer_call`
        would answer instead.

        Args:
            received: what its caller has received already (see `resume_generation`).
        """
        call = self._begin(request, returning, sent)
        if call is None:
            yield PrefixMissing()
            return
        generation = self._taken(call, self._generate(received, call, *args, True))
        async with aclosing(batch_stream(generation, lambda: self._streams)) as items:
            try:
                async for item in items:
                    yield item
            except Exception as error:
                yield _told("generate", request, error)

    def _begin(self, request: str, returning: bool, sent: Sent) -> Call | None:
        """The whole call, counted; None where its prefix is not here."""
        call = self._prefixes.restore(sent)
        if call is not None:
            known = self._recent.record(request)
            self._counts["calls"] += 1
            self._counts["later_calls"] += returning
            self._counts["affine_calls"] += returning and known
        return call

    def _generate(self, received: Delta, *args: Any) -> AsyncGenerator[Delta | Generation, None]:
        return resume_generation(
            self._worker.generate, self._worker.tokenizer.hash, received, *args
        )

    async def _taken(
        self, call: Call, items: AsyncGenerator[Delta | Generation, None]
    ) -> AsyncGenerator[Delta | Generation, None]:
        """The items; from the first on, which a call that waits for a row or is refused has not,
        they are one of the streams, and the call's transcript is kept."""
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

    def __del__(self) -> None:
        with suppress(AttributeError):  # it never loaded
            self._export_stats()
            self._worker.close()


def _told(operation: Operation, request: str, error: Exception) -> BatonError:
    """An error as its caller reads it."""
    if isinstance(error, BatonError):
        return error
    log.error("%s failed: %s", operation, describe(error), extra={"trace_id": request})
    return WorkerError(f"{operation} failed on the replica: {type(error).__name__}")


@dataclass(frozen=True, slots=True)
class ReplicaSize:
    """What one replica takes.

    Attributes:
        rows: sequences that live at once in a replica; `queue` more wait there.
        gpu: its share of a GPU (Ray counts shares, the engine's `load` keeps to them).
        gpus: the whole GPUs it is spread over. More than one come as a placement group, in which
            vLLM starts an actor for each, as in Ray Serve's own LLM deployment.
    """

    rows: int = 8
    queue: int = 64
    gpu: float = 0.0
    gpus: int = 1


def deployment(
    name: str,
    load: Callable[[], ServedWorker],
    *,
    size: ReplicaSize | None = None,
    scaling: Mapping[str, Any] = MappingProxyType({"num_replicas": 1}),
    nodes: Mapping[str, str] = MappingProxyType({}),
    exporter: Callable[[], Export] | None = None,
) -> Application:
    """A pool of replicas, ready to be bound into an application.

    Args:
        load, exporter: see `ReplicaServer`.
        scaling: Serve's options for the number of replicas.
        nodes: labels of the Ray nodes where they may run.
    """
    size = size or ReplicaSize()
    gpus = size.gpus
    resources: dict[str, Any] = {"num_cpus": 0.2, "num_gpus": size.gpu}
    if gpus > 1:
        resources = {"num_cpus": 0.2}
        bundles = [{"CPU": 0.2, "GPU": 1.0}, *({"GPU": 1.0} for _ in range(gpus - 1))]
        scaling = {**scaling, "placement_group_bundles": bundles}
        scaling["placement_group_strategy"] = "PACK"
        if nodes:  # the replica's own labels are those of the first bundle alone
            scaling["placement_group_bundle_label_selector"] = [dict(nodes) for _ in bundles]
    return serve.deployment(
        ReplicaServer,
        name=name,
        **scaling,
        # The engine queues and batches by itself: Serve's limit of 5 would starve it. What it
        # would refuse goes to the next replica on the ring, or waits in the router.
        max_ongoing_requests=size.rows + size.queue,
        # Unlimited by default. A longer queue only means that everybody's deadline passes.
        max_queued_requests=1024,
        # Calls last a step, not a request; a call cut off here is made again elsewhere.
        graceful_shutdown_timeout_s=10,
        graceful_shutdown_wait_loop_s=0.1,
        # Three failures in a row replace a replica: after 6 s instead of 30.
        health_check_period_s=HEALTH_CHECK_S,
        health_check_timeout_s=30,
        # A model that does not load will not load the 20th time either.
        max_constructor_retry_count=2,
        # Shares are bookkeeping: three deployments and the proxy fit on two cores. How many
        # threads torch takes is the model's setting.
        ray_actor_options={**resources, "label_selector": dict(nodes)},
        request_router_config=RequestRouterConfig(
            request_router_class="workers.replica.router.ReplicaRouter",
        ),
    ).bind(load, exporter)
