"""A redis-server of one's own in bad states."""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import redis

from orchestrator.errors import WorkerError

STATES: Final = ("hung", "gone", "restarted", "wiped", "read-only", "full")
START_S: Final = 10.0


class OwnRedis:
    """A redis-server of one's own, whose data outlive a restart."""

    states: Sequence[str] = STATES
    refusals: Sequence[str] = ()

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
            self._process = subprocess.Popen(
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
        self._end()  # it may still be loading, and nobody else knows of it
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
def own_redis(within: Path | None = None) -> Iterator[OwnRedis]:
    """A redis-server for as long as the block, its data in a folder `within` that one.

    Raises:
        WorkerError: there is no redis-server, or it does not start.
    """
    with TemporaryDirectory(prefix="redis-", dir=within) as folder:
        server = OwnRedis(Path(folder))
        try:
            yield server
        finally:
            server.close()
