"""One connection from a caller to a replica, which carries all of the caller's calls there.

A call over Serve's handle takes 2 to 5 ms, and as much CPU; here it is one frame each way. Serve
still starts, checks, scales and replaces the replicas, and tells callers their addresses (`pool`).

A frame is its size (4 bytes), the call's number (8), its kind (1), and a pickled object. Pickle
runs what it is sent, so a replica reads nothing from a caller without its key, which Serve alone
gives away. The connections are encrypted if Ray's own are (RAY_USE_TLS), with the same files.
"""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import secrets
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import aclosing, suppress
from contextvars import Context
from dataclasses import dataclass, field
from enum import IntEnum
from functools import partial
from hmac import compare_digest
from itertools import count
from struct import Struct
from typing import Any, Final, TypeVar

from orchestrator.background import stop
from orchestrator.errors import WorkerError, WorkerUnavailable

log = logging.getLogger(__name__)
T = TypeVar("T")

KEY_BYTES: Final = 32
KEY_TIMEOUT_S: Final = 2.0  # for a connection, and for its key to come
BEAT_S = 1.0  # so often each end says that it is alive
SILENCE_TIMEOUT_S = 10.0  # after it, the other end counts as lost
HEAD: Final = Struct(">IQB")

Method = Callable[..., AsyncGenerator[Any, None] | Awaitable[Any]]


class Kind(IntEnum):
    """What a frame holds."""

    CALL = 0  # a method's name and its arguments
    CANCEL = 1  # nothing: the caller no longer wants the call
    ITEM = 2  # the next item that the method yielded
    END = 3  # nothing: there are no more items
    LAST = 4  # the only item
    FAULT = 5  # what the method raised, in words
    BEAT = 6  # nothing: this end is alive
    LEAVE = 7  # nothing: the replica ends, and the caller is to close after the calls it has
    LOST = 8  # never sent: the connection was lost


@dataclass(frozen=True, slots=True)
class Address:
    """Where a replica listens, and the key that a caller sends first."""

    host: str
    port: int
    key: bytes = field(repr=False)


class ReplicaLost(WorkerUnavailable):
    """A call was lost; `died` is the replica that ended while it had the call, if any did."""

    def __init__(self, reason: str, died: str | None = None) -> None:
        super().__init__(reason)
        self.died = died


class _Pulse:
    """Says on a connection that this end is alive, and calls `lost` if the other end is silent.

    It counts beats, not time, since this process may have been suspended.
    """

    def __init__(self, writer: asyncio.StreamWriter, lost: Callable[[], object]) -> None:
        self._writer, self._lost, self._silence_s = writer, lost, 0.0
        self._task = _start(self._beat())

    def heard(self) -> None:
        """The other end has sent something."""
        self._silence_s = 0.0

    def stop(self) -> None:
        self._task.cancel()

    async def _beat(self) -> None:
        while self._silence_s <= SILENCE_TIMEOUT_S:
            _write(self._writer, 0, Kind.BEAT)
            await asyncio.sleep(BEAT_S)
            self._silence_s += BEAT_S
        self._lost()


