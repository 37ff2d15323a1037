"""Servers of one model, each a process tree that is gone at the end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import yaml

from deploy.launch.cluster import descendants
from workers.embedded.checkpoints import resolve

ROOT = Path(__file__).parents[3]
REAL_FOLDER = ROOT / "build" / "real-pair"
START_S, STOP_S = 600.0, 60.0
TRANSFORMERS = "from transformers.cli.transformers import main; main()"
SLOTS = 16  # sequences at once, where a server wants to know
CONTEXT = 1024


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(frozen=True, slots=True)
class Pair:
    """Two checkpoints and how they are run: the same for all servers."""

    small: str
    large: str
    dtype: str
    threads: int
    baton_dtype: str  # what Baton makes of the weights
    gguf: str | None = None  # None: written from the large checkpoint


EMBEDDED = Pair("embedded:small", "embedded:large", "float32", 1, "float32")
REAL = Pair(
    str(REAL_FOLDER / "small"),
    str(REAL_FOLDER / "large"),
    dtype="bfloat16",
    threads=2,
    baton_dtype="int8",
    gguf=str(REAL_FOLDER / "large.gguf"),
)


@dataclass(frozen=True, slots=True)
class Server:
    """A server that answers: where, its model's name there, and how long it took to start."""

    url: str
    model: str
    start_s: float
    process: subprocess.Popen[bytes] = field(repr=False)

    @property
    def processes(self) -> set[int]:
        return {self.process.pid} | descendants(self.process.pid)

    def memory_mb(self) -> float:
        """Of the whole process tree; shared pages count once."""
        return sum(map(_memory_kb, self.processes)) / 1024

    def listed(self) -> list[dict[str, Any]]:
        """Each process: its command, the CPU time it has taken, and its memory."""
        return [
            {
                "command": _command(pid).replace(b"\0", b" ").decode().strip()[-60:],
                "cpu_s": _cpu_s(pid),
                "mb": _memory_kb(pid) / 1024,
            }
            for pid in sorted(self.processes)
        ]


def baton(file: Path, folder: Path, edit: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """How to run Baton on a free port: with a deployment file whose arguments `edit` has changed,
    written into `folder`."""
    document = yaml.safe_load(file.read_text())
    port = document["http_options"]["port"] = free_port()
    edit(document["applications"][0].setdefault("args", {}))
    edited = folder / "baton.yaml"
    edited.write_text(yaml.safe_dump(document))
    command = [sys.executable, "-m", "deploy.cli.main", "serve", str(edited)]
    return {"command": command, "port": port, "model": "large-only", "ready": "/ready"}


def baton_over(
    pair: Pair,
    folder: Path,
    speculation: Mapping[str, Any] | None = None,
    max_len: int | None = None,
) -> dict[str, Any]:
    """How to run Baton over a pair."""

    def edit(args: dict[str, Any]) -> None:
        args["limits"]["concurrent"] = 128
        for name in ("small", "large"):
            worker = args["workers"][name]
            worker |= {"model": getattr(pair, name), "dtype": pair.baton_dtype}
            worker |= {"threads": pair.threads, "rows": 4 * SLOTS}
            if max_len is not None:
                worker |= {"max_len": max_len, "rows": 2}
            elif pair.large != EMBEDDED.large:
                worker |= {"max_len": CONTEXT}
        if speculation:
            args["workers"]["large"]["speculation"] = speculation
        if pair.large != EMBEDDED.large:
            args["policy"]["params"] = {}

    return baton(ROOT / "deploy" / "local.yaml", folder, edit)


def bare_serve() -> dict[str, Any]:
    """How to run Ray Serve without Baton."""
    port = free_port()
    command = [sys.executable, "-m", "deploy.lab.peers.bare_serve", str(port)]
    return {"command": command, "port": port, "model": "", "ready": "/ready"}


def transformers(pair: Pair) -> dict[str, Any]:
    port, model = free_port(), str(resolve(pair.large))
    command = [sys.executable, "-c", TRANSFORMERS, "serve", model, "--host", "127.0.0.1"]
    command += ["--port", str(port), "--device", "cpu", "--dtype", pair.dtype]
    env = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": str(pair.threads)}
    return {"command": command, "port": port, "model": model, "env": env}


def vllm(pair: Pair) -> dict[str, Any]:
    python = ROOT / ".venv-vllm" / "bin" / "python"
    if not python.exists():
        raise FileNotFoundError("vLLM needs .venv-vllm: make test-vllm makes it")
    port, model = free_port(), str(resolve(pair.large))
    command = [str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", model]
    command += ["--host", "127.0.0.1", "--port", str(port), "--dtype", pair.dtype]
    command += ["--max-model-len", str(CONTEXT), "--max-num-seqs", str(4 * SLOTS)]
    command += ["--enforce-eager"]
    env = {
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": str(pair.threads),
        "TORCHDYNAMO_DISABLE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
    }
    return {"command": command, "port": port, "model": model, "env": env}


def llama_cpp(pair: Pair, slots: int = SLOTS) -> dict[str, Any]:
    port = free_port()
    model = pair.gguf or str(resolve(pair.large))
    command = [sys.executable, "-m", "deploy.lab.peers.llama_server", model]
    command += [str(port), str(slots), str(pair.threads)]
    return {"command": command, "port": port, "model": "model"}


@contextmanager
def running(
    command: Sequence[str],
    port: int,
    model: str,
    *,
    log: Path,
    ready: str = "/health",
    env: Mapping[str, str] | None = None,
) -> Iterator[Server]:
    """The server, once it answers.

    Raises:
        RuntimeError: it did not start.
    """
    url, began = f"http://127.0.0.1:{port}", time.monotonic()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **(env or {})}
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, env=environment, stdout=out, stderr=out, cwd=ROOT, start_new_session=True
        )
    try:
        while not _answers(f"{url}{ready}"):
            if process.poll() is not None or time.monotonic() - began > START_S:
                tail = log.read_text(errors="replace")[-600:]
                raise RuntimeError(f"{command[2]} did not start: {tail}")
            time.sleep(0.2)
        yield Server(url, model, time.monotonic() - began, process)
    finally:
        left = descendants(process.pid)
        process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_S)
        for pid in {process.pid} | left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()


def _answers(url: str) -> bool:
    with suppress(httpx.HTTPError):
        return httpx.get(url, timeout=5.0, trust_env=False).status_code == 200
    return False


def cpu_s(processes: set[int], begins: str) -> dict[int, float]:
    """CPU time so far of those of the processes whose command line begins so."""
    return {pid: _cpu_s(pid) for pid in processes if _command(pid).startswith(begins.encode())}


def _memory_kb(pid: int) -> int:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1])
    return 0


def _cpu_s(pid: int) -> float:
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def _command(pid: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""
