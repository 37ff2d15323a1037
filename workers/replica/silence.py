"""When a call to a replica counts as lost: by an error of Serve's, or by silence."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import NamedTuple

from grpc import RpcError
from ray.exceptions import RayActorError, RayError, RayTaskError
from ray.serve.exceptions import BackPressureError, RayServeException

from orchestrator.errors import Overloaded, WorkerError
from workers.retry import TimedRetry

log = logging.getLogger(__name__)

SILENCE_TIMEOUT_S = 10.0  # longest time without an item or heartbeat before a call is lost
TICK_S = 0.5  # unit in which silence is counted
AT_ONCE_S = 1.0  # a replica that was dead before the call fails it sooner than this


class KnownReplicas(NamedTuple):
    """The tags of the replicas that answer, and whether there are others."""

    answering: frozenset[str]
    others: bool


class ReplicaLost(Exception):
    """A call was lost; `died` is the replica that died while it had the call, if any did.

    Never leaves this room.
    """

    def __init__(self, reason: str, died: str | None = None) -> None:
        super().__init__(reason)
        self.died = died


@contextmanager
def lost(operation: str, silence: Silence) -> Iterator[None]:
    """Translate errors between a caller and a replica.

    Raises:
        ReplicaLost: the call may be retried.
        BatonError: the call's answer.
    """
    try:
        yield
    except TimeoutError:
        raise ReplicaLost(silence.reason) from None
    except BackPressureError:
        raise Overloaded("too many calls are waiting for a replica") from None
    except RayTaskError as error:  # the replica's code failed, and would again
        cause = type(error.cause).__name__
        log.error("%s on a replica failed: %s", operation, cause)
        raise WorkerError(f"{operation} failed on the replica: {cause}") from None
    except RayActorError as error:
        died = error.actor_id if silence.was_taken else None
        raise ReplicaLost(f"a replica was lost: {type(error).__name__}", died) from None
    except (RayError, RayServeException, RpcError, OSError, RuntimeError) as error:
        raise ReplicaLost(f"a replica was lost: {type(error).__name__}") from None
    except asyncio.CancelledError:
        if hung_up():
            raise
        raise ReplicaLost("a replica went away") from None


def hung_up() -> bool:
    """Whether a cancellation came from our caller; else the replica's server stopped."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class Silence:
    """Counts how long a call has been silent, and ends the wait for its next item if too long.

    It counts ticks, not time, since this process may have been suspended. A call that no replica
    has taken may be waiting for a place or for a replica that loads: unless `look` finds both
    silent and answering replicas, it waits until its time is up. A stream has heartbeats. A unary
    call has none, and waits as long as the replica that took it answers `look`.

    Args:
        look: finds which replicas answer.
        taken_by: returns the tag of the replica that took a call without heartbeats.
    """

    def __init__(
        self,
        retry: TimedRetry,
        look: Callable[[], Awaitable[KnownReplicas]],
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
        """Whether a replica had the call, as far as the caller can know."""
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
        """Give a silent replica up, and have other calls avoid it."""
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

    def _judge(self, pool: KnownReplicas, replica: str | None) -> None:
        """Decide whether to wait longer for a call without an item yet, which `replica` took."""
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