class Listener:
    """The replica's end: runs a method for each call, and cancels it if its caller goes away.

    Args:
        methods: by name; each yields the items of its answer, or returns the only one.
    """

    def __init__(self, methods: dict[str, Method]) -> None:
        self._methods, self._key = methods, secrets.token_bytes(KEY_BYTES)
        self._server: asyncio.Server | None = None
        self._callers = set[asyncio.StreamWriter]()
        self._gone = asyncio.Event()  # set when a caller goes away
        self._lock, self._leaves = asyncio.Lock(), False

    @property
    def is_open(self) -> bool:
        return self._server is not None and not self._leaves

    async def address(self, host: str) -> Address:
        """Return the address; from the first time on, the replica listens at it.

        Raises:
            ReplicaLost: the replica is leaving.
        """
        async with self._lock:
            if self._leaves:
                raise ReplicaLost("the replica is leaving")
            if self._server is None:
                # Every call runs in the context of this one, so it is to be empty: in a request's,
                # all calls would log that request's id.
                self._server = await _start(
                    asyncio.start_server(self._connected, host, 0, ssl=_tls())
                )
        return Address(host, self._server.sockets[0].getsockname()[1], self._key)

    async def close(self, timeout_s: float) -> None:
        """Ask callers to go elsewhere. Wait up to `timeout_s` seconds until all have gone, each
        after its calls."""
        self._leaves = True
        if self._server is None:
            return
        self._server.close()
        for writer in self._callers:
            _write(writer, 0, Kind.LEAVE)
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._callers:
                    self._gone.clear()
                    await self._gone.wait()
        for writer in self._callers:
            writer.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        calls: dict[int, asyncio.Task[None]] = {}
        pulse: _Pulse | None = None
        try:
            async with asyncio.timeout(KEY_TIMEOUT_S):
                if not compare_digest(await reader.readexactly(KEY_BYTES), self._key):
                    return
            self._callers.add(writer)
            if self._leaves:
                _write(writer, 0, Kind.LEAVE)
            pulse = _Pulse(writer, writer.transport.abort)
            while True:
                number, kind, body = await _read(reader)
                pulse.heard()
                if kind == Kind.CALL:
                    task = asyncio.create_task(self._answer(writer, number, body))
                    calls[number] = task
                    task.add_done_callback(partial(_forget, calls, number))
                elif kind == Kind.CANCEL and number in calls:
                    calls[number].cancel()
        except (asyncio.IncompleteReadError, OSError):  # a TimeoutError is one
            pass  # the caller went away
        except asyncio.CancelledError:
            pass  # the loop ends; asyncio would log this task as a failed one
        finally:
            self._callers.discard(writer)
            self._gone.set()
            writer.close()
            if pulse is not None:
                pulse.stop()
            await stop(*calls.values())

    async def _answer(self, writer: asyncio.StreamWriter, number: int, body: bytes) -> None:
        kind, last = Kind.END, None
        try:
            name, args = _loaded(body)
            answer = self._methods[name](*args)
            if isinstance(answer, Awaitable):
                _write(writer, number, Kind.LAST, await answer)
                return
            async with aclosing(answer) as items:
                async for item in items:
                    _write(writer, number, Kind.ITEM, item)
        except Exception as error:
            log.exception("a call failed")
            kind, last = Kind.FAULT, type(error).__name__
        except asyncio.CancelledError:
            pass  # by the caller; or by the method, and then the call is lost
        _write(writer, number, kind, last)


