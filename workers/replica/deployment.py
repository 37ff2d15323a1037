"""A worker over Ray Serve: the deployment class, and the `Worker` port over its handle.

Four things here are deliberate, each against a Serve default that bites:

- **One replica per request.** `ConsistentHashRouter` maps a request's id to a replica, so that its
  calls find their prefix in the cache there. It is a hint: when that replica is full or gone, the
  router takes the next on the ring, and the answer is the same.
- **gRPC by value** (`_by_reference=False`): about half the latency of Ray's object path, and a
  stream costs 0.1 ms an item instead of 0.4.
- **One streamed exchange for every verb**, kept alive by beats: a replica that falls silent (a
  lost node sends no farewell) is given up within `SILENCE_S`, and closing the stream cancels.
- **A lost call is made again** within `patience_s`, on another replica or on the replacement of
  the only one. A generation that had begun goes on where it broke off: the new call carries what
  was already made as `made`. Sampling is keyed by absolute position, so the text is the same.
  Once a call has waited so long in vain, others are refused at once and policies do without the
  pool, until one of those that still try it now and then is answered.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, suppress
from contextvars import Context
from dataclasses import dataclass, field
from itertools import takewhile
from types import MappingProxyType
from typing import Any, Literal, Protocol

from grpc import RpcError
from ray import serve
from ray.exceptions import RayError, RayTaskError
from ray.serve import Application
from ray.serve.config import RequestRouterConfig
from ray.serve.exceptions import BackPressureError, RayServeException

from orchestrator.errors import (
    BatonError,
    Overloaded,
    WorkerError,
    WorkerUnavailable,
    describe,
)
from orchestrator.types import (
    Classification,
    Generation,
    LabelQuery,
    Sampling,
    Segment,
    StopCriteria,
    Verification,
)
from orchestrator.worker import Call, Delta, Worker
from workers.retry import Breaker
from workers.streams import gathered, joined, resumed

log = logging.getLogger(__name__)

SILENCE_S = 10.0  # a call that says nothing for so long is lost
TRY_S = 2.0  # for one of the calls that try a pool in which nobody answered
STUCK_S = 30.0  # an engine at work takes a step at least this often
RECENT_S = 10.0  # a request that called so long ago may call again: its prefix is worth its place
REMEMBERED = 4096  # requests, of each of which is known that it called
Verb = Literal["generate", "classify", "verify", "facts"]
Report = Callable[[Mapping[str, int]], None]


class Tokenized(Protocol):
    @property
    def hash(self) -> str: ...


class Backend(Worker, Protocol):
    """What a replica serves: a worker over an engine in its own process."""

    @property
    def tokenizer(self) -> Tokenized: ...

    @property
    def alive(self) -> bool: ...

    def stats(self) -> dict[str, int]: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Facts:
    """What a replica says of itself: its process id, and its counters and gauges."""

    pid: int
    stats: dict[str, int]


class Callers:
    """The requests that called lately: who comes again, and how many may."""

    def __init__(self) -> None:
        self._last: dict[str, float] = {}  # the latest is last

    def note(self, request: str) -> bool:
        """Take note of a call; whether this request had called before."""
        known = self._last.pop(request, None) is not None
        self._last[request] = time.monotonic()
        if len(self._last) > REMEMBERED:
            del self._last[next(iter(self._last))]
        return known

    def recent(self) -> int:
        """How many have called within `RECENT_S`."""
        since = time.monotonic() - RECENT_S
        return sum(1 for _ in takewhile(since.__lt__, reversed(self._last.values())))


class WorkerReplica:
    """One replica; deployed as `SmallWorker` and as `LargeWorker` (see `deployment`).

    `reporter` makes what takes its counters to where metrics are gathered: with every check of its
    health, and when somebody asks for them.
    """

    def __init__(
        self, load: Callable[[], Backend], reporter: Callable[[], Report] | None = None
    ) -> None:
        self._backend, self._report = load(), reporter and reporter()
        self._reporting: asyncio.Task[None] | None = None
        self._stats: dict[str, int] = {}
        self._moved = time.monotonic()
        self._callers = Callers()
        self._calls = dict.fromkeys(("calls", "later_calls", "affine_calls"), 0)

    async def check_health(self) -> None:
        """Serve replaces the replica when this raises three times in a row.

        An engine that has stopped is ill at once. One that has work and makes no progress is stuck:
        a GPU that does not come back.
        """
        if self._reporting is None or self._reporting.done():  # not awaited: it may take its time
            self._reporting = asyncio.create_task(self._take_down())
        if not self._backend.alive:
            raise WorkerUnavailable("the engine has stopped")
        stats, now = self._backend.stats(), time.monotonic()
        if stats != self._stats or not (stats["live_rows"] or stats["queued"]):
            self._stats, self._moved = stats, now
        if now - self._moved > STUCK_S:
            raise WorkerUnavailable(f"the engine has made no progress for {STUCK_S:g} s")

    def stats(self) -> dict[str, int]:
        """The engine's counters and gauges, and those of who called."""
        return {**self._backend.stats(), **self._calls, "prefixes": self._callers.recent()}

    def record_autoscaling_stats(self) -> dict[str, float]:
        """How full the replica is, for whoever decides how many there should be.

        1 where as many sequences are worked on or waiting as there are rows, or where as many
        requests want their prefixes kept as the cache has slots; more where more are.
        """
        stats = self.stats()
        live = (stats["live_rows"] + stats["queued"]) / stats["rows"]
        return {"load": max(live, stats["prefixes"] / stats["slots"])}

    def facts(self) -> Facts:
        return Facts(os.getpid(), self.stats())

    async def reported_facts(self) -> Facts:
        """What the replica says of itself, after its counters have been reported."""
        await self._take_down()
        return self.facts()

    async def _take_down(self) -> None:
        if self._report is not None:
            await asyncio.to_thread(self._report, self.stats())

    async def exchange(
        self, verb: Verb, request: str, again: bool, *args: Any
    ) -> AsyncGenerator[Any, None]:
        """One call: beats (None), deltas, and at last the answer, or the BatonError it met.

        `again`: the request has called this pool before. Errors travel as values: Serve would wrap
        what is raised, and log a traceback for each.
        """
        if verb != "facts":
            known = self._callers.note(request)
            self._calls["calls"] += 1
            self._calls["later_calls"] += again
            self._calls["affine_calls"] += again and known
        async with aclosing(gathered(self._perform(verb, *args))) as items:
            try:
                async for item in items:
                    yield item
            except BatonError as error:
                yield error
            except Exception as error:
                log.error("%s failed: %s", verb, describe(error), extra={"trace_id": request})
                yield WorkerError(f"{verb} failed on the replica: {type(error).__name__}")

    async def _perform(self, verb: Verb, *args: Any) -> AsyncGenerator[Any, None]:
        if verb == "facts":
            yield self.facts()
        elif verb == "generate":
            async with aclosing(
                resumed(self._backend.generate, self._backend.tokenizer.hash, *args)
            ) as items:
                async for item in items:
                    yield item
        elif verb == "classify":
            yield await self._backend.classify(*args)
        else:
            yield await self._backend.verify(*args)

    def __del__(self) -> None:
        with suppress(AttributeError):  # it never loaded
            if self._report is not None:
                self._report(self.stats())
            self._backend.close()


