"""Malformed requests: none is answered 5xx, none hangs, errors are in OpenAI's form."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any, Final
from urllib.parse import urlsplit

from deploy.lab.torture.attack import CHAT, HANG_S, MODEL, Attack

AT_ONCE: Final = 8


def hostile_request(chance: random.Random) -> bytes:
    """A malformed request, or a well-formed wrong one, as it goes over the wire."""
    body: Any = {"model": MODEL, "messages": [{"role": "user", "content": "1+1"}], "max_tokens": 1}
    odd: list[Any] = [None, -1, 1e308, 2**70, "", "\x00", "é" * 99, [], {}, [[]], True, "NaN"]
    odd += [float("nan"), float("inf"), 10**400, -0.0, 1e-320]
    path, method, headers, raw = CHAT, "POST", dict[str, bytes](), None
    match chance.randrange(8):
        case 0:  # a field of the wrong type
            fields = (*body, "stream", "stop", "seed", "tools", "policy", "n", "temperature")
            body[chance.choice(fields)] = chance.choice(odd)
        case 1:  # an unknown field
            body["x" * chance.randint(1, 99)] = chance.choice(odd)
        case 2:  # deep nesting
            depth = chance.choice((40, 4000, 100_000))
            raw = b'{"a":' * depth + b"1" + b"}" * depth
        case 3:  # broken JSON
            whole = json.dumps(body).encode()
            at = chance.randrange(len(whole))
            raw = whole[:at] + bytes([chance.randrange(256)]) + whole[at + chance.randint(0, 2) :]
        case 4:  # headers that are not text, or odd
            names = ("authorization", "x-request-id", "x-session-id", "traceparent", "origin",
                     "accept-encoding", "expect", "upgrade", "range", "content-type")  # fmt: skip
            values = (bytes(chance.randrange(128, 256) for _ in range(9)), b"", b"a/b/c", b"'<>")
            headers[chance.choice(names)] = chance.choice(values)
        case 5:  # another path
            path = "/" + "".join(chance.choice("v1/.%2efoo~\\x?#&") for _ in range(20))
            method = chance.choice(("GET", "POST", "PUT", "DELETE", "PATCH", "TRACE"))
        case 6:  # messages without a meaning
            body["messages"] = chance.choice(
                [[], [{}], [{"role": "x"}], [{"role": "user", "content": chance.choice(odd)}], "a"]
            )
        case _:  # headers that are many or long
            headers = {f"x-{n}": b"y" * chance.randrange(99) for n in range(chance.randrange(2000))}
            headers["cookie"] = b"a" * 10 ** chance.randrange(2, 6)
    sent = json.dumps(body).encode() if raw is None else raw
    lines = {"host": b"127.0.0.1", "content-type": b"application/json", "connection": b"close"}
    lines |= headers | {"content-length": str(len(sent)).encode()}
    head = b"".join(b"%s: %s\r\n" % (name.encode(), value) for name, value in lines.items())
    return b"%s %s HTTP/1.1\r\n%s\r\n%s" % (method.encode(), path.encode(), head, sent)


async def hostile(attack: Attack) -> None:
    """Send malformed requests, a few at once."""
    target, outcome = attack.target, attack.outcome
    requests = (hostile_request(attack.chance) for _ in range(attack.number))

    async def send() -> None:
        for request in requests:
            outcome.requests += 1
            try:
                async with asyncio.timeout(HANG_S):
                    status, body = await _raw(target.url, request, target.key)
            except TimeoutError:
                outcome.broken.append(f"no answer to {request[:80]!r}")
                continue
            outcome.seen[str(status)] += 1
            if status >= 500:
                outcome.broken.append(f"{status} to {request[:80]!r}")
            elif status >= 400 and not request.startswith(b"TRACE") and not _is_error(body):
                outcome.broken.append(f"{status} not in OpenAI's form to {request[:80]!r}")

    await asyncio.gather(*(send() for _ in range(AT_ONCE)))


async def _raw(url: str, request: bytes, key: str | None) -> tuple[int, bytes]:
    """Status and body of the answer to a request's bytes; status 0 without an answer."""
    if key is not None and b"\r\nauthorization: " not in request:
        given = f"authorization: Bearer {key}\r\n".encode()
        request = request.replace(b"\r\n", b"\r\n" + given, 1)
    address = urlsplit(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port or 80)
    try:
        writer.write(request)
        reply = await reader.read()
    except ConnectionError:
        return 0, b""
    finally:
        writer.close()
    head, _, body = reply.partition(b"\r\n\r\n")
    parts = head.split(b" ", 2)
    return (int(parts[1]) if len(parts) > 1 else 0), body


def _is_error(body: bytes) -> bool:
    """Whether a body holds an error in OpenAI's form."""
    start, end = body.find(b"{"), body.rfind(b"}")
    try:
        error = json.loads(body[start : end + 1])["error"]
        return bool({"message", "type", "param", "code"} <= error.keys())
    except (ValueError, KeyError, TypeError, AttributeError):
        return False
