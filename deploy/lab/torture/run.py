"""The scenarios by name, the service started for them, and their table."""

from __future__ import annotations

import random
import secrets
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from operator import itemgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import aiohttp

from deploy.evaluation.tables import Column
from deploy.lab.peers import servers
from deploy.lab.torture.attack import HANG_S, Attack, AttackedService, ScenarioOutcome
from deploy.lab.torture.faults import faults, redis
from deploy.lab.torture.guesses import guesses
from deploy.lab.torture.hostile import hostile
from deploy.lab.torture.load import capacity, overload, soak
from deploy.lab.torture.own import OwnProcesses, OwnRedis
from deploy.launch.deployment_file import DEFAULT_FILE

SCENARIOS: Final[Mapping[str, tuple[Callable[[Attack], Awaitable[None]], int]]] = {
    "hostile": (hostile, 10_000),
    "guesses": (guesses, 1000),
    "overload": (overload, 1000),
    "capacity": (capacity, 300),
    "faults": (faults, 15),
    "redis": (redis, 6),
    "soak": (soak, 3600),
}
"""With their sizes: requests, faults, states of redis, or seconds of capacity and soak."""
OWN: Final = ("faults", "redis", "soak")
"""Scenarios that need a service started for them."""
KEYS: Final = "BATON_TORTURE_KEYS"


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


COLUMNS: Final[list[Column]] = [
    (name, itemgetter(name)) for name in ("scenario", "requests", "held", "seen")
]


@contextmanager
def own_service() -> Iterator[AttackedService]:
    """Serve the local deployment on a free port, with two keys and a Redis, for the block."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # end what was started, as by Ctrl-C
    key, other_key = secrets.token_hex(16), secrets.token_hex(16)
    with ExitStack() as owned:
        folder = Path(owned.enter_context(TemporaryDirectory(prefix="bt-")))
        store = owned.enter_context(closing(OwnRedis(folder)))
        changes = {"auth": {"api_keys_env": KEYS}, "store": store.url}
        how = servers.baton(DEFAULT_FILE, folder, lambda args: args.update(changes))
        how |= {"env": {KEYS: f"{key},{other_key}"}, "log": folder / "log"}
        server = owned.enter_context(servers.running(**how))
        processes = OwnProcesses(server.process.pid)
        yield AttackedService(server.url, key, other_key, processes, store)
