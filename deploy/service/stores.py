"""The store that a deployment file names: Redis, or a small deployment with one in its memory."""
# No `from __future__ import annotations`: Ray Serve reads annotations as classes.

import asyncio
from collections.abc import Mapping, Sequence
from contextvars import Context
from functools import partial
from typing import Any, Final, cast

from grpc import RpcError
from ray import serve
from ray.exceptions import RayError
from ray.serve import Application
from ray.serve.exceptions import RayServeException

from deploy.service.store_spec import StoreSpec
from orchestrator.errors import BatonError, StoreUnavailable
from orchestrator.state.memory import MemoryStore
from orchestrator.state.store import TIMEOUT_S, Store

WAITING: Final = 1000  # calls at once; each replica has one that waits for a change


class StoreReplica:
    """The one replica, deployed as `Store`. It returns errors: Serve logs each that is raised."""

    def __init__(self) -> None:
        self._store = MemoryStore()

    async def ask(self, verb: str, arguments: Sequence[Any], more: Mapping[str, Any]) -> Any:
        try:
            return await getattr(self._store, verb)(*arguments, **more)
        except BatonError as error:
            return error


class ServedStore:
    """A `Store` that passes every call to the handle of `StoreReplica`."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle.options(
            _by_reference=False, request_serialization="pickle", response_serialization="pickle"
        )

    def __getattr__(self, verb: str) -> Any:
        if verb.startswith("_") or not hasattr(Store, verb):
            raise AttributeError(verb)
        return partial(self._ask, verb)

    async def _ask(self, verb: str, *arguments: Any, longer_s: float = 0.0, **more: Any) -> Any:
        try:
            async with asyncio.timeout(TIMEOUT_S + longer_s):
                # Outside the request's context, as in `workers/replica/client.py`: if two calls
                # wait under one request's id, Serve sends only one of them.
                answer = await Context().run(self._handle.ask.remote, verb, arguments, more)
        except TimeoutError:
            raise StoreUnavailable(f"the Store did not answer within {TIMEOUT_S:g} s") from None
        except (RayError, RayServeException, RpcError, OSError, RuntimeError) as error:
            raise StoreUnavailable(f"the Store is gone: {type(error).__name__}") from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise StoreUnavailable("the Store went away") from None  # it stopped, not the caller
        if isinstance(answer, BatonError):
            raise answer
        return answer

    async def wait_for_change(self, known: str, timeout_s: float) -> None:
        await self._ask("wait_for_change", known, timeout_s, longer_s=timeout_s)

    async def aclose(self) -> None:
        """The handle has nothing to close."""


def store_deployment() -> Application:
    """Return the embedded store: one replica, which outlives updates of the other deployments."""
    deployment = serve.deployment(
        StoreReplica,
        name="Store",
        num_replicas=1,
        max_ongoing_requests=WAITING,
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
