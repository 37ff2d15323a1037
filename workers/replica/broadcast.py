"""A call to every replica of a deployment. A silent replica does not hold up the others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any

from grpc import RpcError
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException

if TYPE_CHECKING:
    from ray.serve.handle import DeploymentHandle

FAILURES = (RayError, RayServeException, RpcError, OSError, RuntimeError)  # of a call to a replica


async def broadcast(
    handle: DeploymentHandle, method: str, *args: Any, timeout_s: float
) -> AsyncGenerator[Any, None]:
    """Yield each replica's answer as it comes, or the exception that came instead.

    A `TimeoutError` comes for every replica that is silent for `timeout_s` seconds. Ray's own
    `results_async` loses all answers if one replica is silent.
    """
    until = asyncio.get_running_loop().time() + timeout_s
    waiting: list[asyncio.Future[Any]] = []
    try:
        try:
            async with asyncio.timeout_at(until):
                calls = await handle.broadcast(method, *args)._fetch_replica_results_async()
        except (TimeoutError, *FAILURES) as error:
            yield error
            return
        waiting = [asyncio.ensure_future(call.get_async()) for call in calls]
        left = until - asyncio.get_running_loop().time()
        for answer in asyncio.as_completed(waiting, timeout=left):
            try:
                yield await answer
            except (TimeoutError, *FAILURES) as error:
                yield error
            except asyncio.CancelledError as error:
                if hung_up():
                    raise
                yield error
    finally:
        for one in waiting:
            one.cancel()


def hung_up() -> bool:
    """Whether a cancellation came from our caller; else the replica's server stopped."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
