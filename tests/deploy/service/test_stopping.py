"""How `baton serve` ends: by SIGTERM, and with the Ray under it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from deploy.launch.cluster import NodeDied, RunningService
from tests.deploy.conftest import Served, alive, running

ASKED = {
    "model": "large-only",
    "messages": [{"role": "user", "content": "12 + 34, step by step"}],
    "stream": True,
    "max_tokens": 1800,
}


@pytest.fixture
def own(endless_file: Path) -> Iterator[Served]:
    """A service of this test's, with the port of the others'."""
    with running(endless_file) as service:
        yield service


async def told(url: str, **more: Any) -> str:
    async with httpx.AsyncClient(timeout=300) as http:
        return (await http.post(f"{url}/v1/chat/completions", json=ASKED | more)).text


async def writing(served: Served, rows: int) -> None:
    until = time.monotonic() + 30
    while served.metric("baton_worker_live_rows", "large") < rows:
        assert time.monotonic() < until, "nothing is being written"
        await asyncio.sleep(0.1)


@pytest.mark.serve
@pytest.mark.timeout(400)
async def test_sigterm_lets_answers_be_finished_and_takes_no_more(own: Served) -> None:
    undisturbed = (await told(own.url)).count('"delta"')
    started = own.processes()
    streams = [asyncio.create_task(told(own.url)) for _ in range(6)]
    await writing(own, 4)
    own.process.send_signal(signal.SIGTERM)
    refused = None
    async with httpx.AsyncClient(timeout=30) as http:
        while refused is None or refused.status_code != 503:
            assert not all(stream.done() for stream in streams)
            refused = await http.post(
                f"{own.url}/v1/chat/completions", json=ASKED | {"stream": False, "max_tokens": 1}
            )
    assert refused.json()["error"]["code"] == "shutting_down"
    assert "retry-after" in refused.headers
    for text in await asyncio.gather(*streams):
        assert text.endswith("data: [DONE]\n\n")
    assert undisturbed > 10
    out, err = await asyncio.to_thread(own.process.communicate, timeout=60)
    assert (own.process.returncode, err) == (0, "")
    assert "cut short" not in out
    assert alive(started) == {}


@pytest.mark.serve
@pytest.mark.timeout(400)
async def test_ctrl_c_ends_streams_by_an_error_and_a_dead_node_by_status_1(
    endless_file: Path,
) -> None:
    with running(endless_file) as service:
        stream = asyncio.create_task(told(service.url, max_tokens=3000))
        await writing(service, 1)
        out, err = await asyncio.to_thread(service.interrupt, seconds=120)
        assert (service.process.returncode, err) == (0, "")
        assert "1 answers were cut short" in out
        assert "shutting_down" in (await stream).splitlines()[-2]
    with running(endless_file) as service:
        await _the_orchestrator_dies(service)
        started = service.processes()
        (raylet,) = [pid for pid, line in started.items() if "raylet/raylet" in line]
        os.kill(raylet, signal.SIGKILL)
        _, err = await asyncio.to_thread(service.process.communicate, timeout=60)
        assert service.process.returncode == 1
        assert "Ray's node has died" in err
        assert alive(started) == {}


async def _the_orchestrator_dies(served: Served) -> None:
    """What was not begun is answered by its successor, what was ends by an error."""
    undisturbed = await told(served.url, stream=False, max_tokens=1500)
    whole = [asyncio.create_task(told(served.url, stream=False, max_tokens=1500)) for _ in range(4)]
    begun = [asyncio.create_task(told(served.url, max_tokens=3000)) for _ in range(4)]
    await writing(served, 5)
    served.kill("Orchestrator")
    for text in await asyncio.gather(*begun):
        assert json.loads(text.splitlines()[-2].removeprefix("data: "))["error"]["code"] in (
            "replica_lost",
            "shutting_down",
        )
    for text in await asyncio.gather(*whole):
        assert _said(text) == _said(undisturbed)
    async with httpx.AsyncClient(timeout=60) as http:
        headers = [(b"x-request-id", b"\xff")]
        reply = await http.get(f"{served.url}/v1/models", headers=headers)
        assert (reply.status_code, reply.json()["error"]["code"]) == (400, "invalid_header")


def _said(text: str) -> str:
    message = json.loads(text)["choices"][0]["message"]
    return str(message["reasoning_content"] + message["content"])


def test_a_node_is_well_while_its_processes_run() -> None:
    RunningService("http://localhost", "baton", {os.getpid()}).check()
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)  # it has ended, and nobody has asked how
    with pytest.raises(NodeDied, match="start it again"):
        RunningService("http://localhost", "baton", {os.getpid(), child}).check()
    os.waitpid(child, 0)
