"""Attacks on a running service, each with what must hold afterwards: `baton torture`.

    hostile    malformed requests: none is answered 5xx, none hangs, errors are in OpenAI's form
    large      prompts far beyond the context beside a user: they are refused, the user is answered
    overload   many more requests than places: each is answered rightly or told when to come again
    faults     workers and orchestrators killed and stopped under streams: no answer is lost, none
               differs without saying so (only of a service of its own)

All of them are bounded in time and count, and repeatable by their seed.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final
from urllib.parse import urlsplit

import httpx

HANG_S: Final = 60.0  # an answer that takes longer never comes
HEALTH_S: Final = 1.0  # within which /health answers whatever happens
CHAT: Final = "/v1/chat/completions"
MODEL: Final = "large-only"
Signal = Callable[[str, signal.Signals], None]
"""Sends a signal to one process of a kind: SmallWorker, LargeWorker or Orchestrator."""


@dataclass(slots=True)
class ScenarioOutcome:
    """What a scenario saw; `broken` says in words what did not hold."""

    scenario: str
    requests: int = 0
    seen: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def json(self) -> dict[str, Any]:
        return {
            "scenario": self.scenario,
            "requests": self.requests,
            "seen": dict(self.seen),
            "held": not self.broken,
            "broken": self.broken,
            "seconds": round(self.seconds, 1),
        }


@dataclass(frozen=True, slots=True)
class AttackedService:
    """The service under attack. `fault` reaches its processes; None where they are not ours."""

    url: str
    key: str | None = None
    fault: Signal | None = None

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.key}"} if self.key else {}


async def torture(
    target: AttackedService, scenarios: Mapping[str, int], seed: int = 0
) -> AsyncIterator[ScenarioOutcome]:
    """Run scenarios, each with so many requests, one after the other."""
    for name, number in scenarios.items():
        outcome, began = ScenarioOutcome(name), time.monotonic()
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(
            base_url=target.url, timeout=HANG_S, limits=limits, trust_env=False
        ) as http:
            async with _watched_health(http, outcome):
                await SCENARIOS[name](target, http, outcome, number, random.Random(seed))
            await _check_alive(target, http, outcome)
        outcome.seconds = time.monotonic() - began
        yield outcome


def table(outcomes: list[ScenarioOutcome]) -> str:
    """The outcomes as a Markdown table."""
    rows = ["| scenario | requests | seen | held |", "| --- | --- | --- | --- |"]
    for one in outcomes:
        seen = ", ".join(f"{what} {times}" for what, times in sorted(one.seen.items()))
        held = "yes" if not one.broken else f"no: {'; '.join(one.broken[:3])}"
        rows.append(f"| {one.scenario} | {one.requests} | {seen} | {held} |")
    return "\n".join(rows)


# --- hostile ------------------------------------------------------------------------------------


def hostile_request(chance: random.Random) -> bytes:
    """One malformed request, or one that is well-formed and wrong, as it goes over the wire."""
    body: Any = {"model": MODEL, "messages": [{"role": "user", "content": "1+1"}], "max_tokens": 1}
    odd: list[Any] = [None, -1, 1e308, 2**70, "", "\x00", "é" * 99, [], {}, [[]], True, "NaN"]
    path, method, headers, raw = CHAT, "POST", dict[str, bytes](), None
    kind = chance.randrange(8)
    if kind == 0:  # a field of the wrong type
        body[chance.choice([*body, "stream", "stop", "seed", "tools", "policy", "n"])] = (
            chance.choice(odd)
        )
    elif kind == 1:  # an unknown field
        body["x" * chance.randint(1, 99)] = chance.choice(odd)
    elif kind == 2:  # deep nesting
        depth = chance.choice((40, 4000, 100_000))
        raw = b'{"a":' * depth + b"1" + b"}" * depth
    elif kind == 3:  # broken JSON
        whole = json.dumps(body).encode()
        at = chance.randrange(len(whole))
        raw = whole[:at] + bytes([chance.randrange(256)]) + whole[at + chance.randint(0, 2) :]
    elif kind == 4:  # bytes that are no text in a header
        name = chance.choice(("authorization", "x-request-id", "x-session-id", "traceparent", "x"))
        headers[name] = bytes(chance.randrange(128, 256) for _ in range(9))
    elif kind == 5:  # another path
        path = "/" + "".join(chance.choice("v1/.%2efoo~\\x?#&") for _ in range(20))
        method = chance.choice(("GET", "POST", "PUT", "DELETE", "PATCH", "TRACE"))
    elif kind == 6:  # messages that mean nothing
        body["messages"] = chance.choice(
            [[], [{}], [{"role": "x"}], [{"role": "user", "content": chance.choice(odd)}], "a", [1]]
        )
    else:  # a wrong type of content, or none
        headers["content-type"] = chance.choice((b"text/plain", b"", b"application/json; x=\xff"))
    sent = json.dumps(body).encode() if raw is None else raw
    lines = {"host": b"127.0.0.1", "content-type": b"application/json", "connection": b"close"}
    lines |= headers | {"content-length": str(len(sent)).encode()}
    head = b"".join(b"%s: %s\r\n" % (name.encode(), value) for name, value in lines.items())
    return b"%s %s HTTP/1.1\r\n%s\r\n%s" % (method.encode(), path.encode(), head, sent)


async def _hostile(
    target: AttackedService,
    http: httpx.AsyncClient,
    outcome: ScenarioOutcome,
    number: int,
    chance: random.Random,
) -> None:
    place = asyncio.Semaphore(8)

    async def send(request: bytes) -> None:
        async with place:
            outcome.requests += 1
            try:
                async with asyncio.timeout(HANG_S):
                    status, body = await _raw(target.url, request, target.headers)
            except TimeoutError:
                outcome.broken.append(f"no answer to {request[:80]!r}")
                return
        outcome.seen[str(status)] += 1
        if status >= 500 and status != 503:
            outcome.broken.append(f"{status} to {request[:80]!r}")
        elif status >= 400 and not request.startswith((b"TRACE", b"HEAD")) and not _is_error(body):
            outcome.broken.append(f"{status} not in OpenAI's form to {request[:80]!r}")

    await asyncio.gather(*(send(hostile_request(chance)) for _ in range(number)))


async def _raw(url: str, request: bytes, headers: Mapping[str, str]) -> tuple[int, bytes]:
    """The status and the body of what answers a request as it is; 0 where nothing does."""
    if b"\r\nauthorization: " not in request:
        given = "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode()
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
    """Whether a body holds an error in OpenAI's form; a server's own parser refuses in text."""
    start, end = body.find(b"{"), body.rfind(b"}")
    if body.startswith(b"Invalid HTTP request"):
        return True
    try:
        error = json.loads(body[start : end + 1])["error"]
        return bool({"message", "type", "param", "code"} <= error.keys())
    except (ValueError, KeyError, TypeError, AttributeError):
        return False


# --- large prompts, overload, faults --------------------------------------------------------------


async def _large(
    target: AttackedService,
    http: httpx.AsyncClient,
    outcome: ScenarioOutcome,
    number: int,
    chance: random.Random,
) -> None:
    said = await _ask(target, http)

    async def refused() -> None:
        reply = await _ask(target, http, content="12 + 34 is? " * 80_000)
        outcome.requests += 1
        outcome.seen[reply.kind] += 1
        if reply.kind not in ("400", "413", "429"):
            outcome.broken.append(f"{reply.kind} to a prompt of a megabyte: {reply.text[:80]}")

    flood = asyncio.gather(*(refused() for _ in range(number)))
    while not flood.done():
        reply = await _ask(target, http)
        outcome.requests += 1
        outcome.seen[f"user {reply.kind}"] += 1
        if (reply.kind, reply.text) != (said.kind, said.text):
            outcome.broken.append(f"a user got {reply.kind} {reply.text[:80]!r}")
    await flood


async def _overload(
    target: AttackedService,
    http: httpx.AsyncClient,
    outcome: ScenarioOutcome,
    number: int,
    chance: random.Random,
) -> None:
    said = await _ask(target, http)

    async def ask() -> None:
        reply = await _ask(target, http)
        outcome.requests += 1
        outcome.seen[reply.kind] += 1
        if reply.kind == "200":
            if reply.text != said.text:
                outcome.broken.append(f"another answer: {reply.text[:80]!r}")
        elif reply.kind not in ("429", "503") or reply.retry_after < 1:
            outcome.broken.append(f"{reply.kind} with Retry-After {reply.retry_after}")

    await asyncio.gather(*(ask() for _ in range(number)))


FAULTS: Final = (
    ("SmallWorker", signal.SIGKILL),
    ("LargeWorker", signal.SIGKILL),
    ("LargeWorker", signal.SIGSTOP),
    ("Orchestrator", signal.SIGKILL),
)
STOPPED_S: Final = 10.0


async def _faults(
    target: AttackedService,
    http: httpx.AsyncClient,
    outcome: ScenarioOutcome,
    number: int,
    chance: random.Random,
) -> None:
    assert target.fault is not None
    models = (MODEL, "specreason")
    said = {model: await _ask(target, http, model=model) for model in models}

    async def ask(model: str) -> None:
        reply = await _ask(target, http, model=model)
        outcome.requests += 1
        outcome.seen[reply.kind if not reply.degraded else "200 degraded"] += 1
        if reply.kind != "200":
            outcome.broken.append(f"{model}: {reply.kind} {reply.text[:80]}")
        elif reply.text != said[model].text and not reply.degraded:
            outcome.broken.append(f"{model}: another answer that does not say why")

    for (kind, sign), _ in zip(FAULTS, range(number), strict=False):
        running = asyncio.gather(*(ask(model) for model in models * 2))
        await asyncio.sleep(0.2)
        target.fault(kind, sign)
        if sign == signal.SIGSTOP:
            await asyncio.sleep(STOPPED_S)
            target.fault(kind, signal.SIGCONT)
        await running
        await _until_ready(http, outcome)


SCENARIOS: Final[Mapping[str, Callable[..., Awaitable[None]]]] = {
    "hostile": _hostile,
    "large": _large,
    "overload": _overload,
    "faults": _faults,
}


# --- what all of them need ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Reply:
    kind: str  # the status, or "lost"
    text: str
    retry_after: int = 0
    degraded: bool = False


async def _ask(
    target: AttackedService,
    http: httpx.AsyncClient,
    content: str = "12 + 34, then twice",
    **more: Any,
) -> _Reply:
    """A greedy answer, thought and all."""
    body = {"model": MODEL, "max_tokens": 200, "messages": [{"role": "user", "content": content}]}
    try:
        reply = await http.post(CHAT, json=body | more, headers=target.headers)
    except httpx.HTTPError as error:
        return _Reply("lost", type(error).__name__)
    if reply.status_code != 200:
        after = reply.headers.get("retry-after", "")
        return _Reply(str(reply.status_code), reply.text, int(after) if after.isdecimal() else 0)
    try:
        data = reply.json()
        message, extra = data["choices"][0]["message"], data["baton"]
    except (ValueError, KeyError, TypeError, IndexError):
        return _Reply("no answer of Baton's", reply.text)
    text = (message.get("reasoning_content") or "") + "|" + (message.get("content") or "")
    return _Reply("200", text, degraded=bool(extra.get("degraded")))


@asynccontextmanager
async def _watched_health(http: httpx.AsyncClient, outcome: ScenarioOutcome) -> AsyncIterator[None]:
    """Whether /health answers in time all the while."""
    slowest = 0.0

    async def watch() -> None:
        nonlocal slowest
        for _ in count():
            began = time.monotonic()
            try:
                await http.get("/health")
            except httpx.HTTPError:
                slowest = max(slowest, HANG_S)
            slowest = max(slowest, time.monotonic() - began)
            await asyncio.sleep(0.2)

    watching = asyncio.create_task(watch())
    try:
        yield
    finally:
        watching.cancel()
        await asyncio.wait({watching})
    outcome.seen[f"slowest /health {slowest:.1f} s"] = 1
    # A replica that was killed answers nothing until its successor does.
    if slowest > HEALTH_S and outcome.scenario != "faults":
        outcome.broken.append(f"/health took {slowest:.1f} s")


async def _check_alive(
    target: AttackedService, http: httpx.AsyncClient, outcome: ScenarioOutcome
) -> None:
    await _until_ready(http, outcome)
    reply = await _ask(target, http)
    if reply.kind != "200":
        outcome.broken.append(f"afterwards a user gets {reply.kind}: {reply.text[:80]}")


async def _until_ready(http: httpx.AsyncClient, outcome: ScenarioOutcome) -> None:
    until = time.monotonic() + HANG_S
    while time.monotonic() < until:
        try:
            if (await http.get("/ready")).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        await asyncio.sleep(0.5)
    outcome.broken.append(f"not ready within {HANG_S:g} s")
