"""Processes that are started and ended: servers, and commands with a limit."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx
import psutil

ROOT: Final = Path(__file__).parents[2]
START_S: Final = 600.0
STOP_S: Final = 60.0


def free_port() -> int:
    """Return a port of the loopback address that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(frozen=True, slots=True)
class ServerCommand:
    """How to run a server: its command, its model's name there, the path that answers if ready."""

    command: Sequence[str]
    port: int
    model: str = ""
    ready: str = "/health"
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A server that answers: its address, its model's name, and how long it took to start."""

    url: str
    model: str
    start_s: float
    process: psutil.Process = field(repr=False)

    def listed(self) -> list[dict[str, Any]]:
        """Each process of its tree: command, CPU time, memory. Shared pages count once (PSS)."""
        rows = []
        for one in [self.process, *self.process.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):
                times = one.cpu_times()
                rows.append(
                    {
                        "command": " ".join(one.cmdline()).strip()[-60:],
                        "cpu_s": times.user + times.system,
                        "mb": one.memory_full_info().pss / 2**20,
                    }
                )
        return rows

    def cpu_ms(self) -> float:
        """CPU time so far."""
        return 1e3 * float(sum(one["cpu_s"] for one in self.listed()))

    def memory_mb(self) -> float:
        return float(sum(one["mb"] for one in self.listed()))


@contextmanager
def running(how: ServerCommand, log: Path) -> Iterator[RunningServer]:
    """Run a server for the block, from its first answer on.

    Raises:
        RuntimeError: it did not start.
    """
    url, began = f"http://127.0.0.1:{how.port}", time.monotonic()
    with _started(how.command, log, how.env) as process:
        while not _answers(f"{url}{how.ready}"):
            if process.poll() is not None or time.monotonic() - began > START_S:
                tail = log.read_text(errors="replace")[-600:]
                raise RuntimeError(f"{how.command[2]} did not start: {tail}")
            time.sleep(0.2)
        started = time.monotonic() - began
        yield RunningServer(url, how.model, started, psutil.Process(process.pid))


def run_within(command: Sequence[str], limit_s: float, log: Path) -> str:
    """Run a command to its end or its limit; return why it failed, or nothing."""
    with _started(command, log) as process:
        try:
            status = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return f"at its limit of {limit_s:g} s"
    last = (log.read_text(errors="replace").strip().splitlines() or ["no reason"])[-1]
    return f"status {status}: {last.strip()}" if status else ""


@contextmanager
def _started(
    command: Sequence[str], log: Path, env: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a command in its own process group; end the group and its tree after the block."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **(env or {})}
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, env=environment, stdout=out, stderr=out, cwd=ROOT, start_new_session=True
        )
    try:
        yield process
    finally:
        tree = []
        with suppress(psutil.NoSuchProcess):
            tree = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_S)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        for one in tree:
            with suppress(psutil.NoSuchProcess):
                one.kill()
        process.wait()


def _answers(url: str) -> bool:
    with suppress(httpx.HTTPError):
        return httpx.get(url, timeout=5.0, trust_env=False).status_code == 200
    return False
