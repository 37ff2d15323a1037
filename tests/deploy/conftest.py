"""One service for all tests that need one: `baton serve` with tiny random models."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import pytest
import yaml

from tests.workers.conftest import CONTROLS, make_model, make_tokenizer, save

ROOT = Path(__file__).parents[2]
WAIT_S = 600.0  # for whatever a test waits for: a busy machine is slow, not broken
QUESTION = [{"role": "user", "content": "12 + 34, step by step"}]
BATON = [sys.executable, "-m", "deploy.cli.main"]


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a `small` and a `large` checkpoint of random weights, one vocabulary."""
    return save_pair(tmp_path_factory.mktemp("pair"))


def save_pair(folder: Path, *, positions: int = 512, endless: bool = False) -> Path:
    """`endless`: what the models write, where nothing is drawn, does not end by itself."""
    tokenizer = make_tokenizer()
    for name, layers, width, seed in (("small", 1, 16, 1), ("large", 6, 128, 0)):
        model = make_model(
            "qwen3",
            layers=layers,
            width=width,
            vocabulary=len(tokenizer),
            positions=positions,
            seed=seed,
        )
        if endless:
            model.lm_head.weight[-len(CONTROLS) :] *= 0
        save(folder / name, tokenizer, model)
    return folder


@pytest.fixture(scope="session")
def tiny_file(tiny: Path) -> Path:
    """A deployment file: one small replica, two large ones."""
    return write_file(tiny)


@pytest.fixture(scope="session")
def endless_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `tiny_file`, with models that write for as long as they are let."""
    folder = tmp_path_factory.mktemp("endless")
    return write_file(save_pair(folder, positions=4096, endless=True))


def write_file(pair: Path) -> Path:
    data: dict[str, Any] = yaml.safe_load((ROOT / "deploy" / "local.yaml").read_text())
    data["http_options"]["port"] = free_port()
    args = data["applications"][0]["args"]
    for name, replicas in (("small", 1), ("large", 2)):
        args["workers"][name] |= {"model": str(pair / name), "replicas": replicas}
    chain = {"method": "chain", "params": {"draft": str(pair / "small"), "gamma": 3}}
    args["workers"]["large"]["speculation"] = {"also": [chain, {"method": "lookup"}]}
    args["policy"] = {"default": "specreason"}
    path = pair / "tiny.yaml"
    path.write_text(yaml.safe_dump(data))
    return path


class Served:
    """A running `baton serve`."""

    def __init__(self, file: Path) -> None:
        self.metrics_port = free_port()
        options = ["--grace", str(WAIT_S), "--metrics-port", str(self.metrics_port)]
        self.process = subprocess.Popen(
            [*BATON, "serve", *options, str(file)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # a Ctrl-C for it alone
        )
        port = yaml.safe_load(file.read_text())["http_options"]["port"]
        self.url = f"http://127.0.0.1:{port}"

    @property
    def client(self) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(
            base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=WAIT_S
        )

    async def told(self, *, begun: asyncio.Event | None = None, **more: Any) -> str:
        """The text of an answer as it comes: a stream of the large model, unless `more` differs.

        `begun` is set at its first piece.
        """
        body = {"model": "large-only", "messages": QUESTION, "stream": True, **more}
        async with httpx.AsyncClient(timeout=WAIT_S) as http:
            asked = http.stream("POST", f"{self.url}/v1/chat/completions", json=body)
            async with asked as reply:
                pieces = []
                async for piece in reply.aiter_text():
                    pieces.append(piece)
                    if begun is not None:
                        begun.set()
                return "".join(pieces)

    def wait(self, seconds: float = WAIT_S) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if self.process.poll() is not None:
                pytest.fail(f"baton serve ended: {self.process.communicate()}")
            with suppress(httpx.HTTPError):
                if httpx.get(f"{self.url}/ready", timeout=5.0).status_code == 200:
                    return
            time.sleep(0.2)
        pytest.fail("baton serve did not become ready")

    def processes(self) -> dict[int, str]:
        """Everything it started: process id -> command line."""
        return commands(self.process.pid)

    def replicas(self, name: str) -> list[int]:
        lines = self.processes().items()
        return [pid for pid, line in lines if f"ServeReplica:baton:{name}" in line]

    def kill(self, name: str, count: int | None = None) -> None:
        """Kill replicas of a deployment, all of them unless told how many."""
        for pid in self.replicas(name)[:count]:
            os.kill(pid, signal.SIGKILL)

    def interrupt(self, sign: int = signal.SIGINT, seconds: float = WAIT_S) -> tuple[str, str]:
        """Ctrl-C, as a terminal sends it: to every process of the group."""
        os.killpg(self.process.pid, sign)
        return self.process.communicate(timeout=seconds)

    def metric(self, name: str, worker: str) -> float:
        """A series of /metrics, summed over the replicas that answer; 0 where none does."""
        lines = httpx.get(f"{self.url}/metrics", timeout=120).text.splitlines()

        def values(name: str) -> list[float]:
            found = (line for line in lines if line.startswith(f"{name}{{"))
            return [float(line.rpartition(" ")[2]) for line in found if f'"{worker}"' in line]

        replicas = values("baton_worker_replicas")
        assert replicas
        assert values(name) or not sum(replicas), f"no {name} of {worker}"
        return sum(values(name))


async def until(condition: Callable[[], Any], every: float = 0.2) -> Any:
    """Wait for something to be true."""
    async with asyncio.timeout(WAIT_S):
        while not (found := await asyncio.to_thread(condition)):
            await asyncio.sleep(every)
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def commands(pid: int) -> dict[int, str]:
    """The process ids and command lines of what a process and its children started."""
    found = {}
    with suppress(psutil.NoSuchProcess):
        for one in psutil.Process(pid).children(recursive=True):
            with suppress(psutil.Error):
                found[one.pid] = " ".join(one.cmdline())
    return found


def alive(pids: dict[int, str]) -> dict[int, str]:
    """Those that still run; a zombie nobody waits for is not running."""
    left = {}
    for pid, line in pids.items():
        with suppress(psutil.NoSuchProcess):
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                left[pid] = line
    return left


@contextmanager
def running(file: Path) -> Iterator[Served]:
    """A service from its first answer to its last process."""
    service = Served(file)
    try:
        service.wait()
        yield service
    finally:
        if service.process.poll() is None:
            with suppress(subprocess.TimeoutExpired):
                service.interrupt()
        for pid in alive(service.processes()):
            os.kill(pid, signal.SIGKILL)
        if service.process.poll() is None:
            service.process.kill()


@pytest.fixture(scope="session")
def served(endless_file: Path) -> Iterator[Served]:
    with running(endless_file) as service:
        yield service
