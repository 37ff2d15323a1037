"""When to call a server again, and when to leave it alone."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from orchestrator.errors import Overloaded, WorkerUnavailable

log = logging.getLogger(__name__)

BACKOFF_S = 0.1  # before the first retry; twice as long before each further one
PATIENCE_S = 10.0  # a server that wants to be left alone for longer is not waited for


class Breaker:
    """A server that keeps failing is left alone for a while.

    Opens after `limit` failures in a row; then one call every `rest_s` seconds tries again.

    Args:
        name: who is behind it, for messages.
        limit: failures in a row that open it.
        rest_s: seconds between tries while it is open.
        clock: seconds of a clock that only goes forward.
    """

    def __init__(
        self,
        name: str,
        *,
        limit: int = 5,
        rest_s: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name, self._limit, self._rest_s, self._clock = name, limit, rest_s, clock
        self._failures, self._next_try = 0, 0.0

    @property
    def open(self) -> bool:
        return self._failures >= self._limit

    def enter(self) -> None:
        """Before each call.

        Raises:
            WorkerUnavailable: the breaker is open, and another call is the one that tries.
        """
        if not self.open:
            return
        now = self._clock()
        if now < self._next_try:
            raise WorkerUnavailable(f"{self._name} failed {self._failures} times in a row")
        self._next_try = now + self._rest_s

    def succeeded(self) -> None:
        self._failures = 0

    def failed(self) -> None:
        self._failures += 1
        self._next_try = self._clock() + self._rest_s


class Retries:
    """How often one call is tried again, and after what pause.

    Args:
        most: tries after the first, in a row.
        breaker: while it is open there is no other try.
    """

    def __init__(self, most: int, breaker: Breaker) -> None:
        self._most, self._breaker, self._tried = most, breaker, 0

    def progress(self) -> None:
        """Something came of it: count from the start again."""
        self._tried = 0

    async def after(self, error: WorkerUnavailable | Overloaded) -> None:
        """A pause before the next try; raises `error` where there should be none."""
        pause = BACKOFF_S * 2**self._tried
        if isinstance(error, Overloaded):
            pause = max(pause, error.retry_after_s or 0.0)
        self._tried += 1
        if self._tried > self._most or self._breaker.open or pause > PATIENCE_S:
            raise error
        log.warning("trying again in %.1f s: %s", pause, error)
        await asyncio.sleep(pause)
