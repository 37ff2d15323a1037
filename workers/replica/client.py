"""The caller's side: the `Worker` port over the Serve handle of a pool of replicas."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager, suppress
from contextvars import Context
from time import perf_counter
from typing import Any, NamedTuple

from grpc import RpcError
from ray.exceptions import RayActorError, RayError, RayTaskError
from ray.serve.exceptions import BackPressureError, RayServeException

from orchestrator.errors import BatonError, Overloaded, WorkerError, WorkerUnavailable, describe
from orchestrator.types import (
    Classification,
    Generation,
    LabelQuery,
    Sampling,
    Segment,
    StopCriteria,
    Verification,
)
from orchestrator.worker import Call, Delta
from workers.replica.prefixes import PrefixMissing, PrefixSender, bare
from workers.replica.routers import avoid_others, taker
from workers.replica.server import Operation, RecentRequests, ReplicaStatus
from workers.retry import CircuitBreaker, TimedRetry
from workers.streams import merge_deltas

log = logging.getLogger(__name__)

SILENCE_TIMEOUT_S = 10.0  # a call without an item for so long, heartbeats included, is lost
TICK_S = 0.5  # in which silence is counted
PROBE_TIMEOUT_S = 2.0  # for a call that the open breaker lets through
MAX_ENDED = 3  # replicas that may die at one call
AT_ONCE_S = 1.0  # a replica that was dead before the call came fails it sooner


class ReplicaWorker:
    """The `Worker` port over a pool of replicas.

    Args:
        handle: Serve's, of the deployment.
        retry_timeout_s: how long a call is tried again while no replica answers.
        on_lost: called for every call that was lost with its replica.
    """

    def __init__(
        self,
        handle: Any,
        *,
        retry_timeout_s: float = 120.0,
        on_lost: Callable[[], object] = lambda: None,
    ) -> None:
        self._handle, self._retry_timeout_s, self._on_lost = handle, retry_timeout_s, on_lost
        self._recent, self._prefixes = RecentRequests(), PrefixSender()
        self._breaker = CircuitBreaker("the pool", failure_threshold=1)
        self._looking: asyncio.Task[_Pool] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._avoids = False  # some replicas, which are silent

    async def generate(
        self, call: Call, criteria: StopCriteria, sampling: Sampling, *, stream: bool = True
    ) -> AsyncGenerator[Delta | Generation, None]:
        if not stream:
            generation: Generation = await self._answer("generate", call, criteria, sampling)
            yield generation
            return
        received, retry = list[Delta](), self._retry()
        while True:
            so_far = merge_deltas(received)
            attempt = self._attempt(retry, call, so_far, criteria, sampling)
            try:
                async with aclosing(attempt) as items:
                    async for item in items:
                        if isinstance(item, Delta):
                            received.append(item)
                            retry.reset()
                        yield item
                        if isinstance(item, Generation):
                            return
            except _ReplicaLost as lost:
                await self._back_off(retry, lost)

    async def classify(self, call: Call, query: LabelQuery) -> Classification:
        answer: Classification = await self._answer("classify", call, query)
        return answer

    async def verify(
        self, call: Call, segment: Segment, sampling: Sampling, top: int = 0
    ) -> Verification:
        answer: Verification = await self._answer("verify", call, bare(segment), sampling, top)
        return answer

    async def statuses(self, timeout_s: float = 1.0) -> list[ReplicaStatus]:
        """The status of each replica of the pool that answers in time."""
        async with aclosing(self._answers(timeout_s)) as answers:
            return [answer async for answer in answers]

    async def status(self, timeout_s: float = 1.0) -> ReplicaStatus:
        """The status of the replica of the pool that answers first.

        Raises:
            WorkerUnavailable: none answers within `timeout_s` seconds.
        """
        async with aclosing(self._answers(timeout_s)) as answers:
            async for answer in answers:
                return answer
        raise WorkerUnavailable(f"no replica answered within {timeout_s:g} s")

    async def _answers(self, timeout_s: float) -> AsyncGenerator[ReplicaStatus, None]:
        """The statuses as they come."""
        until = asyncio.get_running_loop().time() + timeout_s
        waiting: list[asyncio.Future[Any]] = []
        try:
            with suppress(TimeoutError, RayError, RayServeException, RpcError):
                async with asyncio.timeout_at(until):
                    # Not its `results_async`, which gives nothing where one of them is missing.
                    calls = await self._handle.broadcast("status")._fetch_replica_results_async()
                waiting = [asyncio.ensure_future(call.get_async()) for call in calls]
            for answer in asyncio.as_completed(
                waiting, timeout=until - asyncio.get_running_loop().time()
            ):
                try:
                    status = await answer
                except TimeoutError:
                    return
                except asyncio.CancelledError:
                    if _hung_up():
                        raise
                    continue
                except (RayError, RayServeException, RpcError, OSError, RuntimeError):
                    continue
                if isinstance(status, ReplicaStatus):
                    self._breaker.record_success()
                    yield status
        finally:
            for one in waiting:
                one.cancel()

    def _retry(self) -> TimedRetry:
        """The retries that a call to the pool may make.

        Raises:
            WorkerUnavailable: the breaker is open, and this call is not the one that tries.
        """
        self._breaker.before_call()
        timeout_s = PROBE_TIMEOUT_S if self._breaker.is_open else self._retry_timeout_s
        return TimedRetry(timeout_s)

    async def _answer(self, operation: Operation, call: Call, *args: Any) -> Any:
        """The answer to a call that has one, from whichever replica gives it."""
        retry = self._retry()
        while True:
            returning = self._recent.record(call.request)
            try:
                for sent in self._prefixes.forms(call):
                    answer = await self._ask(
                        retry, call.affinity, operation, call.request, returning, sent, *args
                    )
                    if not isinstance(answer, PrefixMissing):
                        self._prefixes.delivered(call)
                        return answer
            except _ReplicaLost as lost:
                await self._back_off(retry, lost)

    async def _back_off(self, retry: TimedRetry, lost: _ReplicaLost) -> None:
        """Pause before a call that was lost is made again.

        Raises:
            WorkerUnavailable: the time is up, or too many replicas died at this call, which may be
                the cause.
        """
        self._on_lost()
        if lost.died is not None:
            retry.ended.add(lost.died)
        if len(retry.ended) >= MAX_ENDED:
            raise WorkerUnavailable(f"{len(retry.ended)} replicas died at this call") from None
        try:
            await retry.backoff(lost)
        except WorkerUnavailable:
            # Replicas fail one by one (calls avoid those that are silent): what shuts the pool to
            # all is that none of them answers.
            answering = frozenset[str]()
            with suppress(Exception):  # the replicas could not be asked
                answering = (await self._look_around()).answering
            if not answering:
                self._breaker.record_failure()
            raise

    async def _ask(self, retry: TimedRetry, affinity: str, *args: Any) -> Any:
        """What one replica answers.

        Raises: as `_lost` does.
        """
        response = self._send(retry, affinity, "answer_call", False, args)
        silence = _Silence(retry, self._look_around, lambda: taker(response))
        answered = False
        try:
            with _lost(str(args[0]), silence):
                silence.begins()
                async with asyncio.timeout(None) as silence.scope:
                    item = await response
                answered = True
                return self._received(item)
        finally:
            silence.stop()
            if not answered:
                response.cancel()

    async def _attempt(
        self, retry: TimedRetry, call: Call, *args: Any
    ) -> AsyncGenerator[Delta | Generation, None]:
        """A generation's stream from one replica: it is sent what it lacks of the transcript, or
        all where it lacks more.

        Raises: as `_lost` does.
        """
        returning = self._recent.record(call.request)
        for sent in self._prefixes.forms(call):
            exchange = self._exchange(retry, call.affinity, call.request, returning, sent, *args)
            async with aclosing(exchange) as items:
                async for item in items:
                    if isinstance(item, PrefixMissing):
                        break
                    self._prefixes.delivered(call)
                    yield item
                else:
                    return

    async def _exchange(
        self, retry: TimedRetry, affinity: str, *args: Any
    ) -> AsyncGenerator[Any, None]:
        """What one replica streams back, without its heartbeats.

        Raises: as `_lost` does.
        """
        response = self._send(retry, affinity, "stream_call", True, args)
        silence = _Silence(retry, self._look_around)
        try:
            with _lost("generate", silence):
                while True:
                    silence.begins()
                    async with asyncio.timeout(None) as silence.scope:
                        item = await anext(response, response)
                    silence.ends()
                    if item is response:
                        raise _ReplicaLost("the stream ended without an answer")
                    item = self._received(item)
                    if item is not None:
                        yield item
        finally:
            silence.stop()
            response.cancel()

    def _send(
        self, retry: TimedRetry, affinity: str, method: str, stream: bool, args: tuple[Any, ...]
    ) -> Any:
        handle = self._handle.options(
            method_name=method,
            stream=stream,
            # Such calls share a replica; a retry goes to another one, if there is one.
            session_id=f"{affinity}/{retry.retries}",
            _by_reference=False,
            request_serialization="pickle",
            response_serialization="pickle",
        )
        # Outside of the request's context: Serve would give all calls of a request its id, and of
        # two that wait under one id in the router only one is ever sent.
        return Context().run(handle.remote, *args)

    def _received(self, item: Any) -> Any:
        """What a replica sent; raises it where it is an error."""
        if isinstance(item, WorkerUnavailable):
            raise _ReplicaLost(str(item))
        self._breaker.record_success()
        if isinstance(item, BatonError):
            raise item
        return item

    async def _look_around(self) -> _Pool:
        """Which replicas of the pool answer. Calls avoid those that do not where others do, until
        they answer again."""
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
        return await asyncio.shield(self._looking)

    async def _look(self) -> _Pool:
        answering = frozenset(one.replica for one in await self.statuses(PROBE_TIMEOUT_S))
        self._avoids = avoid_others(self._handle.deployment_name, answering)
        if self._avoids and self._watching is None:
            self._watching = asyncio.create_task(self._watch())
        return _Pool(answering, self._avoids)

    async def _watch(self) -> None:
        """Look again from time to time, until no replica is silent."""
        try:
            while self._avoids:
                await asyncio.sleep(PROBE_TIMEOUT_S)
                try:
                    await self._look_around()
                except Exception as error:  # who ends here leaves well replicas avoided for good
                    log.error("the replicas could not be asked: %s", describe(error))
        finally:
            self._watching = None


class _Pool(NamedTuple):
    answering: frozenset[str]
    """The tags of the replicas that answer."""
    others: bool
    """Whether there are replicas that do not."""


class _ReplicaLost(Exception):
    """A call that was lost with its replica; never leaves this module.

    `died`: the replica that died while it had the call.
    """

    def __init__(self, reason: str, died: str | None = None) -> None:
        super().__init__(reason)
        self.died = died


@contextmanager
def _lost(operation: str, silence: _Silence) -> Iterator[None]:
    """What may go wrong between a caller and a replica, as one of two things.

    Raises:
        _ReplicaLost: worth another try. BatonErrors are the answer.
    """
    try:
        yield
    except TimeoutError:
        raise _ReplicaLost(silence.reason) from None
    except BackPressureError:
        raise Overloaded("too many calls are waiting for a replica") from None
    except RayTaskError as error:  # the replica's code failed, and would again
        cause = type(error.cause).__name__
        log.error("%s on a replica failed: %s", operation, cause)
        raise WorkerError(f"{operation} failed on the replica: {cause}") from None
    except RayActorError as error:
        died = error.actor_id if silence.was_taken else None
        raise _ReplicaLost(f"a replica was lost: {type(error).__name__}", died) from None
    except (RayError, RayServeException, RpcError, OSError, RuntimeError) as error:
        raise _ReplicaLost(f"a replica was lost: {type(error).__name__}") from None
    except asyncio.CancelledError:
        if _hung_up():
            raise
        raise _ReplicaLost("a replica went away") from None


def _hung_up() -> bool:
    """Whether a cancellation is our caller's; otherwise the replica's own server stopped."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class _Silence:
    """How long a call has been silent; ends the wait for its next item when too long.

    Ticks are counted instead of time: this process may itself have been stopped, which is
    no silence. Before a replica takes it, a call may be waiting for a place, or for a
    replica that loads; where `look` finds that no replica is silent, or none answers, it waits on,
    until its time is up. A stream that was taken has heartbeats, which tell. A call with one answer
    has none: as long as the replica that took it answers others, it is being worked on.

    Args:
        look: which replicas answer.
        taken_by: the tag of the replica that took a call without heartbeats.
    """

    def __init__(
        self,
        retry: TimedRetry,
        look: Callable[[], Awaitable[_Pool]],
        taken_by: Callable[[], str | None] = lambda: None,
    ) -> None:
        self.scope: asyncio.Timeout | None = None
        """The timeout of the wait for the next item."""
        self.reason = ""
        self._retry, self._look, self._taken_by = retry, look, taken_by
        self._accepted = self._waits = False
        self._silence_s, self._items = 0.0, 0
        self._looking: asyncio.Task[None] | None = None
        self._tick_s = min(TICK_S, SILENCE_TIMEOUT_S / 4)
        self._timer = asyncio.get_running_loop().call_later(self._tick_s, self._tick)
        self._began = perf_counter()

    @property
    def was_taken(self) -> bool:
        """Whether the replica had the call in hand, as far as that can be known from here."""
        elapsed_s = perf_counter() - self._began
        return self._accepted or (self._taken_by() is not None and elapsed_s >= AT_ONCE_S)

    def begins(self) -> None:
        self._waits, self._silence_s = True, 0.0

    def ends(self) -> None:
        """An item came."""
        self._waits, self._accepted = False, True
        self._items += 1

    def stop(self) -> None:
        self._timer.cancel()
        self._waits = False

    def _tick(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._tick_s, self._tick)
        if not self._waits:
            return
        self._silence_s += self._tick_s
        out_of_time = False
        if not self._accepted:
            self._retry.waited(self._tick_s)
            out_of_time = not self._retry.remaining_s
            if out_of_time and self._taken_by() is None:
                self._give_up("no replica took the call in time")
                return
        if self._looking is None and (out_of_time or self._silence_s >= SILENCE_TIMEOUT_S):
            self._looking = asyncio.create_task(self._find_out())

    async def _find_out(self) -> None:
        """Give a silent replica up, and let others know of it."""
        try:
            if self._accepted:
                self._give_up(f"a replica was silent for {SILENCE_TIMEOUT_S:g} s")
                await self._look()
            else:
                before = self._items, self._taken_by()
                pool = await self._look()
                if before == (self._items, self._taken_by()):
                    self._judge(pool, before[1])
        finally:
            self._silence_s, self._looking = 0.0, None

    def _judge(self, pool: _Pool, replica: str | None) -> None:
        """Wait on for a call that brought nothing yet, or not; `replica` took it."""
        if replica is None:
            if pool.answering and pool.others:
                self._give_up(
                    f"no replica took the call for {SILENCE_TIMEOUT_S:g} s, and some are silent"
                )
        elif replica in pool.answering:
            self._retry.reset()
        elif pool.answering:
            self._give_up("the replica that took the call is silent")
        elif not self._retry.remaining_s:
            self._give_up("no replica answered in time")

    def _give_up(self, reason: str) -> None:
        if self._waits and self.scope is not None:
            self._waits, self.reason = False, reason
            self.scope.reschedule(asyncio.get_running_loop().time())
