"""The processes and the redis-server of a service that was started to be attacked."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

import redis

from deploy.lab.peers.servers import free_port
from deploy.launch.cluster import descendants
from orchestrator.errors import WorkerError

KINDS: Final = ("SmallWorker", "LargeWorker", "Orchestrator", "ServeController", "ProxyActor")
STATES: Final = ("hung", "gone", "restarted", "wiped", "read-only", "full")
START_S: Final = 10.0


class OwnProcesses:
    """The processes below a service's first one, by kind."""

    def __init__(self, root: int) -> None:
        self._root = root

    def signal(self, kind: str, sign: signal.Signals) -> Callable[[signal.Signals], None]:
        """Send a signal to the oldest process of a kind; return what sends it another.

        Raises:
            LookupError: there is none.
        """
        for pid in sorted(descendants(self._root)):
            with suppress(OSError):
                line = Path(f"/proc/{pid}/cmdline").read_bytes()
                if line.startswith(b"ray::") and kind.encode() in line:
                    os.kill(pid, sign)
                    return partial(_signal_again, pid)
        raise LookupError(kind)

    def levels(self) -> Mapping[str, float]:
        """Memory in MiB, of all and of each kind, descriptors and threads."""
        levels = defaultdict[str, float](float)
        for pid in descendants(self._root):
            with suppress(OSError):
                status = Path(f"/proc/{pid}/status").read_text()
                fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
                memory = float(fields.get("VmRSS", "0").split()[0]) / 1024
                levels["MiB"] += memory
                levels["threads"] += int(fields["Threads"])
                levels["descriptors"] += len(os.listdir(f"/proc/{pid}/fd"))
                line = Path(f"/proc/{pid}/cmdline").read_bytes()
                if kind := next((one for one in KINDS if one.encode() in line), None):
                    levels[f"MiB of {kind}"] += memory
        return levels


def _signal_again(pid: int, sign: signal.Signals) -> None:
    with suppress(ProcessLookupError):  # Serve took it for dead and replaced it
        os.kill(pid, sign)


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
            raise WorkerError("torture --own needs redis-server: apt install it") from None
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
