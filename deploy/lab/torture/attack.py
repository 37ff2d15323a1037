"""A service under attack, what was seen of it, and the object that every scenario is given."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, Final, Protocol

import aiohttp

HANG_S: Final = 60.0  # an answer that takes longer never comes
LOST: Final = (aiohttp.ClientError, TimeoutError)  # what a request that gets no answer raises
HEALTH_S: Final = 1.0  # within which /health answers whatever happens
CHAT: Final = "/v1/chat/completions"
MODEL: Final = "large-only"
MAY_LOSE_A_REPLICA: Final = {"faults", "memory"}  # then /health may wait for another
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


class Experiments(Protocol):
    """The experiments of a service of one's own."""

    async def start(self, events: int, chance: random.Random) -> str:
        """Begin one that has so many events; the path of its report."""
        ...

    async def stop(self) -> None:
        """End it."""
        ...


class BadStates(Protocol):
    """Something of one's own that can be brought into bad states, by name, and out of them.

    `refusals`: how requests may be refused meanwhile, by status. `begin` raises LookupError where
    what the state would befall is not there now.
    """

    @property
    def states(self) -> Sequence[str]: ...

    @property
    def refusals(self) -> Sequence[str]: ...

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

    `other_key` is somebody else's, `observer_key` of who may read metrics. `processes` and
    `experiments` are None where they are not ours; `states` by the name of the scenario that brings
    them about.
    """

    url: str
    key: str | None = None
    other_key: str | None = None
    observer_key: str | None = None
    processes: Processes | None = None
    experiments: Experiments | None = None
    states: Mapping[str, BadStates] = field(default_factory=dict)

    @property
    def headers(self) -> dict[str, str]:
        return bearer(self.key)


def bearer(key: str | None) -> dict[str, str]:
    """The headers of a request with this key."""
    return {"authorization": f"Bearer {key}"} if key else {}


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer: its kind, its text, and what else was said.

    `kind`: the status; "lost" where the connection was, "cut" where an error event ended a stream.
    """

    kind: str
    text: str
    retry_after: int = 0
    degraded: bool = False
    cached: int = 0  # tokens of the prompt that were said to be cached
    seconds: float = 0.0


def _whole(answer: bytes) -> Reply:
    """An answer in one piece."""
    try:
        data = json.loads(answer)
        said, extra = data["choices"][0]["message"], data["baton"]
        details = (data.get("usage") or {}).get("prompt_tokens_details") or {}
    except (ValueError, KeyError, TypeError, IndexError, AttributeError):
        return Reply("no answer of Baton's", answer.decode(errors="replace"))
    text = (said.get("reasoning_content") or "") + "|" + (said.get("content") or "")
    cached = int(details.get("cached_tokens") or 0)
    return Reply("200", text, 0, bool(extra.get("degraded")), cached)


def _exposition(answer: bytes) -> Reply:
    """Metrics of the service, in Prometheus' text format."""
    text = answer.decode(errors="replace")
    return Reply("200" if "\nbaton_requests_total" in text else "no metrics of Baton's", text)


def _report(answer: bytes) -> Reply:
    """An experiment's report; its text says how many requests it is over."""
    try:
        data = json.loads(answer)
        return Reply("200", str(sum(arm["ms"]["requests"] for arm in data["arms"].values())))
    except (ValueError, KeyError, TypeError, AttributeError):
        return Reply("no report of Baton's", answer.decode(errors="replace"))


def _streamed(answer: bytes) -> Reply:
    """An answer as events; one that does not say how it finished, or that it is done, is lost."""
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


