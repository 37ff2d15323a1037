"""When to call a server again after a failure, and when to stop calling it for a while."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from orchestrator.errors import Overloaded, WorkerUnavailable

log = logging.getLogger(__name__)

BACKOFF_S = 0.1  # before the first retry; twice as long before each further one
MAX_BACKOFF_S = 10.0  # a server that asks for a longer pause is not called again
POOL_BACKOFF_S, POOL_MAX_BACKOFF_S = 0.05, 1.0  # shorter in a pool: another replica may answer
FULL_S = 0.2  # longest pause if a pool is full: a place is taken by who asks first


class CircuitBreaker:
    """Stops calls to a server after `failure_threshold` failures in a row; then one call every
    `reset_timeout_s` seconds shows whether the server is back."""

    def __init__(
        self,
        name: str,
        *,
        failure_threshold: int = 5,
        reset_timeout_s: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name, self._clock = name, clock
        self._failure_threshold, self._reset_timeout_s = failure_threshold, reset_timeout_s
        self._failures, self._next_try = 0, 0.0

    @property
    def is_open(self) -> bool:
        return self._failures >= self._failure_threshold

    def before_call(self) -> None:
        """Let a call through, or raise WorkerUnavailable."""
        if self.is_open:
            now = self._clock()
            if now < self._next_try:
                raise WorkerUnavailable(f"{self._name} failed {self._failures} times in a row")
            self._next_try = now + self._reset_timeout_s

    def record_success(self) -> None:
        self._failures = 0

    def record_failure(self) -> None:
        self._failures += 1
        self._next_try = self._clock() + self._reset_timeout_s


class CountedRetry:
    """Up to `max_retries` retries of one call without progress; none while `breaker` is open."""

    def __init__(self, max_retries: int, breaker: CircuitBreaker) -> None:
        self._max_retries, self._breaker, self._retries = max_retries, breaker, 0

    def reset(self) -> None:
        """Count from zero again, after progress."""
        self._retries = 0

    async def backoff(self, error: WorkerUnavailable | Overloaded) -> None:
        """Pause before the next try; raise `error` if no try is left."""
        pause = min(BACKOFF_S * 2**self._retries, MAX_BACKOFF_S)
        if isinstance(error, Overloaded):
            pause = max(pause, error.retry_after_s or 0.0)
        self._retries += 1
        if self._retries > self._max_retries or self._breaker.is_open or pause > MAX_BACKOFF_S:
            raise error
        log.warning("trying again in %.1f s: %s", pause, error)
        await asyncio.sleep(pause)


class TimedRetry:
    """Retries of one call, until it has waited `timeout_s` seconds without progress.

    Only seconds passed to `waited` count, so the time of a suspended process does not.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self.ended = set[str]()  # the replicas that died while they had the call
        self.retries, self._waited_s = 0, 0.0

    def reset(self) -> None:
        """Restart the timeout, after progress."""
        self._waited_s = 0.0

    def waited(self, seconds: float) -> None:
        """Count seconds without an item."""
        self._waited_s += seconds

    @property
    def remaining_s(self) -> float:
        return max(0.0, self._timeout_s - self._waited_s)

    async def backoff(self, error: WorkerUnavailable | Overloaded) -> None:
        """Pause before the next try; raise `error` if the time is up."""
        longest = FULL_S if isinstance(error, Overloaded) else POOL_MAX_BACKOFF_S
        doublings = min(self.retries, 5)  # five reach the longest pause; 1,024 overflow a float
        pause = min(POOL_BACKOFF_S * 2**doublings, longest)
        self.retries += 1
        if self.remaining_s <= pause:
            raise error
        log.warning("trying again: %s", error)
        self.waited(pause)
        await asyncio.sleep(pause)
