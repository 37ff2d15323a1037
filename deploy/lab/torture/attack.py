"""A question to the service under attack, and the outcome of a scenario."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final

import aiohttp

from deploy.lab.torture.own import AttackedService

HANG_S: Final = 60.0  # a longer wait counts as no answer
LOST: Final = (aiohttp.ClientError, TimeoutError)  # errors of a request without an answer
HEALTH_S: Final = 1.0  # limit for /health under every attack
CHAT: Final = "/v1/chat/completions"
MODEL: Final = "large-only"
QUESTION: Final = "12 + 34, then twice"


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer; its kind is the status, "lost" without its connection, "cut" by an error event."""

    kind: str
    text: str
    retry_after: int = 0
    degraded: bool = False
    seconds: float = 0.0


@dataclass(slots=True)
class ScenarioOutcome:
    """The requests of a scenario, what was seen, and in words what did not hold."""

    scenario: str
    requests: int = 0
    seen: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)

    def count(self, reply: Reply, who: str = "") -> None:
        """Count a request by its answer."""
        self.requests += 1
        degraded = " degraded" if reply.degraded else ""
        self.seen[f"{who} {reply.kind}{degraded}".strip()] += 1

    def row(self) -> list[str]:
        """A row of the table."""
        seen = ", ".join(f"{what} {times}" for what, times in sorted(self.seen.items()))
        held = "yes" if not self.broken else f"no: {'; '.join(self.broken[:3])}"
        return [self.scenario, f"{self.requests}", held, seen]


@dataclass(frozen=True, slots=True)
class Attack:
    """One run of a scenario.

    Args:
        number: requests, faults, states or seconds, by the scenario.
        say: gets lines about the progress of a long scenario.
    """

    target: AttackedService
    http: aiohttp.ClientSession
    outcome: ScenarioOutcome
    number: int
    chance: random.Random
    say: Callable[[str], object] = str

    async def ask(self, content: str = QUESTION, *, stream: bool = False, **more: Any) -> Reply:
        """A greedy answer with its thought."""
        sent, began = self._post(content, stream=stream, **more), time.monotonic()
        try:
            async with sent as got:
                status, headers, answer = got.status, got.headers, await got.read()
        except LOST as error:
            return Reply("lost", type(error).__name__, seconds=time.monotonic() - began)
        seconds = time.monotonic() - began
        if status == 200:
            return replace((_streamed if stream else _whole)(answer), seconds=seconds)
        after = headers.get("retry-after", "")
        later = int(after) if after.isdecimal() else 0
        return Reply(str(status), answer.decode(errors="replace"), later, seconds=seconds)

    def _post(self, content: str, **more: Any) -> Any:
        message = {"role": "user", "content": content}
        body = {"model": MODEL, "max_tokens": 200, "messages": [message], **more}
        headers = {"content-type": "application/json"}
        if self.target.key:
            headers["authorization"] = f"Bearer {self.target.key}"
        return self.http.post(self.target.url + CHAT, data=json.dumps(body), headers=headers)

    async def until_ready(self) -> None:
        """Wait until the service is ready and has its store, within `HANG_S`."""
        until = time.monotonic() + HANG_S
        while time.monotonic() < until:
            # While a replica is replaced, another server may answer.
            with suppress(*LOST, ValueError, KeyError, TypeError):
                async with self.http.get(f"{self.target.url}/ready") as reply:
                    if reply.status == 200 and json.loads(await reply.read())["degraded"] is False:
                        return
            await asyncio.sleep(0.5)
        self.outcome.broken.append(f"not ready, or without its store, for {HANG_S:g} s")

    async def check_alive(self) -> None:
        """Check that a user is answered after the attack."""
        await self.until_ready()
        reply = await self.ask()
        if reply.kind != "200":
            what = f"afterwards a user gets {reply.kind}: {reply.text[:80]}"
            self.outcome.broken.append(what)

    @asynccontextmanager
    async def watched_health(self) -> AsyncIterator[None]:
        """Check during the block that /health answers 200 in time."""
        slowest, ill = 0.0, list[int]()

        async def watch() -> None:
            nonlocal slowest
            while True:
                began = time.monotonic()
                try:
                    async with self.http.get(f"{self.target.url}/health") as reply:
                        await reply.read()
                    ill.extend([reply.status] * (reply.status != 200))
                except LOST:
                    slowest = max(slowest, HANG_S)
                slowest = max(slowest, time.monotonic() - began)
                await asyncio.sleep(0.2)

        watching = asyncio.create_task(watch())
        try:
            yield
        finally:
            watching.cancel()
            await asyncio.wait({watching})
        self.outcome.seen[f"slowest /health {slowest:.1f} s"] = 1
        if self.outcome.scenario == "faults":  # a killed replica answers after its replacement
            return
        if slowest > HEALTH_S:
            self.outcome.broken.append(f"/health took {slowest:.1f} s")
        if ill:
            self.outcome.broken.append(f"/health answered {ill[0]}, {len(ill)} times not 200")


def _whole(answer: bytes) -> Reply:
    """An answer in one piece."""
    try:
        data = json.loads(answer)
        said, extra = data["choices"][0]["message"], data["baton"]
    except (ValueError, KeyError, TypeError, IndexError):
        return Reply("no answer of Baton's", answer.decode(errors="replace"))
    text = (said.get("reasoning_content") or "") + "|" + (said.get("content") or "")
    return Reply("200", text, 0, bool(extra.get("degraded")))


def _streamed(answer: bytes) -> Reply:
    """An answer as events; lost unless a finish reason and `[DONE]` end it."""
    said = answer.decode(errors="replace").splitlines()
    lines = [line.removeprefix("data: ") for line in said if line.startswith("data: ")]
    thought, text, finished, degraded = "", "", False, False
    try:
        for event in (json.loads(line) for line in lines if line != "[DONE]"):
            if "error" in event:
                return Reply("cut", event["error"]["message"])
            degraded |= bool(event.get("baton", {}).get("degraded"))
            for choice in event["choices"]:
                thought += choice["delta"].get("reasoning_content") or ""
                text += choice["delta"].get("content") or ""
                finished |= choice["finish_reason"] is not None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return Reply("no answer of Baton's", repr(error))
    kind = "200" if finished and lines[-1] == "[DONE]" else "lost"
    return Reply(kind, f"{thought}|{text}", degraded=degraded)
