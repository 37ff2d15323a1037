from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.deploy.conftest import free_port
from tests.workers.remote.vllm_like import PAIR
from workers.engine.loading import load
from workers.worker import EngineWorker


@pytest.fixture(scope="module")
def pair() -> Iterator[dict[Any, EngineWorker]]:
    """The embedded pair in this process."""
    workers: dict[Any, EngineWorker] = {name: load(f"embedded:{name}", rows=4) for name in PAIR}
    yield workers
    for worker in workers.values():
        worker.close()


@contextmanager
def running(command: list[str], environment: Mapping[str, str], log: Path) -> Iterator[str]:
    """A server in a Python process on this machine; yields its address once it answers."""
    port = free_port()
    command = [sys.executable, *command, "--host", "127.0.0.1", "--port", str(port)]
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, env={**os.environ, **environment}, stdout=out, stderr=subprocess.STDOUT
        )
    url = f"http://127.0.0.1:{port}"
    try:
        until = time.monotonic() + 400
        while True:
            assert process.poll() is None, log.read_text()[-2000:]
            assert time.monotonic() < until, "the server does not answer"
            with suppress(httpx.HTTPError):
                if httpx.get(f"{url}/health", timeout=5.0).status_code == 200:
                    break
            time.sleep(0.3)
        yield url
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=120)
        process.kill()
        process.wait()
