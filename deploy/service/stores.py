"""The store that a deployment file names: Redis, or a small deployment with one in its memory."""
# No `from __future__ import annotations`: Ray Serve reads annotations as classes.

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, cast

from ray import serve
from ray.serve import Application
from ray.util import get_node_ip_address

from deploy.service.store_spec import StoreSpec
from orchestrator.errors import BatonError, StoreUnavailable, WorkerError
from orchestrator.state.memory import MemoryStore
from orchestrator.state.store import TIMEOUT_S, Store
from workers.replica.channel import Listener
from workers.replica.pool import Location, Pool


class StoreReplica:
    """The one replica, deployed as `Store`. It returns errors, and calls reach it by its address,
    as in `workers/replica`."""

    def __init__(self) -> None:
        self._store = MemoryStore()
        self._listener = Listener({"ask": self._ask})

    async def location(self) -> Location:
        return Location("Store", await self._listener.address(get_node_ip_address()))

    async def _ask(self, verb: str, arguments: Sequence[Any], more: Mapping[str, Any]) -> Any:
        try:
            return await getattr(self._store, verb)(*arguments, **more)
        except BatonError as error:
            return error


class ServedStore:
    """A `Store` that passes every call to `StoreReplica`, which Serve's `handle` finds."""

    def __init__(self, handle: Any) -> None:
        self._pool = Pool(handle, "location", Location)

    def __getattr__(self, verb: str) -> Any:
        if verb.startswith("_") or not hasattr(Store, verb):
            raise AttributeError(verb)
        return partial(self._ask, verb)

    async def _ask(self, verb: str, *arguments: Any, **more: Any) -> Any:
        try:
            async with asyncio.timeout(TIMEOUT_S):
                found = await self._pool.found()
                if not found:
                    raise StoreUnavailable("the Store does not answer")
                (connection, *_) = found.values()  # two, if it has just been replaced
                answer = await connection.answer("ask", verb, arguments, more)
        except TimeoutError:
            raise StoreUnavailable(f"the Store did not answer within {TIMEOUT_S:g} s") from None
        except WorkerError as error:
            raise StoreUnavailable(f"the Store is gone: {error}") from None
        if isinstance(answer, BatonError):
            raise answer
        return answer

    async def aclose(self) -> None:
        for connection in list(self._pool.connections.values()):
            connection.close()


def store_deployment() -> Application:
    """Return the embedded store: one replica, which outlives updates of the other deployments."""
    deployment = serve.deployment(
        StoreReplica,
        name="Store",
        num_replicas=1,
        graceful_shutdown_timeout_s=1,
        health_check_period_s=5,
        health_check_timeout_s=30,
        ray_actor_options={"num_cpus": 0},
    )
    return deployment.bind()


def open_store(spec: StoreSpec, handle: Any) -> Store:
    """Return an orchestrator replica's store; `handle` is that of `Store`, if the file uses it."""
    if spec.url == "memory":
        return cast("Store", ServedStore(handle))
    return spec.redis(spec.password())
