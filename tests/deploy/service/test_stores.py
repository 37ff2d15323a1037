"""The embedded store's client, when what stands between fails."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from grpc import RpcError
from ray.exceptions import ActorDiedError

from deploy.service.stores import ServedStore
from orchestrator.errors import InvalidRequest, StoreUnavailable


class Handle:
    """Stands for Serve's: every call ends by `failure`."""

    def __init__(self, failure: BaseException) -> None:
        self.failure, self.ask = failure, self

    def options(self, **_: Any) -> Handle:
        return self

    async def remote(self, *_: Any) -> Any:
        raise self.failure


@pytest.mark.parametrize(
    "failure",
    [ActorDiedError(), RpcError(), RuntimeError("a router's"), OSError(), asyncio.CancelledError()],
    ids=lambda one: type(one).__name__,
)
async def test_every_failure_on_the_way_is_a_store_that_is_away(failure: BaseException) -> None:
    with pytest.raises(StoreUnavailable):
        await ServedStore(Handle(failure)).get("a")


async def test_a_caller_that_goes_is_not_the_store() -> None:
    class Waiting(Handle):
        async def remote(self, *_: Any) -> Any:
            await asyncio.Event().wait()

    asked = asyncio.create_task(ServedStore(Waiting(InvalidRequest(""))).get("a"))
    await asyncio.sleep(0)
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
