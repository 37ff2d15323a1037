"""A real redis-server on a loopback port, with a folder of its own, for as long as a block."""

from __future__ import annotations

import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry


class RedisServer:
    """A server that can be stopped, started again, frozen and asked by its administrator."""

    def __init__(self, folder: Path, *options: str, tls_port: int | None = None) -> None:
        self.folder, self.port, self.tls_port = folder, _free_port(), tls_port
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def admin(self) -> redis.Redis:
        """A connection of its own, with the rights of the default user."""
        return redis.Redis(port=self.port, socket_timeout=60, retry=Retry(NoBackoff(), 0))

    def start(self) -> None:
        """Start, with whatever is left in the folder."""
        options = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder)]
        options += ["--save", "", "--appendonly", "no", *self._options]
        self._process = subprocess.Popen(
            ["redis-server", *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        until = time.monotonic() + 120
        while time.monotonic() < until:
            try:
                self.admin.ping()
            except redis.BusyLoadingError:
                return  # it is there, and says so until it has read its file
            except redis.ConnectionError:
                time.sleep(0.02)
            except redis.RedisError:
                return  # it wants a password: it is there
            else:
                return
        raise AssertionError("redis-server did not start")

    def stop(self) -> None:
        """At once, and with everything it held."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(60)
            self._process = None

    def freeze(self) -> None:
        """It takes connections and never answers."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)


@contextmanager
def redis_server(*options: str) -> Iterator[RedisServer]:
    with tempfile.TemporaryDirectory() as folder:
        server = RedisServer(Path(folder), *options)
        try:
            yield server
        finally:
            server.stop()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