class ReplicaWorker:
    """The `Worker` port over a pool of replicas.

    `patience_s`: how long a call waits for a pool in which nobody answers, in seconds. `on_lost` is
    told of every call that was lost with its replica.
    """

    def __init__(
        self, handle: Any, *, patience_s: float = 60.0, on_lost: Callable[[], object] = lambda: None
    ) -> None:
        self._handle, self._patience_s, self._on_lost = handle, patience_s, on_lost
        self._callers = Callers()
        self._breaker = Breaker("the pool", limit=1)

    def _patience(self) -> _Patience:
        """What a call has for the pool.

        Raises:
            WorkerUnavailable: none: it was in vain lately.
        """
        self._breaker.enter()
        return _Patience(TRY_S if self._breaker.open else self._patience_s, self._breaker)

    async def generate(
        self, call: Call, criteria: StopCriteria, sampling: Sampling, *, stream: bool = True
    ) -> AsyncGenerator[Delta | Generation, None]:
        made, patience = Delta("", ()), self._patience()
        while True:
            tries = self._try(
                patience, call.request, "generate", made, call, criteria, sampling, stream
            )
            try:
                async with aclosing(tries) as items:
                    async for item in items:
                        if isinstance(item, Delta):
                            made = joined((made, item))
                            patience.renew()
                        yield item
                        if isinstance(item, Generation):
                            return
            except _Lost as lost:
                self._on_lost()
                await patience.wait(lost)

    async def classify(self, call: Call, query: LabelQuery) -> Classification:
        answer: Classification = await self._answer(call.request, "classify", call, query)
        return answer

    async def verify(self, call: Call, segment: Segment, sampling: Sampling) -> Verification:
        answer: Verification = await self._answer(call.request, "verify", call, segment, sampling)
        return answer

    async def everyone(self, patience_s: float = 1.0) -> list[Facts]:
        """What each replica of the pool says of itself, its counters now being reported.

        Those that do not answer are left out.
        """
        answers = await self._handle.broadcast("reported_facts").results_async(
            timeout_s=patience_s, return_exceptions=True
        )
        return [answer for answer in answers if isinstance(answer, Facts)]

    async def facts(self, patience_s: float = 1.0) -> Facts:
        """What one replica of the pool says of itself.

        Raises:
            WorkerUnavailable: none answers within `patience_s` seconds.
        """
        tries = self._try(_Patience(patience_s, self._breaker), "", "facts")
        try:
            async with aclosing(tries) as items:
                async for item in items:
                    if isinstance(item, Facts):
                        return item
        except _Lost as lost:
            raise WorkerUnavailable(str(lost)) from None
        raise WorkerUnavailable("no answer")

    async def _answer(self, request: str, verb: Verb, *args: Any) -> Any:
        patience = self._patience()
        while True:
            try:
                async with aclosing(self._try(patience, request, verb, *args)) as items:
                    return await anext(items)
            except _Lost as lost:
                self._on_lost()
                await patience.wait(lost)

    async def _try(
        self, patience: _Patience, request: str, verb: Verb, *args: Any
    ) -> AsyncGenerator[Any, None]:
        """One exchange with one replica, without its beats.

        Raises:
            _Lost: worth another try. Other BatonErrors are the answer.
        """
        handle = self._handle.options(
            method_name="exchange",
            stream=True,
            session_id=patience.session(request),
            _by_reference=False,
            request_serialization="pickle",
            response_serialization="pickle",
        )
        # Outside of the request's context: Serve would give all calls of a request its id, and of
        # two that wait under one id in the router only one is ever sent.
        again = self._callers.note(request)
        response = Context().run(handle.remote, verb, request, again, *args)
        waiting = patience.left()  # the router waits for a replica, the replica may be loading
        try:
            while True:
                async with asyncio.timeout(waiting):
                    item = await anext(response, response)
                waiting = SILENCE_S
                if item is response:
                    raise _Lost("the exchange ended without an answer")
                if isinstance(item, WorkerUnavailable):
                    raise _Lost(str(item))
                self._breaker.succeeded()
                if isinstance(item, BatonError):
                    raise item
                if item is not None:
                    yield item
        except BackPressureError:
            raise Overloaded("too many calls are waiting for a replica") from None
        except RayTaskError as error:  # the replica's code failed, and would again
            cause = type(error.cause).__name__
            log.error("%s on a replica failed: %s", verb, cause)
            raise WorkerError(f"{verb} failed on the replica: {cause}") from None
        except (RayError, RayServeException, RpcError, OSError, RuntimeError) as error:
            raise _Lost(f"a replica was lost: {type(error).__name__}") from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise  # our caller hung up; otherwise the replica's own server stopped
            raise _Lost("a replica went away") from None
        finally:
            response.cancel()


