"""The store that a deployment file names: Redis, or a small deployment with one in its memory."""
# No `from __future__ import annotations`: Ray Serve reads annotations as classes.

import asyncio
from collections.abc import Mapping, Sequence
from contextvars import Context
from functools import partial
from typing import Any, cast

from ray import serve
from ray.exceptions import RayError
from ray.serve import Application
from ray.serve.exceptions import RayServeException
from ray.util import get_node_ip_address

from deploy.service.store_spec import StoreSpec
from orchestrator.errors import BatonError, StoreUnavailable
from orchestrator.state.memory import MemoryStore
from orchestrator.state.store import TIMEOUT_S, Store
from workers.replica.broadcast import hung_up
from workers.replica.channel import Address, Connection, Listener, ReplicaLost


class StoreReplica:
    """The one replica, deployed as `Store`. It returns errors, and calls reach it by its address,
    as in `workers/replica`."""

    def __init__(self) -> None:
        self._store = MemoryStore()
        self._listener = Listener({"ask": self._ask})

    async def address(self) -> Address:
        return await self._listener.address(get_node_ip_address())

    async def _ask(self, verb: str, arguments: Sequence[Any], more: Mapping[str, Any]) -> Any:
        try:
            return await getattr(self._store, verb)(*arguments, **more)
        except BatonError as error:
            return error


class ServedStore:
    """A `Store` that passes every call to `StoreReplica`, whose address the handle knows."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self._connection: Connection | None = None
        self._connecting = asyncio.Lock()

    def __getattr__(self, verb: str) -> Any:
        if verb.startswith("_") or not hasattr(Store, verb):
            raise AttributeError(verb)
        return partial(self._ask, verb)

    async def _ask(self, verb: str, *arguments: Any, longer_s: float = 0.0, **more: Any) -> Any:
        try:
            async with asyncio.timeout(TIMEOUT_S + longer_s):
                connection = await self._connected()
                answer = await connection.answer("ask", verb, arguments, more)
        except TimeoutError:
            raise StoreUnavailable(f"the Store did not answer within {TIMEOUT_S:g} s") from None
        except (ReplicaLost, RayError, RayServeException, OSError, RuntimeError) as error:
            raise StoreUnavailable(f"the Store is gone: {type(error).__name__}") from None
        except asyncio.CancelledError:
            if hung_up():
                raise
            raise StoreUnavailable("the Store went away") from None  # it stopped, not the caller
        if isinstance(answer, BatonError):
            raise answer
        return answer

    async def _connected(self) -> Connection:
        async with self._connecting:
            if self._connection is None:
                # Outside the request's context: of two calls that wait under one request's id,
                # Serve sends only one.
                address = await Context().run(self._handle.address.remote)
                self._connection = await Connection.open("Store", address, self._left)
        return self._connection

    def _left(self, _: Connection) -> None:
        self._connection = None

    async def wait_for_change(self, known: str, timeout_s: float) -> None:
        await self._ask("wait_for_change", known, timeout_s, longer_s=timeout_s)

    async def aclose(self) -> None:
        if self._connection is not None:
            self._connection.close()


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
