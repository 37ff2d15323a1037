"""A service that is started to be attacked: its processes and its redis-server."""

from __future__ import annotations

import secrets
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import psutil
import redis

from deploy.lab.peers.servers import baton
from deploy.lab.processes import free_port, running
from deploy.launch.deployment_file import DEFAULT_FILE
from orchestrator.errors import WorkerError

KINDS: Final = ("SmallWorker", "LargeWorker", "Orchestrator", "ServeController", "ProxyActor")
STATES: Final = ("hung", "gone", "restarted", "wiped", "read-only", "full")
START_S: Final = 10.0
KEYS: Final = "BATON_TORTURE_KEYS"


class OwnProcesses:
    """The processes below a service's first one, by kind."""

    def __init__(self, root: int) -> None:
        self._root = root

    def signal(self, kind: str, sign: signal.Signals) -> Callable[[signal.Signals], None]:
        """Send a signal to the oldest process of a kind; return what sends it another.

        Raises:
            LookupError: there is none.
        """
        for one in sorted(self._tree(), key=lambda one: one.pid):
            with suppress(psutil.Error):
                line = " ".join(one.cmdline())
                if line.startswith("ray::") and kind in line:
                    one.send_signal(sign)
                    return partial(_signal_again, one)
        raise LookupError(kind)

    def _tree(self) -> list[psutil.Process]:
        tree: list[psutil.Process] = psutil.Process(self._root).children(recursive=True)
        return tree


def _signal_again(process: psutil.Process, sign: signal.Signals) -> None:
    with suppress(psutil.NoSuchProcess):  # Serve took it for dead and replaced it
        process.send_signal(sign)


class OwnRedis:
    """A redis-server with its data in a folder, and its bad states.

    Raises:
        WorkerError: it is not installed, or does not start.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = free_port()
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
            raise WorkerError("torture needs redis-server: apt install it") from None
        until = time.monotonic() + START_S
        while time.monotonic() < until:
            with suppress(redis.RedisError):
                self._admin.ping()
                return
            time.sleep(0.05)
        self._end()
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
        self._end()
        self._admin.close()


@contextmanager
def own_service() -> Iterator[tuple[str, str, OwnProcesses, OwnRedis]]:
    """Serve the local deployment on a free port, with a key and a Redis: address, key, both."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # end what was started, as by Ctrl-C
    key = secrets.token_hex(16)
    with ExitStack() as owned:
        folder = Path(owned.enter_context(TemporaryDirectory(prefix="bt-")))
        store = owned.enter_context(closing(OwnRedis(folder)))
        changes = {"auth": {"api_keys_env": KEYS}, "store": store.url}
        how = replace(
            baton(DEFAULT_FILE, folder, lambda args: args.update(changes)), env={KEYS: key}
        )
        server = owned.enter_context(running(replace(how, env={KEYS: key}), folder / "log"))
        yield server.url, key, OwnProcesses(server.process.pid), store
