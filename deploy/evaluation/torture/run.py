"""The scenarios by name, one after the other, and their table."""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from itertools import cycle
from typing import Final

import httpx

from deploy.evaluation.torture.attack import HANG_S, Attack, AttackedService, ScenarioOutcome
from deploy.evaluation.torture.faults import faults
from deploy.evaluation.torture.guesses import guesses
from deploy.evaluation.torture.hostile import hostile
from deploy.evaluation.torture.load import capacity, flood, large, overload, soak
from deploy.evaluation.torture.states import bad_states

SCENARIOS: Final[Mapping[str, Callable[[Attack], Awaitable[None]]]] = {
    "hostile": hostile,
    "guesses": guesses,
    "large": large,
    "overload": overload,
    "capacity": capacity,
    "flood": flood,
    "faults": faults,
    **dict.fromkeys(("redis", "disk", "clock", "memory"), bad_states),
    "soak": soak,
}

POOLS: Final = 32


class ManyPools(httpx.AsyncBaseTransport):
    """Connections without limit in many pools, in turn: a pool looks at all of its connections for
    each request, which with hundreds of them takes more than the request itself."""

    def __init__(self) -> None:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=20)
        self._pools = [
            httpx.AsyncHTTPTransport(limits=limits, trust_env=False) for _ in range(POOLS)
        ]
        self._turn = cycle(self._pools)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return await next(self._turn).handle_async_request(request)

    async def aclose(self) -> None:
        for pool in self._pools:
            await pool.aclose()


async def torture(
    target: AttackedService,
    scenarios: Mapping[str, int],
    seed: int = 0,
    say: Callable[[str], object] = str,
) -> AsyncIterator[ScenarioOutcome]:
    """Run scenarios, each of the given size, one after the other; `say` hears how far they are."""
    for name, number in scenarios.items():
        outcome, began = ScenarioOutcome(name), time.monotonic()
        async with httpx.AsyncClient(
            base_url=target.url, timeout=2 * HANG_S, transport=ManyPools(), trust_env=False
        ) as http:
            attack = Attack(target, http, outcome, number, random.Random(seed), say)
            async with attack.watched_health():
                await SCENARIOS[name](attack)
            await attack.check_alive()
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
