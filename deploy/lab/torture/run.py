"""The scenarios by name, the service started for them, and their table."""

from __future__ import annotations

import os
import random
import secrets
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import aiohttp

from deploy.lab.torture.attack import HANG_S, Attack, AttackedService, ScenarioOutcome
from deploy.lab.torture.faults import faults, redis
from deploy.lab.torture.guesses import guesses
from deploy.lab.torture.hostile import hostile
from deploy.lab.torture.load import capacity, overload, soak
from deploy.lab.torture.own import OwnProcesses, OwnRedis

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


def table(outcomes: list[ScenarioOutcome]) -> str:
    """The outcomes as a Markdown table."""
    rows = ["| scenario | requests | seen | held |", "| --- | --- | --- | --- |"]
    for one in outcomes:
        seen = ", ".join(f"{what} {times}" for what, times in sorted(one.seen.items()))
        held = "yes" if not one.broken else f"no: {'; '.join(one.broken[:3])}"
        rows.append(f"| {one.scenario} | {one.requests} | {seen} | {held} |")
    return "\n".join(rows)


@contextmanager
def own_service() -> Iterator[AttackedService]:
    """Serve the local deployment on a free port, with two keys and a Redis, for the block."""
    import yaml

    from deploy.launch.environment import prepare

    prepare()  # before the imports below, which import ray
    from deploy.launch.cluster import serving
    from deploy.launch.deployment_file import DEFAULT_FILE, load

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with ExitStack() as owned:
        folder = Path(owned.enter_context(TemporaryDirectory(prefix="bt-")))
        store = owned.enter_context(closing(OwnRedis(folder)))
        document = yaml.safe_load(DEFAULT_FILE.read_text(encoding="utf-8"))
        key, other_key = secrets.token_hex(16), secrets.token_hex(16)
        os.environ[KEYS] = f"{key},{other_key}"
        args = document["applications"][0].setdefault("args", {})
        args |= {"auth": {"api_keys_env": KEYS}, "store": store.url}
        file = folder / "torture.yaml"
        file.write_text(yaml.safe_dump(document), encoding="utf-8")
        deployment = load(file, port=port)
        service = owned.enter_context(serving(deployment, ready_s=300, on_ray=_end_on_sigterm))
        yield AttackedService(service.url, key, other_key, OwnProcesses(), store)


def _end_on_sigterm() -> None:
    """End by SIGTERM as by Ctrl-C, with all that was started; Ray's handler would leave it."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
