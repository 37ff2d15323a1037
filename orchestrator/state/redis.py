"""The store in Redis: what several replicas share, and what outlives them.

Every key and the one channel begin with the prefix, so an ACL user needs no other (Redis 7):

    ACL SETUSER baton on >PASSWORD ~baton:* &baton:*
        +@read +@write +@pubsub +@transaction +@connection +eval

Nothing is retried in here: whoever asks knows what waiting is worth, and a call that hangs would be
one more thing that waits.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

from redis.asyncio import Redis
from redis.asyncio.client import PubSub
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from orchestrator.errors import ConfigError, Conflict, StoreUnavailable
from orchestrator.state.store import (
    AUDIT,
    AUDITED,
    PATIENCE_S,
    Entry,
    Move,
    State,
    check,
    check_commit,
)

_REVISION: Final = b""  # a field that no pointer can be named
_EVENT: Final = b"e"

# Redis runs a script alone and to its end, but does not undo what a failing one has done: so
# everything that can fail comes before the first change to documents and pointers.
_COMMIT: Final = """
local pointers, audit = KEYS[1], KEYS[2]
local identity, entry, kept, channel, moves = unpack(ARGV, 1, 5)
local first, count = 6, tonumber(moves)
local revision = redis.call('HGET', pointers, '')
for move = 0, count - 1 do
  local name, seen = ARGV[first + 3 * move], ARGV[first + 3 * move + 1]
  local value = redis.call('HGET', pointers, name)
  if seen ~= (value and '=' .. value or '') then return {'conflict', name} end
end
for key = 3, #KEYS do
  if redis.call('EXISTS', KEYS[key]) == 1 then return {'exists', key - 3} end
end
redis.call('XADD', audit, 'MAXLEN', '~', kept, '*', 'e', entry)
for key = 3, #KEYS do
  redis.call('SET', KEYS[key], ARGV[first + 3 * count + key - 3])
end
for move = 0, count - 1 do
  local name, new = ARGV[first + 3 * move], ARGV[first + 3 * move + 2]
  if new == '' then
    redis.call('HDEL', pointers, name)
  else
    redis.call('HSET', pointers, name, string.sub(new, 2))
  end