class Connection:
    """The caller's end of one connection.

    Args:
        replica: its tag.
        on_left: called when the connection takes no more calls, at least once.
    """

    def __init__(
        self,
        replica: str,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        on_left: Callable[[Connection], object],
    ) -> None:
        self.replica = replica
        self._writer, self._on_left = writer, on_left
        self._numbers = count()
        self._calls: dict[int, asyncio.Queue[tuple[int, bytes]]] = {}
        self._lost: ReplicaLost | None = None
        self._leaving = False
        silent = ReplicaLost(f"a replica was silent for {SILENCE_TIMEOUT_S:g} s")
        self._pulse = _Pulse(writer, partial(self._lose, silent, at_once=True))
        self._reading = _start(self._read(reader))

    @classmethod
    async def open(
        cls, replica: str, address: Address, on_left: Callable[[Connection], object]
    ) -> Connection:
        """Connect to a replica; raise OSError or TimeoutError if it cannot be reached."""
        async with asyncio.timeout(KEY_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(
                address.host, address.port, ssl=_tls(caller=True)
            )
        writer.write(address.key)
        return cls(replica, reader, writer, on_left)

    @property
    def calls(self) -> int:
        """How many calls are open."""
        return len(self._calls)

    async def call(self, method: str, *args: Any) -> AsyncGenerator[Any, None]:
        """Yield the items of the answer; the call is cancelled if this generator is closed.

        Raises:
            ReplicaLost: the connection is lost.
            WorkerError: the method failed, and would again.
        """
        if self._lost is not None:
            raise ReplicaLost(str(self._lost))  # the replica never had this call
        number, frames = next(self._numbers), asyncio.Queue[tuple[int, bytes]]()
        self._calls[number] = frames
        kind: int = Kind.ITEM
        try:
            _write(self._writer, number, Kind.CALL, (method, args))
            while kind == Kind.ITEM:
                kind, body = await frames.get()
                if kind == Kind.FAULT:
                    raise WorkerError(f"{method} failed on the replica: {_loaded(body)}")
                if kind == Kind.LOST and self._lost is not None:
                    raise ReplicaLost(str(self._lost), self._lost.died)
                if kind == Kind.END:
                    return
                yield _loaded(body)
        finally:
            del self._calls[number]
            if kind == Kind.ITEM:
                _write(self._writer, number, Kind.CANCEL)
            self._close_if_left()

    async def answer(self, method: str, *args: Any) -> Any:
        """Return the only item of the answer; raise ReplicaLost if there is none."""
        async with aclosing(self.call(method, *args)) as items:
            async for item in items:
                return item
        raise ReplicaLost("a replica gave no answer")

    def leave(self) -> None:
        """Take no more calls, and close after those that there are."""
        self._leaving = True
        self._on_left(self)
        self._close_if_left()

    def close(self) -> None:
        self._lose(ReplicaLost("the connection was closed"))

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                number, kind, body = await _read(reader)
                self._pulse.heard()
                if kind == Kind.LEAVE:
                    self.leave()
                elif number in self._calls and kind != Kind.BEAT:
                    self._calls[number].put_nowait((kind, body))
        except (asyncio.IncompleteReadError, OSError):
            # One that was leaving did not die of its calls.
            self._lose(ReplicaLost("a replica ended", None if self._leaving else self.replica))

    def _close_if_left(self) -> None:
        if self._leaving and not self._calls:
            self.close()

    def _lose(self, lost: ReplicaLost, *, at_once: bool = False) -> None:
        """Close the connection; `at_once` without what is not yet sent."""
        if self._lost is not None:
            return
        self._lost = lost
        if at_once:
            self._writer.transport.abort()
        self._writer.close()
        self._pulse.stop()
        self._reading.cancel()
        for frames in self._calls.values():
            frames.put_nowait((Kind.LOST, b""))
        self._on_left(self)


def _start(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Start a task in an empty context: it outlives the request in whose context it begins."""
    return asyncio.create_task(work, context=Context())


def _tls(*, caller: bool = False) -> ssl.SSLContext | None:
    """Return what encrypts one end of a connection, if Ray's own connections are encrypted."""
    env = os.environ
    if env.get("RAY_USE_TLS", "0").lower() not in ("1", "true"):
        return None
    purpose = ssl.Purpose.SERVER_AUTH if caller else ssl.Purpose.CLIENT_AUTH
    context = ssl.create_default_context(purpose, cafile=env["RAY_TLS_CA_CERT"])
    context.load_cert_chain(env["RAY_TLS_SERVER_CERT"], env["RAY_TLS_SERVER_KEY"])
    context.check_hostname = False  # the authority signs for Ray's nodes alone
    context.verify_mode = ssl.CERT_REQUIRED
    # Python 3.13 asks of an authority what one that OpenSSL makes by default lacks.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


async def _read(reader: asyncio.StreamReader) -> tuple[int, int, bytes]:
    size, number, kind = HEAD.unpack(await reader.readexactly(HEAD.size))
    return number, kind, await reader.readexactly(size)


def _write(writer: asyncio.StreamWriter, number: int, kind: Kind, content: Any = None) -> None:
    body = b"" if content is None else pickle.dumps(content, pickle.HIGHEST_PROTOCOL)
    if not writer.is_closing():
        writer.write(HEAD.pack(len(body), number, kind) + body)


def _loaded(body: bytes) -> Any:
    return pickle.loads(body) if body else None  # noqa: S301 the sender had the key


def _forget(calls: dict[int, asyncio.Task[None]], number: int, _: object) -> None:
    calls.pop(number, None)
