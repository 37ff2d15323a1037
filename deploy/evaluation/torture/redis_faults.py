"""A Redis in bad states under streams: answers stay whole, and the service finds it again."""

from __future__ import annotations

import asyncio
import random
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import httpx
import redis

from deploy.evaluation.torture.attack import (
    HANG_S,
    AttackedService,
    ScenarioOutcome,
    ask,
    until_ready,
)
from deploy.evaluation.torture.faults import MODELS, streams
from orchestrator.errors import WorkerError

STATES: Final = ("hung", "gone", "restarted", "wiped", "read-only", "full")
STATE_S: Final = 5.0  # that a state lasts
START_S: Final = 10.0


class OwnRedis:
    """A redis-server of one's own, whose data outlive a restart."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self._port}/0"
        self._admin = redis.Redis(port=self._port, socket_timeout=5)
        self._start()

    def _start(self) -> None:
        options = ["--port", str(self._port), "--bind", "127.0.0.1", "--appendonly", "yes"]
        try:
            self._process = subprocess.Popen(  # noqa: S603 nothing in it is a user's
                ["redis-server", *options, "--dir", str(self._folder)],  # noqa: S607
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        except FileNotFoundError:
            raise WorkerError("the scenario redis needs redis-server: apt install it") from None
        until = time.monotonic() + START_S
        while time.monotonic() < until:
            try:
                self._admin.ping()
                return
            except redis.RedisError:
                time.sleep(0.05)
        raise WorkerError(f"redis-server did not start within {START_S:g} s")

    def begin(self, state: str) -> None:
        """Bring it into a state of `STATES`."""
        match state:
            case "hung":
                self._process.send_signal(signal.SIGSTOP)
            case "gone":
                self._end()
            case "restarted":
                self._end()
                self._start()
            case "wiped":
                self._admin.flushall()
            case "read-only":
                self._admin.config_set("min-replicas-to-write", 1)
            case "full":
                self._admin.config_set("maxmemory", 1)

    def end(self, state: str) -> None:
        """Bring it out of a state."""
        match state:
            case "hung":
                self._process.send_signal(signal.SIGCONT)
            case "gone":
                self._start()
            case "read-only":
                self._admin.config_set("min-replicas-to-write", 0)
            case "full":
                self._admin.config_set("maxmemory", 0)

    def _end(self) -> None:
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        self._process.send_signal(signal.SIGCONT)
        self._end()
        self._admin.close()


@contextmanager
def own_redis() -> Iterator[OwnRedis]:
    """A redis-server for as long as the block.

    Raises:
        WorkerError: there is no redis-server, or it does not start.
    """
    with TemporaryDirectory(prefix="baton-redis-") as folder:
        server = OwnRedis(Path(folder))
        try:
            yield server
        finally:
            server.close()


async def redis_faults(
    target: AttackedService,
    http: httpx.AsyncClient,
    outcome: ScenarioOutcome,
    number: int,
    chance: random.Random,
) -> None:
    """So many bad states, one after the other."""
    assert target.store is not None
    said = {model: await ask(target, http, model=model) for model in MODELS}
    for state in (STATES[n % len(STATES)] for n in range(number)):
        outcome.seen[f"Redis {state}"] += 1
        running = streams(target, http, outcome, said, f"Redis {state}")
        await asyncio.to_thread(target.store.begin, state)
        await asyncio.sleep(STATE_S)
        later = streams(target, http, outcome, said, f"Redis {state}, later")
        await asyncio.gather(running, later)
        await asyncio.to_thread(target.store.end, state)
        await until_ready(http, outcome)
        if not await _follows_again(http):
            outcome.broken.append(f"after Redis {state}: /ready says degraded for {HANG_S:g} s")


async def _follows_again(http: httpx.AsyncClient) -> bool:
    """Whether the service has its store again, within `HANG_S` seconds."""
    until = time.monotonic() + HANG_S
    while time.monotonic() < until:
        said: dict[str, Any] = (await http.get("/ready")).json()
        if said.get("status") != "degraded":
            return True
        await asyncio.sleep(0.5)
    return False
