"""The caller's side: the `Worker` port over the Serve handle of a pool of replicas."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from contextvars import Context
from typing import Any

from orchestrator.errors import BatonError, WorkerUnavailable, describe
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
from workers.replica.broadcast import broadcast
from workers.replica.prefixes import PrefixSender, Sent, bare
from workers.replica.routers import avoid_others, taker
from workers.replica.server import Operation, RecentRequests, ReplicaStatus
from workers.replica.silence import KnownReplicas, ReplicaLost, Silence, lost
from workers.retry import CircuitBreaker, TimedRetry
from workers.streams import merge_deltas

log = logging.getLogger(__name__)

PROBE_TIMEOUT_S = 2.0  # for a call that the open breaker lets through
MAX_ENDED = 3  # replicas that may die during one call


class ReplicaWorker:
    """The `Worker` port over a pool of replicas.

    Args:
        handle: Serve's handle of the deployment.
        retry_timeout_s: how long a call is retried while no replica answers.
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
        self._looking: asyncio.Task[KnownReplicas] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._avoids = False  # whether calls avoid some silent replicas

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
            attempt = self._attempt(
                retry, call, "generate", "stream_call", so_far, criteria, sampling
            )
            try:
                async with aclosing(attempt) as items:
                    async for item in items:
                        if isinstance(item, Delta):
                            received.append(item)
                            retry.reset()
                        yield item
                        if isinstance(item, Generation):
                            return
            except ReplicaLost as error:
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
        asked = broadcast(self._handle, "status", timeout_s=timeout_s)
        async with aclosing(asked) as answers:
            async for status in answers:
                if isinstance(status, ReplicaStatus):
                    self._breaker.record_success()
                    yield status

    def _retry(self) -> TimedRetry:
        """Return the retries of a call.

        Raises:
            WorkerUnavailable: the breaker is open, and does not let this call through.
        """
        self._breaker.before_call()
        timeout_s = PROBE_TIMEOUT_S if self._breaker.is_open else self._retry_timeout_s
        return TimedRetry(timeout_s)

    async def _answer(self, operation: Operation, call: Call, *args: Any) -> Any:
        """Return the answer to a unary call, from any replica."""
        retry = self._retry()
        while True:
            attempt = self._attempt(retry, call, operation, "answer_call", operation, *args)
            try:
                async with aclosing(attempt) as items:
                    return await anext(items)
            except ReplicaLost as error:
                await self._back_off(retry, error)

    async def _back_off(self, retry: TimedRetry, error: ReplicaLost) -> None:
        """Pause before the retry of a call that was lost.

        Raises:
            WorkerUnavailable: the time is up, or `MAX_ENDED` replicas died during this call, which
                may be the cause.
        """
        self._on_lost()
        if error.died is not None:
            retry.ended.add(error.died)
        if len(retry.ended) >= MAX_ENDED:
            raise WorkerUnavailable(f"{len(retry.ended)} replicas died at this call") from None
        try:
            await retry.backoff(error)
        except WorkerUnavailable:
            # Only if no replica answers is the pool closed to other calls, which avoid silent ones.
            answering = frozenset[str]()
            with suppress(Exception):  # asking the replicas may fail
                answering = (await self._look_around()).answering
            if not answering:
                self._breaker.record_failure()
            raise

    def _attempt(
        self, retry: TimedRetry, call: Call, operation: Operation, method: str, *args: Any
    ) -> AsyncGenerator[Any, None]:
        """Yield what one replica replies to a call; raise as `lost` does."""
        returning = self._recent.record(call.request)

        def exchange(sent: Sent) -> AsyncGenerator[Any, None]:
            sends = call.request, returning, sent, *args
            return self._exchange(retry, call.affinity, operation, method, sends)

        return self._prefixes.send(call, exchange)

    async def _exchange(
        self, retry: TimedRetry, affinity: str, operation: Operation, method: str, args: Any
    ) -> AsyncGenerator[Any, None]:
        """Yield what one replica replies, without its heartbeats."""
        streams = method == "stream_call"
        handle = self._handle.options(
            method_name=method,
            stream=streams,
            # Calls with one affinity share a replica; a retry goes to another, if there is one.
            session_id=f"{affinity}/{retry.retries}",
            _by_reference=False,
            request_serialization="pickle",
            response_serialization="pickle",
        )
        # In an empty context: in the request's, Serve would give all its calls one id, and of two
        # calls that wait in the router under one id only one is ever sent.
        response = Context().run(handle.remote, *args)
        silence = Silence(retry, self._look_around, lambda: None if streams else taker(response))
        answered = False
        try:
            with lost(operation, silence):
                while not answered:
                    silence.begins()
                    async with asyncio.timeout(None) as silence.scope:
                        item = await (anext(response, response) if streams else response)
                    silence.ends()
                    answered = not streams
                    if item is response:
                        raise ReplicaLost("the stream ended without an answer")
                    if (item := self._received(item)) is not None:
                        yield item
        finally:
            silence.stop()
            if not answered:
                response.cancel()

    def _received(self, item: Any) -> Any:
        """Return what a replica sent, or raise it if it is an error."""
        if isinstance(item, WorkerUnavailable):
            raise ReplicaLost(str(item))
        self._breaker.record_success()
        if isinstance(item, BatonError):
            raise item
        return item

    async def _look_around(self) -> KnownReplicas:
        """Find which replicas answer; if some do, calls avoid the others until they answer."""
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
        return await asyncio.shield(self._looking)

    async def _look(self) -> KnownReplicas:
        answering = frozenset(one.replica for one in await self.statuses(PROBE_TIMEOUT_S))
        self._avoids = avoid_others(self._handle.deployment_name, answering)
        if self._avoids and self._watching is None:
            self._watching = asyncio.create_task(self._watch())
        return KnownReplicas(answering, self._avoids)

    async def _watch(self) -> None:
        """Look again from time to time, until no replica is silent."""
        try:
            while self._avoids:
                await asyncio.sleep(PROBE_TIMEOUT_S)
                try:
                    await self._look_around()
                except Exception as error:  # if this task ended, calls would avoid them for good
                    log.error("the replicas could not be asked: %s", describe(error))
        finally:
            self._watching = None
