"""The scenarios by name, one after the other, and their table."""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Final

import aiohttp

from deploy.lab.torture.attack import HANG_S, Attack, AttackedService, ScenarioOutcome
from deploy.lab.torture.faults import faults
from deploy.lab.torture.guesses import guesses
from deploy.lab.torture.hostile import hostile
from deploy.lab.torture.load import (
    capacity,
    flood,
    large,
    overload,
    reports,
    scrapes,
    soak,
)
from deploy.lab.torture.states import bad_states

SCENARIOS: Final[Mapping[str, Callable[[Attack], Awaitable[None]]]] = {
    "hostile": hostile,
    "guesses": guesses,
    "large": large,
    "scrapes": scrapes,
    "reports": reports,
    "overload": overload,
    "capacity": capacity,
    "flood": flood,
    "faults": faults,
    **dict.fromkeys(("redis", "disk", "clock", "memory"), bad_states),
    "soak": soak,
}


def client() -> aiohttp.ClientSession:
    """What attacks a service: connections without limit, which are kept.

    An attacker on the service's own cores must take little of them: with 80 requests at once one
    takes aiohttp a fourth of httpx's time.
    """
    times = aiohttp.ClientTimeout(sock_connect=2 * HANG_S, sock_read=2 * HANG_S)
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=times,
    )


async def torture(
    target: AttackedService,
    scenarios: Mapping[str, int],
    seed: int = 0,
    say: Callable[[str], object] = str,
) -> AsyncIterator[ScenarioOutcome]:
    """Run scenarios, each of the given size, one after the other; `say` hears how far they are."""
    for name, number in scenarios.items():
        outcome, began = ScenarioOutcome(name), time.monotonic()
        async with client() as http:
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
