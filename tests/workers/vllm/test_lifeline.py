"""No process of vLLM's outlives the worker's, and a dead engine is noticed at once."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

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
    """Whether it is vLLM's engine; not if it has ended since it was listed."""
    with suppress(psutil.NoSuchProcess):
        return "EngineCore" in process.name()
    return False


@pytest.mark.parametrize("loads", [True, False])
def test_a_killed_worker_leaves_no_process(tmp_path: Path, loads: bool) -> None:
    """Also one that is killed while it `loads`."""
    script = tmp_path / "started.py"
    script.write_text(STARTED)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    command = [sys.executable, str(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        children: list[psutil.Process] = []
        assert loads or any("ready" in line for line in process.stdout)
        while not any(map(is_core, children)):
            assert process.poll() is None
            children = psutil.Process(process.pid).children(recursive=True)
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        process.wait()
    _, alive = psutil.wait_procs(children, timeout=60)
    assert alive == []


async def test_an_engine_ignores_sigterm_if_its_worker_does() -> None:
    """As under `baton serve`, where SIGTERM to all processes lets answers be finished."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        resource_tracker._resource_tracker._stop()  # type: ignore[attr-defined]  # starts again
        worker = load("embedded:small", device="cpu", rows=2, max_len=256, threads=1)
        cores = [one for one in psutil.Process().children() if is_core(one)]
        try:
            for one in cores:
                one.terminate()
            await rest(worker.generate(CALL, StopCriteria(4), Sampling()))
        finally:
            began = time.monotonic()
            worker.close()
            took_s = time.monotonic() - began
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert cores
    assert psutil.wait_procs(cores, timeout=60)[1] == []
    assert took_s < 4  # vLLM waits 5 for what does not end


@pytest.fixture
def small() -> Iterator[Any]:
    worker = load("embedded:small", device="cpu", rows=4, max_len=512, threads=1)
    yield worker
    worker.close()


CALL = Call("r", Transcript((Message("user", "What is 3 + 4?"),)), "small")


async def rest(items: Any) -> None:
    async for _ in items:
        pass


async def test_closing_ends_calls_in_progress(small: Any) -> None:
    items = small.generate(CALL, StopCriteria(400), Sampling(1.5))
    await anext(items)
    small.close()
    with pytest.raises(WorkerUnavailable):
        await asyncio.wait_for(rest(items), 20)
    with pytest.raises(WorkerUnavailable):
        await rest(small.generate(CALL, StopCriteria(4), Sampling()))


async def test_calls_fail_at_once_where_the_engine_process_dies(small: Any) -> None:
    def write() -> Any:
        return rest(small.generate(CALL, StopCriteria(400), Sampling(1.5)))

    tasks = [asyncio.create_task(write()) for _ in range(3)]
    await asyncio.sleep(0.05)
    (core,) = filter(is_core, psutil.Process().children())
    core.kill()
    results = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 20)
    assert all(result is None or isinstance(result, WorkerUnavailable) for result in results)
    assert results != [None] * 3
    assert not small.alive
    with pytest.raises(WorkerUnavailable):
        await write()


async def test_a_stopped_engine_under_load_is_ill_until_it_goes_on(
    small: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "STALL_TIMEOUT_S", 1.0)
    replica = ReplicaServer(lambda: small)
    items = small.generate(CALL, StopCriteria(400, min_tokens=400), Sampling(1.5))

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
