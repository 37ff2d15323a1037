"""The scenarios by name, one after the other."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Final

import aiohttp

from deploy.lab.torture.attack import HANG_S, Attack, ScenarioOutcome
from deploy.lab.torture.faults import faults
from deploy.lab.torture.load import capacity, overload
from deploy.lab.torture.own import AttackedService

SCENARIOS: Final[Mapping[str, tuple[Callable[[Attack], Awaitable[None]], int]]] = {
    "overload": (overload, 1000),
    "capacity": (capacity, 300),
    "faults": (faults, 15),
}
"""With their sizes: requests, faults, or seconds of capacity."""
OWN: Final = ("faults",)
"""Scenarios that need a service started for them."""


def client() -> aiohttp.ClientSession:
    """A client with unlimited connections, which are kept.

    An attacker on the service's cores must use little CPU: with 80 requests at once one takes
    aiohttp a fourth of httpx's time.
    """
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(sock_connect=2 * HANG_S, sock_read=2 * HANG_S),
    )


async def torture(
    target: AttackedService, scenarios: Mapping[str, int], say: Callable[[str], object] = str
) -> AsyncIterator[ScenarioOutcome]:
    """Run scenarios, each of the given size, one after the other; `say` gets their progress."""
    for name, number in scenarios.items():
        outcome, (scenario, _) = ScenarioOutcome(name), SCENARIOS[name]
        async with client() as http:
            attack = Attack(target, http, outcome, number, random.Random(0), say)
            async with attack.watched_health():
                await scenario(attack)
            await attack.check_alive()
        yield outcome
