"""What requests get that say nothing of their sampling: the file's, over the large model's own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from deploy.service.config import SamplingSpec
from orchestrator.errors import WorkerUnavailable
from orchestrator.types import GREEDY, Sampling

AGAIN_S = 2.0  # for which it counts that the pool did not tell


class DefaultSampling:
    """The deployment's sampling, for which the large model's pool is asked once, if at all.

    Requests at the same time share one question, and a failure is reused a while: a pool that is
    down keeps no request waiting for longer than one question.

    Args:
        spec: what the deployment file says.
        ask: gives the large model's own, or raises `WorkerUnavailable`.
        clock: seconds of a clock that only goes forward.
    """

    def __init__(
        self,
        spec: SamplingSpec,
        ask: Callable[[], Awaitable[Sampling]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._spec, self._ask, self._clock = spec, ask, clock
        self._own: Sampling | None = GREEDY if spec.is_complete else None
        self._lock, self._failed_until = asyncio.Lock(), 0.0

    async def get(self) -> Sampling:
        """Raises:
        WorkerUnavailable: the file leaves something open, and the pool has not told its own yet.
        """
        if self._own is None:
            async with self._lock:
                if self._own is None:
                    self._own = await self._asked()
        return self._spec.over(self._own)

    async def _asked(self) -> Sampling:
        if self._clock() < self._failed_until:
            raise WorkerUnavailable("the large model's pool has not told its sampling yet")
        try:
            return await self._ask()
        except WorkerUnavailable:
            self._failed_until = self._clock() + AGAIN_S
            raise