class _Lost(Exception):
    """A call that was lost with its replica; never leaves this module."""


@dataclass(slots=True)
class _Patience:
    """How often and how long one call is tried again."""

    patience_s: float
    breaker: Breaker
    tries: int = 0
    until: float = field(init=False)

    def __post_init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """There is progress: the clock starts anew."""
        self.until = asyncio.get_running_loop().time() + self.patience_s

    def left(self) -> float:
        return max(0.0, self.until - asyncio.get_running_loop().time())

    def session(self, request: str) -> str:
        """Calls of a request share a replica; a retry asks another, if there is one."""
        return f"{request}/{self.tries}" if self.tries else request

    async def wait(self, lost: _Lost) -> None:
        """A pause before the next try.

        Raises:
            WorkerUnavailable: it has been too long.
        """
        pause = min(0.05 * 2**self.tries, 1.0)
        self.tries += 1
        if self.left() <= pause:
            self.breaker.failed()
            raise WorkerUnavailable(str(lost)) from None
        log.warning("trying again: %s", lost)
        await asyncio.sleep(pause)


def deployment(
    name: str,
    load: Callable[[], Backend],
    *,
    scaling: Mapping[str, Any] = MappingProxyType({"num_replicas": 1}),
    nodes: Mapping[str, str] = MappingProxyType({}),
    rows: int = 8,
    queue: int = 64,
    gpu: float = 0.0,
    reporter: Callable[[], Report] | None = None,
) -> Application:
    """A pool of replicas, ready to be bound into an application.

    `scaling` holds Serve's options for how many there are, `nodes` the labels of the Ray nodes
    where they may run. `rows` sequences live at once in a replica and `queue` more wait there;
    `gpu` is its share of a GPU (Ray counts shares, the engine's `load` keeps to them). `reporter`:
    see `WorkerReplica`.
    """
    return serve.deployment(
        WorkerReplica,
        name=name,
        **scaling,
        # The engine queues and batches by itself: Serve's limit of 5 would starve it. What it
        # would refuse goes to the next replica on the ring, or waits in the router.
        max_ongoing_requests=rows + queue,
        # Unlimited by default. A longer queue only means that everybody's deadline passes.
        max_queued_requests=1024,
        # Calls last a step, not a request; a call cut off here is made again elsewhere.
        graceful_shutdown_timeout_s=10,
        graceful_shutdown_wait_loop_s=0.1,
        # Three failures in a row replace a replica: after 6 s instead of 30.
        health_check_period_s=2,
        health_check_timeout_s=30,
        # A model that does not load will not load the 20th time either.
        max_constructor_retry_count=2,
        # Shares are bookkeeping: three deployments and the proxy fit on two cores. How many
        # threads torch takes is the model's setting.
        ray_actor_options={"num_cpus": 0.2, "num_gpus": gpu, "label_selector": dict(nodes)},
        request_router_config=RequestRouterConfig(
            request_router_class=(
                "ray.serve.experimental.consistent_hash_router.ConsistentHashRouter"
            ),
        ),
    ).bind(load, reporter)
