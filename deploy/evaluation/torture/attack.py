"""A service under attack, what was seen of it, and one question to it."""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final, Protocol

import httpx

HANG_S: Final = 60.0  # an answer that takes longer never comes
HEALTH_S: Final = 1.0  # within which /health answers whatever happens
CHAT: Final = "/v1/chat/completions"
MODEL: Final = "large-only"
MAY_LOSE_A_REPLICA: Final = {"faults", "redis"}  # then /health may wait for another
QUESTION: Final = "12 + 34, then twice"


class Processes(Protocol):
    """The processes of a service of one's own."""

    def signal(self, kind: str, sign: signal.Signals) -> Callable[[signal.Signals], None]:
        """Send a signal to one process of a kind, and return what sends it another.

        Raises:
            LookupError: there is none.
        """
        ...

    def levels(self) -> Mapping[str, float]:
        """What all of them hold: memory in MiB, descriptors, threads."""
        ...


class StoreFaults(Protocol):
    """A store of one's own that can be brought into bad states, by name, and out of them."""

    def begin(self, state: str) -> None: ...

    def end(self, state: str) -> None: ...


@dataclass(slots=True)
class ScenarioOutcome:
    """What a scenario saw; `broken` says in words what did not hold."""

    scenario: str
    requests: int = 0
    seen: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def count(self, reply: Reply, who: str = "") -> None:
        """One more request, and how it was answered."""
        self.requests += 1
        degraded = " degraded" if reply.degraded else ""
        self.seen[f"{who} {reply.kind}{degraded}".strip()] += 1

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
    """The service under attack.

    `other_key` is somebody else's. `processes` and `store` are None where they are not ours.
    """

    url: str
    key: str | None = None
    other_key: str | None = None
    processes: Processes | None = None
    store: StoreFaults | None = None

    @property
    def headers(self) -> dict[str, str]:
        return bearer(self.key)


def bearer(key: str | None) -> dict[str, str]:
    """The headers of a request with this key."""
    return {"authorization": f"Bearer {key}"} if key else {}


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer: its status or "lost", its text, and what else was said."""

    kind: str  # the status, or "lost"
    text: str
    retry_after: int = 0
    degraded: bool = False
    cached: int = 0  # tokens of the prompt that were said to be cached
    seconds: float = 0.0


async def ask(
    target: AttackedService,
    http: httpx.AsyncClient,
    content: str = QUESTION,
    key: str | None = None,
    **more: Any,
) -> Reply:
    """A greedy answer, thought and all; `key` instead of the service's own."""
    body = {"model": MODEL, "max_tokens": 200, "messages": [{"role": "user", "content": content}]}
    began = time.monotonic()
    try:
        headers = target.headers if key is None else bearer(key)
        reply = await http.post(CHAT, json=body | more, headers=headers)
    except httpx.HTTPError as error:
        return Reply("lost", type(error).__name__)
    seconds = time.monotonic() - began
    if reply.status_code != 200:
        after = reply.headers.get("retry-after", "")
        later = int(after) if after.isdecimal() else 0
        return Reply(str(reply.status_code), reply.text, later, seconds=seconds)
    try:
        data = reply.json()
        message, extra = data["choices"][0]["message"], data["baton"]
        details = (data.get("usage") or {}).get("prompt_tokens_details") or {}
    except (ValueError, KeyError, TypeError, IndexError, AttributeError):
        return Reply("no answer of Baton's", reply.text)
    text = (message.get("reasoning_content") or "") + "|" + (message.get("content") or "")
    cached = int(details.get("cached_tokens") or 0)
    return Reply("200", text, 0, bool(extra.get("degraded")), cached, seconds)


def percentile(values: list[float], share: float) -> float:
    """The value below which a share of them lies; 0 where there are none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


@asynccontextmanager
async def watched_health(http: httpx.AsyncClient, outcome: ScenarioOutcome) -> AsyncIterator[None]:
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
    if slowest > HEALTH_S and outcome.scenario not in MAY_LOSE_A_REPLICA:
        outcome.broken.append(f"/health took {slowest:.1f} s")


async def check_alive(
    target: AttackedService, http: httpx.AsyncClient, outcome: ScenarioOutcome
) -> None:
    await until_ready(http, outcome)
    reply = await ask(target, http)
    if reply.kind != "200":
        outcome.broken.append(f"afterwards a user gets {reply.kind}: {reply.text[:80]}")


async def until_ready(http: httpx.AsyncClient, outcome: ScenarioOutcome) -> None:
    until = time.monotonic() + HANG_S
    while time.monotonic() < until:
        try:
            if (await http.get("/ready")).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        await asyncio.sleep(0.5)
    outcome.broken.append(f"not ready within {HANG_S:g} s")
