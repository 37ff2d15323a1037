"""The store in Redis: several replicas share it, and it outlives them.

Every key begins with the prefix, so these rights suffice (Redis 7):

    ACL SETUSER baton on >PASSWORD ~baton:* +@read +@write +@transaction +@connection +eval

Nothing is retried here: the caller decides whether to wait and try again. After a failure the next
call opens a new connection, since the address may now be another server's (a failover): the old
server would answer READONLY, MASTERDOWN or LOADING as long as the old connections are kept.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from orchestrator.errors import ConfigError, Conflict, StoreUnavailable
from orchestrator.state.store import (
    AUDIT,
    AUDIT_ENTRIES,
    TIMEOUT_S,
    Commit,
    StoreState,
    StreamEntry,
)

_REVISION: Final = b""  # a field; no pointer can have this name
_EVENT: Final = b"e"
_BYTES: Final = "latin-1"
"""The encoding of revisions, in which any bytes have a text."""

_COMMIT: Final = Path(__file__).with_name("commit.lua").read_text(encoding="utf-8")


class RedisStore:
    """A `Store` on the server at `url`: redis:// or rediss://, with user and database.

    `password` is used if the url has none. `prefix` begins every key. `timeout_s` bounds every
    call.

    Raises:
        ConfigError: the url is not a Redis url.
    """

    def __init__(
        self,
        url: str,
        *,
        password: str | None = None,
        prefix: str = "baton:",
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self._open: Callable[[], Redis] = partial(
            Redis.from_url,
            url,
            password=password,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            retry=Retry(NoBackoff(), 0),
            protocol=2,  # sends no HELLO, which an old server or an ACL might refuse
        )
        try:
            self._redis = self._open()
            options = self._redis.connection_pool.connection_kwargs
            self._redis.connection_pool.make_connection()  # type: ignore[no-untyped-call]
        except (ValueError, TypeError) as error:
            raise ConfigError(f"not a Redis url (redis://HOST:PORT/DATABASE): {error}") from None
        # For error messages: neither user nor password.
        self._address = f"redis at {options.get('host', 'localhost')}:{options.get('port', 6379)}"
        self._prefix, self._timeout_s = prefix, timeout_s

    async def commit(self, known: str, commit: Commit) -> str:
        names = list(commit.create)
        keys = [self._key("pointers"), self._key("stream", AUDIT)]
        keys += [self._key("document", name) for name in names]
        arguments: list[bytes | str | int] = [known.encode(_BYTES), secrets.token_hex(8)]
        arguments += [commit.audit, AUDIT_ENTRIES, *commit.create.values()]
        for pointer in commit.pointers.items():
            arguments += pointer
        async with self._errors() as redis:
            outcome, detail = await redis.eval(_COMMIT, len(keys), *keys, *arguments)
        if outcome == b"conflict":
            raise Conflict("the configuration was changed by another client")
        if outcome == b"exists":
            raise Conflict(f"{names[detail]} exists")
        revision: str = detail.decode(_BYTES)
        return revision

    async def state(self) -> StoreState:
        async with self._errors() as redis:
            fields: Any = await redis.hgetall(self._key("pointers"))
        revision = fields.pop(_REVISION, b"").decode(_BYTES)
        pointers = {name.decode(errors="replace"): value for name, value in fields.items()}
        return StoreState(revision, pointers)

    async def documents(self, names: Sequence[str]) -> list[bytes | None]:
        if not names:
            return []
        async with self._errors() as redis:
            documents: Any = await redis.mget([self._key("document", name) for name in names])
        return list(documents)

    async def append(self, stream: str, events: Sequence[bytes], *, keep: int) -> None:
        key = self._key("stream", stream)
        async with self._errors() as redis, redis.pipeline(transaction=False) as pipe:
            for event in events:
                pipe.xadd(key, {_EVENT: event}, maxlen=keep, approximate=True)
            await pipe.execute()

    async def read(self, stream: str, *, after: str = "", count: int = 1000) -> list[StreamEntry]:
        start = f"({after}" if after else "-"
        async with self._errors() as redis:
            entries = await redis.xrange(self._key("stream", stream), min=start, count=count)
        return _entries(entries)

    async def newest(self, stream: str, count: int) -> list[StreamEntry]:
        async with self._errors() as redis:
            entries = await redis.xrevrange(self._key("stream", stream), count=count)
        return _entries(entries)

    async def drop(self, *streams: str) -> None:
        if streams:
            async with self._errors() as redis:
                await redis.unlink(*(self._key("stream", stream) for stream in streams))

    async def time(self) -> float:
        # We take the time from a new entry's id, because the rights above do not include TIME.
        async with self._errors() as redis:
            at: Any = await redis.xadd(
                self._key("stream", "clock"), {_EVENT: b""}, maxlen=1, approximate=False
            )
        return int(at.partition(b"-")[0]) / 1000

    async def put(self, name: str, value: bytes, *, ttl_s: float) -> None:
        async with self._errors() as redis:
            await redis.set(self._key("value", name), value, px=max(1, int(ttl_s * 1000)))

    async def get(self, name: str) -> bytes | None:
        async with self._errors() as redis:
            value: bytes | None = await redis.get(self._key("value", name))  # type: ignore[assignment]
        return value

    async def aclose(self) -> None:
        with suppress(RedisError, OSError):
            await self._redis.aclose()

    def _key(self, kind: str, name: str = "") -> str:
        return f"{self._prefix}{kind}:{name}" if name else f"{self._prefix}{kind}"

    @asynccontextmanager
    async def _errors(self) -> AsyncIterator[Redis]:
        """Yield a client for one call. A failure of the server raises StoreUnavailable in time, and
        the next call has new connections."""
        redis = self._redis
        try:
            async with asyncio.timeout(self._timeout_s):
                yield redis
        except TimeoutError:
            message = f"no answer within {self._timeout_s:g} s"
        except (RedisError, OSError) as error:
            message = " ".join(str(error).split()) or type(error).__name__
        else:
            return
        if redis is self._redis:
            self._redis = self._open()
            await _leave(redis)
        raise StoreUnavailable(f"{self._address}: {message}")


async def _leave(redis: Redis) -> None:
    """Close the connections of a client; those in use close when their calls have ended."""
    pool = redis.connection_pool
    with suppress(RedisError, OSError):
        await pool.update_active_connections_for_reconnect()  # type: ignore[no-untyped-call]
        await pool.disconnect(inuse_connections=False)


def _entries(entries: Any) -> list[StreamEntry]:
    return [StreamEntry(at.decode(), fields.get(_EVENT, b"")) for at, fields in entries]
