"""The caller's side: the `Worker` port over a pool of replicas."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from hashlib import blake2b
from typing import Any

from orchestrator.errors import BatonError, Overloaded, WorkerUnavailable
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
from workers.replica.channel import Connection, ReplicaLost
from workers.replica.pool import LOOK_TIMEOUT_S, Connect, Pool
from workers.replica.prefixes import PrefixSender, Sent, bare
from workers.replica.server import EngineDied, Operation, RecentRequests, ReplicaStatus
from workers.retry import CircuitBreaker, TimedRetry
from workers.streams import merge_deltas

log = logging.getLogger(__name__)

PROBE_TIMEOUT_S = 2.0  # for a call that the open breaker lets through
MAX_ENDED = 3  # replicas that may die during one call, or their engines


class ReplicaWorker:
    """The `Worker` port over a pool of replicas.

    Args:
        handle: Serve's handle of the deployment.
        retry_timeout_s: how long a call is retried while no replica answers.
        on_lost: called for every call that was lost with its replica.
        connect: see `Connection.open`.
    """

    def __init__(
        self,
        handle: Any,
        *,
        retry_timeout_s: float = 120.0,
        on_lost: Callable[[], object] = lambda: None,
        connect: Connect = Connection.open,
    ) -> None:
        self._retry_timeout_s, self._on_lost = retry_timeout_s, on_lost
        self._recent, self._prefixes = RecentRequests(), PrefixSender()
        self._breaker = CircuitBreaker("the pool", failure_threshold=1)
        self._pool = Pool(handle, "status", ReplicaStatus, connect)

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
            attempt = self._attempt(retry, call, "stream", so_far, criteria, sampling)
            try:
                async with aclosing(attempt) as items:
                    async for item in items:
                        if isinstance(item, Delta):
                            received.append(item)
                            retry.reset()
                        yield item
                        if isinstance(item, Generation):
                            return
                raise ReplicaLost("a replica ended a stream early")
            except (WorkerUnavailable, Overloaded) as error:
                await self._back_off(retry, error)

    async def classify(self, call: Call, query: LabelQuery) -> Classification:
        answer: Classification = await self._answer("classify", call, query)
        return answer

    async def verify(
        self, call: Call, segment: Segment, sampling: Sampling, top: int = 0
    ) -> Verification:
        answer: Verification = await self._answer("verify", call, bare(segment), sampling, top)
        return answer

    async def statuses(self, timeout_s: float = 1.0) -> list[ReplicaStatus]:
        """Return the status of each replica that answers in time."""
        async with aclosing(self._answers(timeout_s)) as answers:
            return [answer async for answer in answers]

    async def status(self, timeout_s: float = 1.0) -> ReplicaStatus:
        """Return the status of the replica that answers first.

        Raises:
            WorkerUnavailable: none answers within `timeout_s` seconds.
        """
        async with aclosing(self._answers(timeout_s)) as answers:
            async for answer in answers:
                return answer
        raise WorkerUnavailable(f"no replica answered within {timeout_s:g} s")

    async def _answers(self, timeout_s: float) -> AsyncGenerator[ReplicaStatus, None]:
        """Yield the statuses as they come."""
        async with aclosing(self._pool.ask(timeout_s)) as answers:
            async for status in answers:
                self._breaker.record_success()
                yield status

    async def _connection(self, affinity: str, retry: TimedRetry) -> Connection:
        """Return the connection to the replica that a call goes to.

        Calls of one affinity go to one replica, by rendezvous hashing, and each retry to the next.

        Raises:
            WorkerUnavailable: no replica answers.
        """
        began = asyncio.get_running_loop().time()
        found = await self._pool.found()
        if not found:
            retry.waited(min(asyncio.get_running_loop().time() - began, LOOK_TIMEOUT_S))
            raise WorkerUnavailable("no replica answers")
        ranked = sorted(found, key=lambda replica: _rank(affinity, replica))
        return found[ranked[retry.retries % len(ranked)]]

    def _retry(self) -> TimedRetry:
        """Return the retries of a call.

        Raises:
            WorkerUnavailable: the breaker is open, and does not let this call through.
        """
        self._breaker.before_call()
        timeout_s = PROBE_TIMEOUT_S if self._breaker.is_open else self._retry_timeout_s
        return TimedRetry(timeout_s)

    async def _answer(self, operation: Operation, call: Call, *args: Any) -> Any:
        """Return the answer to a call with one answer, from any replica."""
        retry = self._retry()
        while True:
            attempt = self._attempt(retry, call, "answer", operation, *args)
            try:
                async with aclosing(attempt) as items:
                    async for item in items:
                        return item
                raise ReplicaLost("a replica gave no answer")
            except (WorkerUnavailable, Overloaded) as error:
                await self._back_off(retry, error)

    async def _back_off(self, retry: TimedRetry, error: WorkerUnavailable | Overloaded) -> None:
        """Pause before the retry of a call that was lost, or that a full replica refused.

        Raises:
            Overloaded: the time is up, and the replicas are full.
            WorkerUnavailable: the time is up, or `MAX_ENDED` replicas died during this call, which
                may be the cause.
        """
        if isinstance(error, ReplicaLost):
            self._on_lost()
            if error.died is not None:
                retry.ended.add(error.died)
            if len(retry.ended) >= MAX_ENDED:
                raise WorkerUnavailable(f"{len(retry.ended)} replicas died at this call") from None
        try:
            await retry.backoff(error)
        except WorkerUnavailable:
            # Only if no replica answers is the pool closed to other calls.
            await asyncio.wait([self._pool.look()])
            if not self._pool.connections:
                self._breaker.record_failure()
            raise

    async def _attempt(
        self, retry: TimedRetry, call: Call, method: str, *args: Any
    ) -> AsyncGenerator[Any, None]:
        """Yield what one replica replies to a call, or raise the error that it replies."""
        returning = self._recent.record(call.request)
        connection = await self._connection(call.affinity, retry)

        def exchange(sent: Sent) -> AsyncGenerator[Any, None]:
            return connection.call(method, call.request, returning, sent, *args)

        async with aclosing(self._prefixes.send(call, exchange)) as items:
            async for item in items:
                if isinstance(item, WorkerUnavailable):
                    died = connection.replica if isinstance(item, EngineDied) else None
                    raise ReplicaLost(str(item), died)
                self._breaker.record_success()
                if isinstance(item, BatonError):
                    raise item
                yield item


def _rank(affinity: str, replica: str) -> bytes:
    return blake2b(f"{affinity}/{replica}".encode(), digest_size=8).digest()