end
local whose, number = string.match(revision or '', '^(%x+):(%d+)$')
local now = (whose or identity) .. ':' .. string.format('%d', (tonumber(number) or 0) + 1)
redis.call('HSET', pointers, '', now)
redis.call('PUBLISH', channel, now)
return {'done', now}
"""


class RedisStore:
    """A `Store` over a server that `url` names: redis:// or rediss://, with user and database.

    `password` is used where the url has none. `prefix` begins every key.

    Raises:
        ConfigError: the url is none of Redis's.
    """

    def __init__(
        self,
        url: str,
        *,
        password: str | None = None,
        prefix: str = "baton:",
        patience_s: float = PATIENCE_S,
    ) -> None:
        try:
            self._redis = Redis.from_url(
                url,
                password=password,
                socket_timeout=patience_s,
                socket_connect_timeout=patience_s,
                retry=Retry(NoBackoff(), 0),
                protocol=2,  # needs no greeting that an old server or an ACL might refuse
            )
            known = self._redis.connection_pool.connection_kwargs
            self._redis.connection_pool.make_connection()  # type: ignore[no-untyped-call]
        except (ValueError, TypeError) as error:
            raise ConfigError(f"not a url of Redis's: {error}") from None
        # What is told of it holds neither user nor password.
        self._where = f"redis at {known.get('host', 'localhost')}:{known.get('port', 6379)}"
        self._prefix, self._patience_s = prefix, patience_s
        self._hints: PubSub | None = None
        self._failed = False  # since one last began to listen: the connection may be dead, too
        self._listening = asyncio.Lock()

    async def commit(
        self,
        *,
        create: Mapping[str, bytes] | None = None,
        move: Sequence[Move] = (),
        audit: bytes,
    ) -> str:
        create = create or {}
        check_commit(create, move, audit)
        names = list(create)
        keys = [self._key("pointers"), self._key("stream", AUDIT)]
        keys += [self._key("document", name) for name in names]
        arguments: list[bytes | str | int] = [secrets.token_hex(8), audit, AUDITED]
        arguments += [self._key("changes"), len(move)]
        for one in move:
            arguments += [one.pointer, _maybe(one.seen), _maybe(one.new)]
        arguments += [create[name] for name in names]
        async with self._asking():
            verdict, what = await self._redis.eval(_COMMIT, len(keys), *keys, *arguments)
        if verdict == b"conflict":
            raise Conflict(f"{what.decode()} has been changed by somebody else")
        if verdict == b"exists":
            raise Conflict(f"{names[what]} exists")
        revision: str = what.decode()
        return revision

    async def state(self, known: str | None = None) -> State | None:
        key = self._key("pointers")
        async with self._asking():
            if known is not None:
                revision: Any = await self._redis.hget(key, _REVISION)
                if (revision or b"").decode(errors="replace") == known:
                    return None
            fields: Any = await self._redis.hgetall(key)
        told = fields.pop(_REVISION, b"").decode(errors="replace")
        pointers = {name.decode(errors="replace"): value for name, value in fields.items()}
        return State(told, pointers)

    async def documents(self, names: Sequence[str]) -> list[bytes | None]:
        check(*names)
        if not names:
            return []
        async with self._asking():
            found: Any = await self._redis.mget([self._key("document", name) for name in names])
        return list(found)

    async def changed(self, known: str, patience_s: float) -> None:
        async with self._listening:
            try:
                if self._failed:
                    await self._forget_hints()
                if self._hints is None:
                    self._failed = False
                    async with self._asking():
                        self._hints = self._redis.pubsub()
                        await self._hints.subscribe(self._key("changes"))
                        await self._hints.get_message(timeout=None)  # that it has been heard
                    return  # before one listened, something may have been missed
                async with self._asking(patience_s):
                    await self._hints.get_message(timeout=patience_s)
            except BaseException:
                await self._forget_hints()
                raise

    async def append(self, stream: str, events: Sequence[bytes], *, keep: int) -> None:
        check(stream, values=events)
        key = self._key("stream", stream)
        async with self._asking(), self._redis.pipeline(transaction=False) as pipe:
            for event in events:
                pipe.xadd(key, {_EVENT: event}, maxlen=keep, approximate=True)
            await pipe.execute()

    async def read(self, stream: str, *, after: str = "", count: int = 1000) -> list[Entry]:
        check(stream)
        start = f"({after}" if after else "-"
        async with self._asking():
            found = await self._redis.xrange(self._key("stream", stream), min=start, count=count)
        return _entries(found)

    async def newest(self, stream: str, count: int) -> list[Entry]:
        check(stream)
        async with self._asking():
            found = await self._redis.xrevrange(self._key("stream", stream), count=count)
        return _entries(found)

    async def add(self, total: str, amounts: Mapping[str, float]) -> None:
        check(total, *amounts)
        key = self._key("total", total)
        async with self._asking(), self._redis.pipeline(transaction=True) as pipe:
            for name, amount in amounts.items():
                pipe.hincrbyfloat(key, name, amount)
            await pipe.execute()

    async def totals(self, total: str) -> dict[str, float]:
        check(total)
        async with self._asking():
            fields: Any = await self._redis.hgetall(self._key("total", total))
        try:
            return {name.decode(): float(value) for name, value in fields.items()}
        except ValueError:
            raise StoreUnavailable(f"{self._where}: the total {total} holds no numbers") from None

    async def put(self, name: str, value: bytes, *, ttl_s: float) -> None:
        check(name)
        async with self._asking():
            await self._redis.set(self._key("value", name), value, px=max(1, int(ttl_s * 1000)))

    async def get(self, name: str) -> bytes | None:
        check(name)
        async with self._asking():
            value: bytes | None = await self._redis.get(self._key("value", name))  # type: ignore[assignment]
        return value

    async def aclose(self) -> None:
        await self._forget_hints()
        with suppress(RedisError, OSError):
            await self._redis.aclose()

    def _key(self, kind: str, name: str = "") -> str:
        return f"{self._prefix}{kind}:{name}" if name else f"{self._prefix}{kind}"

    async def _forget_hints(self) -> None:
        hints, self._hints = self._hints, None
        if hints is not None:
            with suppress(RedisError, OSError):
                await hints.aclose()  # type: ignore[no-untyped-call]

    @asynccontextmanager
    async def _asking(self, more_s: float = 0.0) -> AsyncIterator[None]:
        """Whatever goes wrong with the server, in time and as one error."""
        try:
            async with asyncio.timeout(self._patience_s + more_s):
                yield
        except TimeoutError:
            self._failed = True
            told = f"no answer within {self._patience_s:g} s"
            raise StoreUnavailable(f"{self._where}: {told}") from None
        except (RedisError, OSError) as error:
            self._failed = True
            told = " ".join(str(error).split()) or type(error).__name__
            raise StoreUnavailable(f"{self._where}: {told}") from None


def _maybe(value: bytes | None) -> bytes:
    """A value, or none, as the script tells them apart."""
    return b"" if value is None else b"=" + value


def _entries(found: Any) -> list[Entry]:
    return [Entry(at.decode(), fields.get(_EVENT, b"")) for at, fields in found]
