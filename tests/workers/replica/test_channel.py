"""The connection between a caller and a replica, over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trustme

from orchestrator.errors import WorkerError
from tests.orchestrator.waiting import until
from workers.replica import channel
from workers.replica.channel import Address, Connection, Listener, ReplicaLost


class Echo:
    """Yields back what it is sent; counts the calls that run."""

    def __init__(self) -> None:
        self.running = 0
        self.go = asyncio.Event()

    async def echo(self, *args: Any) -> AsyncGenerator[Any, None]:
        for one in args:
            yield one

    async def wait(self, *args: Any) -> AsyncGenerator[Any, None]:
        self.running += 1
        try:
            yield "began"
            await self.go.wait()
            yield "went on"
        finally:
            self.running -= 1

    async def one(self, sent: Any) -> Any:
        if sent == "fault":
            raise KeyError(sent)
        return sent

    async def slow(self, sent: Any) -> Any:
        self.running += 1
        await self.go.wait()
        return sent

    async def odd(self, what: str) -> Any:
        if what == "cancelled":
            raise asyncio.CancelledError
        return lambda: None  # pickle cannot write it

    async def fail(self) -> AsyncGenerator[Any, None]:
        yield 1
        raise KeyError("a fault")


@asynccontextmanager
async def connected(
    echo: Echo, left: list[Any] | None = None
) -> AsyncIterator[tuple[Connection, Listener]]:
    names = ("echo", "wait", "fail", "one", "odd", "slow")
    listener = Listener({name: getattr(echo, name) for name in names})
    address = await listener.address("127.0.0.1")
    connection = await Connection.open("one", address, [].append if left is None else left.append)
    try:
        yield connection, listener
    finally:
        connection.close()
        await listener.close(0)


async def answer(connection: Connection, method: str, *args: Any) -> list[Any]:
    return [item async for item in connection.call(method, *args)]


async def test_many_calls_share_a_connection() -> None:
    async with connected(Echo()) as (connection, _):
        sent = [[n, {"text": "x" * n * 1000, "none": None}, None] for n in range(200)]
        got = await asyncio.gather(*(answer(connection, "echo", *args) for args in sent))
        assert got == sent
        assert await answer(connection, "echo") == []
        assert await answer(connection, "one", 1) == [1]
        assert await answer(connection, "one", None) == [None]


async def test_a_call_that_is_closed_ends_at_the_replica_and_others_go_on() -> None:
    echo = Echo()
    async with connected(echo) as (connection, _):
        calls = [connection.call("wait") for _ in range(3)]
        assert [await anext(one) for one in calls] == ["began"] * 3
        await calls[0].aclose()
        await until(lambda: echo.running == 2)
        echo.go.set()
        assert [[item async for item in one] for one in calls] == [[], ["went on"], ["went on"]]
        assert not connection._calls


async def test_a_replica_that_ends_loses_the_calls_that_it_has() -> None:
    left: list[Connection] = []
    async with connected(Echo(), left) as (connection, listener):
        call = connection.call("wait")
        await anext(call)
        for writer in listener._callers:
            writer.close()
        with pytest.raises(ReplicaLost) as lost:
            await anext(call)
        assert (lost.value.died, left) == ("one", [connection])
        with pytest.raises(ReplicaLost) as lost:
            await answer(connection, "echo", 1)
        assert lost.value.died is None  # it never had that call


async def test_a_caller_that_goes_away_ends_its_calls() -> None:
    echo = Echo()
    async with connected(echo) as (connection, _):
        call = connection.call("wait")
        await anext(call)
        connection.close()
        await until(lambda: not echo.running)
        with pytest.raises(ReplicaLost, match="closed") as lost:
            await anext(call)
        assert lost.value.died is None


async def test_a_replica_that_leaves_ends_its_calls_first() -> None:
    echo, left = Echo(), list[Connection]()
    async with connected(echo, left) as (connection, listener):
        address = await listener.address("127.0.0.1")
        call = connection.call("wait")
        await anext(call)
        closing = asyncio.create_task(listener.close(60))
        await until(lambda: left == [connection])
        late: list[Connection] = []  # one whose key was on its way
        with suppress(OSError):
            await Connection.open("one", address, late.append)
        assert not closing.done()
        assert await answer(connection, "echo", 1) == [1]  # one that crossed the news
        echo.go.set()
        assert await anext(call) == "went on"
        assert [item async for item in call] == []
        await closing
        assert not listener.is_open
        assert not listener._callers


async def test_the_last_answer_of_a_replica_that_leaves_arrives_whole() -> None:
    """Although beats cross it, which would reset a connection that is closed at that end."""
    echo, text = Echo(), "x" * (20 << 20)
    async with connected(echo) as (connection, listener):
        call = asyncio.create_task(connection.answer("slow", text))
        await until(lambda: echo.running == 1)
        closing = asyncio.create_task(listener.close(60))
        await asyncio.sleep(0)
        echo.go.set()
        assert await call == text
        await closing


async def test_a_call_that_a_leaving_replica_cuts_off_did_not_end_it() -> None:
    async with connected(Echo()) as (connection, listener):
        call = connection.call("wait")
        await anext(call)
        await listener.close(0.05)
        with pytest.raises(ReplicaLost) as lost:
            await anext(call)
        assert lost.value.died is None


async def test_a_replica_does_not_wait_for_a_call_for_ever() -> None:
    async with connected(Echo()) as (connection, listener):
        call = connection.call("wait")
        await anext(call)
        await listener.close(0.05)
        await call.aclose()


async def test_a_fault_in_a_method_is_an_error(caplog: pytest.LogCaptureFixture) -> None:
    async with connected(Echo()) as (connection, _):
        items = connection.call("fail")
        assert await anext(items) == 1
        with pytest.raises(WorkerError, match="fail failed on the replica: KeyError"):
            await anext(items)
        with pytest.raises(WorkerError, match="one failed on the replica: KeyError"):
            await answer(connection, "one", "fault")
        with pytest.raises(WorkerError, match="odd failed on the replica"):
            await answer(connection, "odd", "unwritable")
        with pytest.raises(WorkerError, match="none failed on the replica: KeyError"):
            await answer(connection, "none")
        assert "a fault" in caplog.text
        assert await answer(connection, "echo", 2) == [2]


async def test_a_method_that_is_cancelled_loses_its_call() -> None:
    async with connected(Echo()) as (connection, _):
        with pytest.raises(ReplicaLost, match="no answer"):
            await asyncio.wait_for(connection.answer("odd", "cancelled"), 10)


async def test_who_is_silent_is_lost_at_both_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "BEAT_S", 0.02)
    monkeypatch.setattr(channel, "SILENCE_TIMEOUT_S", 0.1)
    echo, left = Echo(), list[Connection]()
    async with connected(echo, left) as (connection, listener):
        items = connection.call("wait")
        await anext(items)
        await asyncio.sleep(0.3)
        assert not left  # beats keep it
        connection._pulse.stop()  # the caller's node is gone
        await until(lambda: not echo.running)
        with pytest.raises(ReplicaLost):
            await anext(items)
    async with connected(echo, left := []) as (connection, listener):
        monkeypatch.setattr(channel._Pulse, "heard", lambda _: None)
        with pytest.raises(ReplicaLost, match=r"silent for 0\.1 s|ended"):
            await answer(connection, "wait")
        assert left
        assert listener.is_open


async def test_calls_run_in_no_request_s_context() -> None:
    request: ContextVar[str] = ContextVar("request", default="none")

    async def look() -> str:
        return request.get()

    listener = Listener({"look": look})
    request.set("the first")
    address = await listener.address("127.0.0.1")
    connection = await Connection.open("one", address, lambda _: None)
    assert await connection.answer("look") == "none"
    connection.close()
    await listener.close(0)


async def test_a_replica_that_leaves_tells_nobody_its_address() -> None:
    async with connected(Echo()) as (_, listener):
        await listener.close(0)
        with pytest.raises(ReplicaLost, match="leaving"):
            await listener.address("127.0.0.1")


async def test_a_caller_that_sends_no_key_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with connected(Echo()) as (_, listener):
        monkeypatch.setattr(channel, "KEY_TIMEOUT_S", 0.05)
        address = await listener.address("127.0.0.1")
        reader, writer = await asyncio.open_connection(address.host, address.port)
        assert await asyncio.wait_for(reader.read(), 10) == b""
        writer.close()


@pytest.mark.parametrize("key", [b"", b"x" * 32, b"x" * 31])
async def test_a_caller_without_the_key_is_not_listened_to(key: bytes) -> None:
    echo = Echo()
    async with connected(echo) as (_, listener):
        address = replace(await listener.address("127.0.0.1"), key=key)
        intruder = await Connection.open("one", address, lambda _: None)
        with pytest.raises(ReplicaLost):
            await asyncio.wait_for(answer(intruder, "wait"), 10)
        assert not echo.running


async def test_a_replica_that_is_not_there_cannot_be_connected_to() -> None:
    async with connected(Echo()) as (_, listener):
        address = await listener.address("127.0.0.1")
    with pytest.raises(OSError, match=r"refused|failed"):
        await Connection.open("one", address, lambda _: None)


async def test_connections_are_encrypted_if_rays_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def files(authority: trustme.CA, name: str) -> dict[str, str]:
        made = authority.issue_cert("node")
        for part, blob in (("CERT", made.cert_chain_pems[0]), ("KEY", made.private_key_pem)):
            blob.write_to_path(str(tmp_path / f"{name}-{part}"))
        return {
            f"RAY_TLS_SERVER_{part}": str(tmp_path / f"{name}-{part}") for part in ("CERT", "KEY")
        }

    async def ask(address: Address) -> None:
        other = await Connection.open("one", address, lambda _: None)
        await asyncio.wait_for(answer(other, "echo", 1), 10)

    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca"))
    ours = {"RAY_TLS_CA_CERT": str(tmp_path / "ca"), **files(authority, "ours")}
    for name, value in {"RAY_USE_TLS": "1", **ours}.items():
        monkeypatch.setenv(name, value)
    async with connected(Echo()) as (connection, listener):
        assert await answer(connection, "echo", 1) == [1]
        address = await listener.address("127.0.0.1")
        strangers = files(trustme.CA(), "others")
        for change in ({"RAY_USE_TLS": "0"}, {"RAY_USE_TLS": "1", **strangers}):
            for name, value in change.items():
                monkeypatch.setenv(name, value)
            with pytest.raises((ReplicaLost, OSError)):
                await ask(address)


def test_a_key_is_not_printed() -> None:
    assert "secret" not in repr(Address("host", 1, b"secret"))
