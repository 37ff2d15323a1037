"""The caller's side: the `Worker` port over the Serve handle of a pool of replicas."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from contextvars import Context
from typing import Any

from grpc import RpcError
from ray.exceptions import RayError, RayTaskError
from ray.serve.exceptions import BackPressureError, RayServeException

from orchestrator.errors import BatonError, Overloaded, WorkerError, WorkerUnavailable
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
from workers.replica.server import Operation, RecentRequests, ReplicaStatus
from workers.retry import CircuitBreaker, TimedRetry
from workers.streams import merge_deltas

log = logging.getLogger(__name__)

SILENCE_TIMEOUT_S = 10.0  # a call without an item for so long, heartbeats included, is lost
PROBE_TIMEOUT_S = 2.0  # for a call that the open breaker lets through


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
        retry_timeout_s: float = 60.0,
        on_lost: Callable[[], object] = lambda: None,
    ) -> None:
        self._handle, self._retry_timeout_s, self._on_lost = handle, retry_timeout_s, on_lost
        self._recent, self._prefixes = RecentRequests(), PrefixSender()
        self._breaker = CircuitBreaker("the pool", failure_threshold=1)

    async def generate(
        self, call: Call, criteria: StopCriteria, sampling: Sampling, *, stream: bool = True
    ) -> AsyncGenerator[Delta | Generation, None]:
        received, retry = list[Delta](), self._retry()
        while True:
            so_far = merge_deltas(received)
            attempt = self._attempt(retry, "generate", call, so_far, criteria, sampling, stream)
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
                self._on_lost()
                await retry.backoff(lost)

    async def classify(self, call: Call, query: LabelQuery) -> Classification:
        answer: Classification = await self._answer("classify", call, query)
        return answer

    async def verify(self, call: Call, segment: Segment, sampling: Sampling) -> Verification:
        answer: Verification = await self._answer("verify", call, bare(segment), sampling)
        return answer

    async def statuses(self, timeout_s: float = 1.0) -> list[ReplicaStatus]:
        """The status of each replica of the pool that answers in time."""
        answers = await self._handle.broadcast("status").results_async(
            timeout_s=timeout_s, return_exceptions=True
        )
        return [answer for answer in answers if isinstance(answer, ReplicaStatus)]

    async def status(self, timeout_s: float = 1.0) -> ReplicaStatus:
        """The status of one replica of the pool.

        Raises:
            WorkerUnavailable: none answers within `timeout_s` seconds.
        """
        attempt = self._exchange(TimedRetry(timeout_s, self._breaker), "", False, "status")
        try:
            async with aclosing(attempt) as items:
                async for item in items:
                    if isinstance(item, ReplicaStatus):
                        return item
        except _ReplicaLost as lost:
            raise WorkerUnavailable(str(lost)) from None
        raise WorkerUnavailable("the replica's stream ended without a status")

    def _retry(self) -> TimedRetry:
        """The retries that a call to the pool may make.

        Raises:
            WorkerUnavailable: the breaker is open, and this call is not the one that tries.
        """
        self._breaker.before_call()
        timeout_s = PROBE_TIMEOUT_S if self._breaker.is_open else self._retry_timeout_s
        return TimedRetry(timeout_s, self._breaker)

    async def _answer(self, operation: Operation, call: Call, *args: Any) -> Any:
        retry = self._retry()
        while True:
            try:
                async with aclosing(self._attempt(retry, operation, call, *args)) as items:
                    return await anext(items)
            except _ReplicaLost as lost:
                self._on_lost()
                await retry.backoff(lost)

    async def _attempt(
        self, retry: TimedRetry, operation: Operation, call: Call, *args: Any
    ) -> AsyncGenerator[Any, None]:
        """One call to one replica: what it lacks of the transcript, or all where it lacks more.

        Raises: as `_exchange` does.
        """
        returning = self._recent.record(call.request)
        for sent in self._prefixes.forms(call):
            exchange = self._exchange(retry, call.request, returning, operation, sent, *args)
            async with aclosing(exchange) as items:
                async for item in items:
                    if isinstance(item, PrefixMissing):
                        break
                    self._prefixes.delivered(call)
                    yield item
                else:
                    return

    async def _exchange(
        self, retry: TimedRetry, request: str, returning: bool, operation: Operation, *args: Any
    ) -> AsyncGenerator[Any, None]:
        """What one replica sends back, without its heartbeats.

        Raises:
            _ReplicaLost: worth another try. Other BatonErrors are the answer.
        """
        handle = self._handle.options(
            method_name="stream_call",
            stream=True,
            # Calls of a request share a replica; a retry goes to another one, if there is one.
            session_id=f"{request}/{retry.retries}" if retry.retries else request,
            _by_reference=False,
            request_serialization="pickle",
            response_serialization="pickle",
        )
        # Outside of the request's context: Serve would give all calls of a request its id, and of
        # two that wait under one id in the router only one is ever sent.
        response = Context().run(handle.remote, operation, request, returning, *args)
        timeout = retry.remaining_s  # the router waits for a replica, the replica may be loading
        try:
            while True:
                async with asyncio.timeout(timeout):
                    item = await anext(response, response)
                timeout = SILENCE_TIMEOUT_S
                if item is response:
                    raise _ReplicaLost("the stream ended without an answer")
                if isinstance(item, WorkerUnavailable):
                    raise _ReplicaLost(str(item))
                self._breaker.record_success()
                if isinstance(item, BatonError):
                    raise item
                if item is not None:
                    yield item
        except BackPressureError:
            raise Overloaded("too many calls are waiting for a replica") from None
        except RayTaskError as error:  # the replica's code failed, and would again
            cause = type(error.cause).__name__
            log.error("%s on a replica failed: %s", operation, cause)
            raise WorkerError(f"{operation} failed on the replica: {cause}") from None
        except (RayError, RayServeException, RpcError, OSError, RuntimeError) as error:
            raise _ReplicaLost(f"a replica was lost: {type(error).__name__}") from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise  # our caller hung up; otherwise the replica's own server stopped
            raise _ReplicaLost("a replica went away") from None
        finally:
            response.cancel()


class _ReplicaLost(Exception):
    """A call that was lost with its replica; never leaves this module."""