@dataclass(frozen=True, slots=True)
class Attack:
    """One run of a scenario: what it attacks and by which client, how much, and what it saw.

    Args:
        number: requests, faults, states or seconds, whatever the scenario counts.
        chance: all that is random in it.
        say: is told in words how far a long scenario has come.
    """

    target: AttackedService
    http: aiohttp.ClientSession
    outcome: ScenarioOutcome
    number: int
    chance: random.Random
    say: Callable[[str], object] = str

    def at(self, path: str) -> str:
        """The URL of a path of the service."""
        return self.target.url + path

    @staticmethod
    def body(content: str = QUESTION, **more: Any) -> bytes:
        """A question that is answered greedily."""
        message = {"role": "user", "content": content}
        body = {"model": MODEL, "max_tokens": 200, "messages": [message], **more}
        return json.dumps(body).encode()

    async def ask(self, content: str = QUESTION, key: str | None = None, **more: Any) -> Reply:
        """An answer, thought and all; `key` instead of the service's own."""
        return await self.send(self.body(content, **more), key)

    async def stream(self, content: str = QUESTION, **more: Any) -> Reply:
        """An answer as a stream: whole where it says how it finished, and that it is done."""
        return await self.send(self.body(content, stream=True, **more), read=_streamed)

    async def send(
        self,
        body: bytes,
        key: str | None = None,
        read: Callable[[bytes], Reply] = _whole,
    ) -> Reply:
        """What a body is answered; `read` makes the reply of what has status 200."""
        headers = self.target.headers if key is None else bearer(key)
        headers["content-type"] = "application/json"
        return await self._request("POST", CHAT, headers, body, read)

    async def scrape(self) -> Reply:
        """What /metrics answers."""
        return await self._observe("/metrics", _exposition)

    async def report(self, path: str) -> Reply:
        """An experiment's report."""
        return await self._observe(path, _report)

    async def _observe(self, path: str, read: Callable[[bytes], Reply]) -> Reply:
        headers = bearer(self.target.observer_key or self.target.key)
        return await self._request("GET", path, headers, None, read)

    async def _request(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes | None,
        read: Callable[[bytes], Reply],
    ) -> Reply:
        began = time.monotonic()
        try:
            sent = self.http.request(method, self.at(path), data=body, headers=headers)
            async with sent as reply:
                status, told, answer = reply.status, reply.headers, await reply.read()
        except LOST as error:
            return Reply("lost", type(error).__name__, seconds=time.monotonic() - began)
        seconds = time.monotonic() - began
        if status != 200:
            after = told.get("retry-after", "")
            later = int(after) if after.isdecimal() else 0
            return Reply(str(status), answer.decode(errors="replace"), later, seconds=seconds)
        return replace(read(answer), seconds=seconds)

    async def leave(self, content: str, **more: Any) -> None:
        """Ask for a stream and go away at its first bytes."""
        headers = self.target.headers | {"content-type": "application/json"}
        body = self.body(content, stream=True, **more)
        with suppress(*LOST):
            async with self.http.post(self.at(CHAT), data=body, headers=headers) as reply:
                await reply.content.readany()
                reply.close()

    async def until_ready(self) -> None:
        """Wait until the service is ready, within `HANG_S`."""
        until = time.monotonic() + HANG_S
        while time.monotonic() < until:
            with suppress(*LOST):
                async with self.http.get(self.at("/ready")) as reply:
                    if reply.status == 200:
                        return
            await asyncio.sleep(0.5)
        self.outcome.broken.append(f"not ready within {HANG_S:g} s")

    async def check_alive(self) -> None:
        """A user is answered, now that it is over."""
        await self.until_ready()
        reply = await self.ask()
        if reply.kind != "200":
            what = f"afterwards a user gets {reply.kind}: {reply.text[:80]}"
            self.outcome.broken.append(what)

    @asynccontextmanager
    async def watched_health(self) -> AsyncIterator[None]:
        """Whether /health answers in time, and well, all the while."""
        slowest, ill = 0.0, list[int]()

        async def watch() -> None:
            nonlocal slowest
            for _ in count():
                began = time.monotonic()
                try:
                    async with self.http.get(self.at("/health")) as reply:
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
        # A replica that was killed answers nothing until its successor does.
        if self.outcome.scenario in MAY_LOSE_A_REPLICA:
            return
        if slowest > HEALTH_S:
            self.outcome.broken.append(f"/health took {slowest:.1f} s")
        if ill:
            self.outcome.broken.append(f"/health answered {ill[0]}, {len(ill)} times not 200")


def percentile(values: list[float], share: float) -> float:
    """The value below which a share of them lies; 0 where there are none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0
