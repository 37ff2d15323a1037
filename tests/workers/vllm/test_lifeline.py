"""No process of vLLM's outlives the worker's, and a dead engine is noticed at once."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from orchestrator.errors import WorkerUnavailable
from orchestrator.types import Message, Sampling, StopCriteria, Transcript
from orchestrator.worker import Call
from workers.replica import server
from workers.replica.server import ReplicaServer
from workers.vllm.loading import load

STARTED = """
import time
from workers.vllm.loading import load
if __name__ == "__main__":
    worker = load("embedded:small", device="cpu", rows=2, max_len=256, threads=1)
    print("ready", flush=True)
    time.sleep(600)
"""


def is_core(process: psutil.Process) -> bool:
    """Whether it is vLLM's engine; not where it has ended since it was listed."""
    with suppress(psutil.NoSuchProcess):
        return "EngineCore" in process.name()
    return False


def test_a_killed_worker_leaves_no_process(tmp_path: Path) -> None:
    script = tmp_path / "started.py"
    script.write_text(STARTED)
    root = str(Path(__file__).parents[3])
    environment = {**os.environ, "PYTHONPATH": root}
    with subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        assert any("ready" in line for line in process.stdout)
        children = psutil.Process(process.pid).children(recursive=True)
        assert any(map(is_core, children))
        process.send_signal(signal.SIGKILL)
        process.wait()
    deadline = time.monotonic() + 30
    while any(child.is_running() for child in children) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert [child for child in children if child.is_running()] == []


def test_a_worker_killed_while_it_loads_leaves_no_process(tmp_path: Path) -> None:
    script = tmp_path / "started.py"
    script.write_text(STARTED)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    with subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.DEVNULL, env=environment
    ) as process:
        loading: list[psutil.Process] = []
        while not any(map(is_core, loading)):
            assert process.poll() is None
            loading = psutil.Process(process.pid).children(recursive=True)
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        process.wait()
    deadline = time.monotonic() + 60
    while any(child.is_running() for child in loading) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert [child for child in loading if child.is_running()] == []


async def test_closing_ends_calls_in_progress() -> None:
    worker = load("embedded:small", device="cpu", rows=4, max_len=512, threads=1)
    call = Call("r", Transcript((Message("user", "What is 3 + 4?"),)), "small")
    items = worker.generate(call, StopCriteria(400), Sampling(1.5))
    await anext(items)
    worker.close()

    async def rest() -> None:
        async for _ in items:
            pass

    with pytest.raises(WorkerUnavailable):
        await asyncio.wait_for(rest(), 20)
    with pytest.raises(WorkerUnavailable):
        await worker.generate(call, StopCriteria(4), Sampling()).__anext__()
    worker.close()


async def test_calls_fail_at_once_where_the_engine_process_dies() -> None:
    worker = load("embedded:small", device="cpu", rows=4, max_len=512, threads=1)
    call = Call("r", Transcript((Message("user", "What is 3 + 4?"),)), "small")

    async def one() -> None:
        async for _ in worker.generate(call, StopCriteria(400), Sampling(1.5)):
            pass

    try:
        tasks = [asyncio.create_task(one()) for _ in range(3)]
        await asyncio.sleep(0.05)
        (core,) = filter(is_core, psutil.Process().children())
        core.kill()
        results = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 20)
        assert all(result is None or isinstance(result, WorkerUnavailable) for result in results)
        assert results != [None] * 3
        assert not worker.alive
        with pytest.raises(WorkerUnavailable):
            await one()
    finally:
        worker.close()


async def test_a_stopped_engine_under_load_is_ill_until_it_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "STALL_TIMEOUT_S", 1.0)
    worker = load("embedded:small", device="cpu", rows=4, max_len=512, threads=1)
    replica = ReplicaServer(lambda: worker)
    items = worker.generate(
        Call("r", Transcript((Message("user", "What is 3 + 4?"),)), "small"),
        StopCriteria(400, min_tokens=400),
        Sampling(1.5),
    )

    async def checked(seconds: float) -> None:
        for _ in range(round(seconds / 0.1)):
            await replica.check_health()
            await asyncio.sleep(0.1)

    (core,) = filter(is_core, psutil.Process().children())
    try:
        await anext(items)
        core.suspend()
        with pytest.raises(WorkerUnavailable, match="no progress for 1 s"):
            await checked(10)
        core.resume()
        await anext(items)
        await asyncio.sleep(0.1)
        await replica.check_health()
    finally:
        core.resume()
        await items.aclose()
        worker.close()
