"""The store that a deployment file names: Redis, or a small deployment with one in its memory."""
# No `from __future__ import annotations`: Ray Serve reads annotations as classes.

import asyncio
from collections.abc import Mapping, Sequence
from contextvars import Context
from typing import Any, Final

from grpc import RpcError
from ray import serve
from ray.exceptions import RayError
from ray.serve import Application
from ray.serve.exceptions import RayServeException

from deploy.service.store_spec import StoreSpec
from orchestrator.errors import BatonError, StoreUnavailable
from orchestrator.state.memory import MemoryStore
from orchestrator.state.store import TIMEOUT_S, PointerUpdate, Store, StoreState, StreamEntry

WAITING: Final = 1000  # calls at once; those that wait for a change are one per replica


class StoreReplica:
    """The one replica; deployed as `Store`. Errors are returned: Serve logs each that is raised."""

    def __init__(self) -> None:
        self._store = MemoryStore()

    async def ask(self, verb: str, arguments: Sequence[Any], more: Mapping[str, Any]) -> Any:
        try:
            return await getattr(self._store, verb)(*arguments, **more)
        except BatonError as error:
            return error


class ServedStore:
    """A `Store` over the handle of `StoreReplica`."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle.options(
            _by_reference=False, request_serialization="pickle", response_serialization="pickle"
        )

    async def _ask(self, verb: str, *arguments: Any, longer_s: float = 0.0, **more: Any) -> Any:
        try:
            async with asyncio.timeout(TIMEOUT_S + longer_s):
                # Outside of the request's context, as in `workers/replica/client.py`: of two
                # calls that wait under one request's id only one would ever be sent.
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

    async def commit(
        self,
        *,
        create: Mapping[str, bytes] | None = None,
        update: Sequence[PointerUpdate] = (),
        audit: bytes | None,
    ) -> str:
        revision: str = await self._ask("commit", create=create, update=update, audit=audit)
        return revision

    async def state(self, known: str | None = None) -> StoreState | None:
        state: StoreState | None = await self._ask("state", known)
        return state

    async def documents(self, names: Sequence[str]) -> list[bytes | None]:
        contents: list[bytes | None] = await self._ask("documents", names)
        return contents

    async def wait_for_change(self, known: str, timeout_s: float) -> None:
        await self._ask("wait_for_change", known, timeout_s, longer_s=timeout_s)

    async def append(self, stream: str, events: Sequence[bytes], *, keep: int) -> None:
        await self._ask("append", stream, events, keep=keep)

    async def read(self, stream: str, *, after: str = "", count: int = 1000) -> list[StreamEntry]:
        entries: list[StreamEntry] = await self._ask("read", stream, after=after, count=count)
        return entries

    async def newest(self, stream: str, count: int) -> list[StreamEntry]:
        entries: list[StreamEntry] = await self._ask("newest", stream, count)
        return entries

    async def drop(self, *streams: str) -> None:
        await self._ask("drop", *streams)

    async def put(self, name: str, value: bytes, *, ttl_s: float) -> None:
        await self._ask("put", name, value, ttl_s=ttl_s)

    async def get(self, name: str) -> bytes | None:
        value: bytes | None = await self._ask("get", name)
        return value

    async def aclose(self) -> None:
        """The handle has nothing to close."""


def store_deployment() -> Application:
    """The embedded store: one replica, which outlives updates of everything around it."""
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
    """The store of one replica of the ingress; `handle` is the `Store`'s where that is used."""
    return ServedStore(handle) if spec.url == "memory" else spec.redis(spec.password())
