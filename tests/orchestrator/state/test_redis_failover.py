"""One address, and another Redis after it: what the old one refuses is refused once."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, suppress

import pytest

from orchestrator.errors import StoreUnavailable
from orchestrator.http.records import OUTCOMES
from orchestrator.state.redis import RedisStore
from orchestrator.state.store import Commit
from orchestrator.state.versions import AuditInfo, Publication
from tests.orchestrator.commits import commit
from tests.orchestrator.redis_server import RedisServer, redis_server
from tests.orchestrator.serving import service
from tests.orchestrator.waiting import until

KEYS = 2000
SOON = ("--repl-diskless-sync-delay", "0")


class Address:
    """A port that leads to a server: for each connection, the one of the moment it is opened."""

    def __init__(self, leads_to: RedisServer) -> None:
        self.leads_to, self.port = leads_to, 0

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self.leads_to.port)
        with suppress(asyncio.CancelledError):  # the test has ended
            await asyncio.gather(_pass_on(reader, back), _pass_on(there, writer))


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.close()


@asynccontextmanager
async def address(leads_to: RedisServer) -> AsyncIterator[Address]:
    made = Address(leads_to)
    listening = await asyncio.start_server(made, "127.0.0.1", 0)
    made.port = listening.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        listening.close()


@pytest.fixture
def pair() -> Iterator[tuple[RedisServer, RedisServer]]:
    """A primary and its replica, which has what the primary has."""
    with ExitStack() as stack:
        primary, replica = (stack.enter_context(redis_server(*SOON)) for _ in range(2))
        replica.admin.replicaof("127.0.0.1", str(primary.port))
        primary.admin.set("x", 1)
        primary.admin.wait(1, 20_000)
        yield primary, replica


def change_places(primary: RedisServer, replica: RedisServer) -> None:
    replica.admin.replicaof("NO", "ONE")
    primary.admin.replicaof("127.0.0.1", str(replica.port))


def cut_off(primary: RedisServer, replica: RedisServer) -> None:
    """The old primary follows a server that is gone, and answers nothing before it is back."""
    replica.admin.replicaof("NO", "ONE")
    primary.admin.config_set("replica-serve-stale-data", "no")
    primary.admin.replicaof("127.0.0.1", "1")


@pytest.mark.parametrize("change", [change_places, cut_off])
async def test_what_is_no_longer_the_primary_is_left(
    pair: tuple[RedisServer, RedisServer], change: Callable[[RedisServer, RedisServer], None]
) -> None:
    primary, replica = pair
    async with address(primary) as at:
        store = RedisStore(at.url, timeout_s=20)
        at_once = [store.put(f"v{n}", b"", ttl_s=60) for n in range(4)]
        await asyncio.gather(*at_once)  # several connections, all of them kept
        made = await commit(store, {"p": b"1"})
        change(primary, replica)
        at.leads_to = replica
        with pytest.raises(StoreUnavailable, match=r"(?i)read only|MASTER is down"):
            await store.commit(made, Commit(b"", {"p": b"2"}))
        await store.commit(made, Commit(b"", {"p": b"2"}))
        await asyncio.gather(*(store.put(f"v{n}", b"", ttl_s=60) for n in range(4)))
        await store.append("s", [b"x"], keep=9)
        await store.aclose()


async def test_calls_that_were_under_way_leave_it_as_well(
    pair: tuple[RedisServer, RedisServer],
) -> None:
    primary, replica = pair
    async with address(primary) as at:
        store = RedisStore(at.url, timeout_s=20)
        await asyncio.gather(*(store.put(f"v{n}", b"", ttl_s=60) for n in range(4)))
        change_places(primary, replica)
        at.leads_to = replica
        puts = (store.put(f"v{n}", b"", ttl_s=60) for n in range(4))
        refused = await asyncio.gather(*puts, return_exceptions=True)
        assert {type(one) for one in refused} == {StoreUnavailable}
        await asyncio.gather(*(store.put(f"v{n}", b"", ttl_s=60) for n in range(4)))
        await store.aclose()


async def test_a_server_that_loads_is_left() -> None:
    slow = ("--key-load-delay", "50000", "--loading-process-events-interval-bytes", "1024")
    with redis_server(*slow) as loading, redis_server() as other:
        loading.admin.mset({f"k{n}": random.randbytes(1024) for n in range(KEYS)})
        loading.admin.save()
        loading.stop()
        loading.start()
        async with address(loading) as at:
            store = RedisStore(at.url, timeout_s=20)
            with pytest.raises(StoreUnavailable, match=r"(?i)loading"):
                await store.state()
            at.leads_to = other
            await store.put("v", b"", ttl_s=60)
            await store.aclose()


async def test_a_replica_of_the_service_goes_on(pair: tuple[RedisServer, RedisServer]) -> None:
    primary, replica = pair
    async with address(primary) as at:
        made = service(store=RedisStore(at.url))
        await made.shared.start()
        change_places(primary, replica)
        at.leads_to = replica
        made.shared.outbox.event(OUTCOMES, {"n": 1})
        given = Publication(policy="specreason", params={"threshold": 4})
        while True:
            with suppress(StoreUnavailable):
                await made.shared.versions.publish(given, AuditInfo())
                break
        await until(lambda: not made.shared.degraded and made.shared.watcher.current.active)
        await until(lambda: replica.admin.xlen(f"baton:stream:{OUTCOMES}"))
        await made.shared.stop()
