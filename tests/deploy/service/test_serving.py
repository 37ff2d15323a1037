"""The whole house on a real Ray: streams, lost replicas, hang-ups, affinity, Ctrl-C."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import pytest
import yaml

from tests.deploy.conftest import QUESTION, WAIT_S, Served, alive, free_port, until

pytestmark = [pytest.mark.serve, pytest.mark.timeout(1200)]

LONG = 400  # tokens of a stream that is still being written when something happens to it
ENDLESS = 3000  # tokens: more than a test waits for
TO_THE_CAP = {"ignore_eos": True}  # else a loop would end it


async def stream(
    served: Served, model: str = "large-only", begun: asyncio.Event | None = None, **more: Any
) -> tuple[str, Any]:
    """Thought and answer as one text, and the last chunk; `begun` is set at the first text."""
    text, last = "", None
    if model == "large-only":
        more["extra_body"] = {**TO_THE_CAP, **more.get("extra_body", {})}
    chunks = await served.client.chat.completions.create(
        model=model,
        messages=QUESTION,  # type: ignore[arg-type]
        stream=True,
        **{"max_tokens": 300, **more},
    )
    async for chunk in chunks:
        last = chunk
        delta = chunk.choices[0].delta
        text += (getattr(delta, "reasoning_content", None) or "") + (delta.content or "")
        if text and begun is not None:
            begun.set()
    return text, last


async def lossless(served: Served, count: int, loses: Callable[[], object]) -> None:
    """So many long streams, all of them begun when `loses` is called, say what one alone says,
    though calls of theirs are lost."""

    def lost() -> float:
        return served.metric("baton_lost_calls_total", "large")

    alone, _ = await stream(served, max_tokens=LONG)
    before = lost()
    while lost() == before:  # else those that were lost had ended already: once more
        begun = [asyncio.Event() for _ in range(count)]
        tasks = [asyncio.create_task(stream(served, begun=one, max_tokens=LONG)) for one in begun]
        await asyncio.gather(*(one.wait() for one in begun))
        loses()
        for text, last in await asyncio.gather(*tasks):
            assert text == alone
            assert last.choices[0].finish_reason in ("stop", "length")


def test_what_baton_serve_prints(served: Served) -> None:
    assert served.process.stdout is not None
    lines = []
    while not lines or not lines[-1].startswith("curl"):
        lines.append(served.process.stdout.readline())
    assert f"{served.url}/v1/chat/completions" in lines[-1]


def test_what_ray_keeps_in_files_is_ours_alone(served: Served) -> None:
    """Ray's own folders are open to everybody: the one above them is not."""
    (session,) = {
        word.partition("=")[2]
        for line in served.processes().values()
        for word in line.split()
        if word.startswith("--session-dir=")
    }
    above = Path(session).parents[1]
    assert above.name == f"baton-{os.getuid()}"
    assert above.stat().st_mode & 0o777 == 0o700


def test_ray_listens_on_the_loopback_address_alone(served: Served) -> None:
    service, heard = psutil.Process(served.process.pid), list[tuple[str, bool]]()
    for process in (service, *service.children(recursive=True)):
        replica = "ServeReplica" in " ".join(process.cmdline())  # where Serve decides
        for one in process.net_connections("inet"):
            if one.status == psutil.CONN_LISTEN and not replica:
                address = ip_address(one.laddr.ip.removeprefix("::ffff:"))
                heard.append((process.name(), address.is_loopback))
    assert len(heard) > 5
    assert [name for name, loopback in heard if not loopback] == []


async def test_prometheus_finds_the_series_at_the_port_that_was_named(served: Served) -> None:
    url = f"http://127.0.0.1:{served.metrics_port}/metrics"
    await until(lambda: "\nray_baton_worker_replicas{" in httpx.get(url, timeout=WAIT_S).text)


async def test_the_stream_says_what_the_whole_answer_says(served: Served) -> None:
    whole = await served.client.chat.completions.create(
        model="large-only",
        messages=QUESTION,  # type: ignore[arg-type]
        max_tokens=300,
        extra_body=TO_THE_CAP,
    )
    text, last = await stream(served)
    message: Any = whole.choices[0].message
    assert text == message.reasoning_content + message.content
    assert last.choices[0].finish_reason == whole.choices[0].finish_reason


async def test_requests_side_by_side_have_the_methods_they_ask_for(served: Served) -> None:
    asked = [None, "chain", "lookup", "vanilla"] * 2
    before = served.metric("baton_worker_passes_total", "large")
    answers = await asyncio.gather(
        *(
            stream(served, max_tokens=100, extra_body={"speculation": one} if one else {})
            for one in asked
        )
    )
    assert len({text for text, _ in answers}) == 1
    used = [last.model_extra["baton"]["speculation"]["large"] for _, last in answers]
    assert used == [one or "vanilla" for one in asked]
    passes = [last.model_extra["baton"]["metrics"]["large_passes"] for _, last in answers]
    tokens = answers[0][1].model_extra["baton"]["metrics"]["large_tokens"]
    assert passes[asked.index("lookup")] < tokens <= passes[asked.index("vanilla")]
    assert served.metric("baton_worker_passes_total", "large") > before
    with pytest.raises(openai.BadRequestError, match="offers vanilla, chain, lookup"):
        await stream(served, extra_body={"speculation": "kangaroo"})


async def test_all_large_replicas_die_during_streams(served: Served) -> None:
    undisturbed, _ = await stream(served, "specreason", max_tokens=LONG)
    judged = asyncio.create_task(stream(served, "specreason", max_tokens=LONG))
    await lossless(served, 4, lambda: served.kill("LargeWorker"))
    assert (await judged)[0] == undisturbed
    await until(lambda: len(served.replicas("LargeWorker")) == 2)


async def test_one_of_two_dies_and_nobody_waits_for_its_replacement(served: Served) -> None:
    await lossless(served, 6, lambda: served.kill("LargeWorker", 1))
    await until(lambda: served.metric("baton_worker_replicas", "large") == 2)


async def test_a_replica_that_is_stopped_is_left(served: Served) -> None:
    """As one on a node that was lost: no connection closes."""
    await until(lambda: served.metric("baton_worker_replicas", "large") == 2)
    brief, _ = await stream(served)
    stopped = served.replicas("LargeWorker")[0]
    try:
        await lossless(served, 6, lambda: os.kill(stopped, signal.SIGSTOP))
        lost = served.metric("baton_lost_calls_total", "large")
        later = await asyncio.gather(*(stream(served) for _ in range(6)))
        assert {text for text, _ in later} == {brief}
        # No call goes there any more: it would be lost before it was answered.
        assert served.metric("baton_lost_calls_total", "large") == lost
        assert httpx.get(f"{served.url}/ready").status_code == 200
    finally:
        with suppress(ProcessLookupError):  # Serve has given it up, too
            os.kill(stopped, signal.SIGCONT)
    await until(lambda: served.metric("baton_worker_replicas", "large") == 2)


async def test_an_orchestrator_dies(served: Served) -> None:
    """What was not begun is answered by its successor, what was ends by an error."""
    whole = {"stream": False, "max_tokens": LONG, **TO_THE_CAP}
    undisturbed = await served.told(**whole)
    asked = [asyncio.create_task(served.told(**whole)) for _ in range(4)]
    first = [asyncio.Event() for _ in range(4)]
    endless = {"max_tokens": ENDLESS, **TO_THE_CAP}
    begun = [asyncio.create_task(served.told(begun=one, **endless)) for one in first]
    await asyncio.gather(*(one.wait() for one in first))
    await until(lambda: served.metric("baton_worker_live_rows", "large") >= 5)
    served.kill("Orchestrator")
    for text in await asyncio.gather(*begun):
        code = json.loads(text.splitlines()[-2].removeprefix("data: "))["error"]["code"]
        assert code in ("replica_lost", "shutting_down")
    for text in await asyncio.gather(*asked):
        assert _said(text) == _said(undisturbed)
    headers = [(b"x-request-id", b"\xff")]
    reply = await asyncio.to_thread(httpx.get, f"{served.url}/v1/models", headers=headers)
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "invalid_header")


def _said(text: str) -> str:
    message = json.loads(text)["choices"][0]["message"]
    return str(message["reasoning_content"] + message["content"])


DRAFTING = {"judge": "short", "step_tokens": ENDLESS, "threshold": 0}
JUDGING = {"judge": "full", "step_tokens": 1, "threshold": 0}  # all that the large model does


@pytest.mark.parametrize(
    ("model", "policy", "seen"),
    [
        ("large-only", {}, {("live_rows", "large"): 12}),  # most of two replicas' 16 rows write
        ("large-only", {}, {("queued", "large"): 1}),
        ("specreason", DRAFTING, {("live_rows", "small"): 8, ("queued", "small"): 1}),
        ("specreason", JUDGING, {("live_rows", "large"): 1}),
    ],
    ids=["written", "queued", "drafted", "judged"],
)
async def test_a_hundred_hang_ups_leave_nothing_running(
    served: Served, model: str, policy: dict[str, Any], seen: dict[tuple[str, str], int]
) -> None:
    """Twenty-five at a time, each of which would go on for long."""

    def gauges(*names: tuple[str, str]) -> list[float]:
        return [served.metric(f"baton_worker_{name}", worker) for name, worker in names]

    asked = [
        asyncio.create_task(
            stream(
                served, model, max_tokens=ENDLESS, extra_body={"policy": policy} if policy else {}
            )
        )
        for _ in range(25)
    ]
    await until(lambda: all(a >= b for a, b in zip(gauges(*seen), seen.values(), strict=True)))
    for task in asked:
        task.cancel()
    await asyncio.wait(asked)
    every = [(name, worker) for name in ("live_rows", "queued") for worker in ("small", "large")]
    await until(lambda: not any(gauges(*every)))


MANY_STEPS = {"judge": "short", "step_tokens": 8, "threshold": 0}


async def test_a_request_stays_on_one_of_two_replicas(served: Served) -> None:
    questions = [f"{number} and a question of its own, which is long enough" for number in range(2)]
    names = ("baton_worker_cached_tokens_total", "baton_worker_prompt_tokens_total")
    before = [served.metric(name, "large") for name in names]
    for question in questions:
        await served.client.chat.completions.create(
            model="specreason",
            messages=[{"role": "user", "content": question}],
            max_tokens=480,
            extra_body={"policy": MANY_STEPS},
        )
    after = [served.metric(name, "large") for name in names]
    cached, prompt = (new - old for new, old in zip(after, before, strict=True))
    assert cached / prompt > 0.9


async def test_errors_are_openais(served: Served) -> None:
    with pytest.raises(openai.BadRequestError) as info:
        await stream(served, max_tokens=60, extra_body={"policy": {"thresh": 1}})
    assert "thresh" in info.value.message
    long = [{"role": "user", "content": "12 " * 5000}]
    with pytest.raises(openai.BadRequestError) as info:
        await served.client.chat.completions.create(model="baton", messages=long)  # type: ignore[arg-type]
    assert info.value.code == "context_length_exceeded"


@pytest.mark.parametrize(
    ("sign", "begun", "status", "said"),
    [
        (signal.SIGINT, "raylet/raylet", 130, "interrupted"),
        (signal.SIGTERM, "ServeController", 0, "stopped before it was ready"),
    ],
)
def test_a_signal_while_starting(
    endless_file: Path, tmp_path: Path, sign: signal.Signals, begun: str, status: int, said: str
) -> None:
    data = yaml.safe_load(endless_file.read_text())
    data["http_options"]["port"] = free_port()
    file = tmp_path / "other.yaml"
    file.write_text(yaml.safe_dump(data))
    service = Served(file)
    while not any(begun in line for line in service.processes().values()):
        time.sleep(0.05)
    started = service.processes()
    _, err = service.interrupt(sign)
    assert (service.process.returncode, err) == (status, f"baton: {said}\n")
    assert alive(started) == {}


async def test_the_store_in_memory_dies_and_comes_back(served: Served) -> None:
    """Answers go by what was published last, and follow what is published next."""
    url = f"{served.url}/v1/policies"

    def publish(policy: str) -> bool:
        return httpx.post(url, json={"policy": policy}, timeout=WAIT_S).status_code == 201

    async def follow(policy: str) -> None:
        async with asyncio.timeout(WAIT_S):
            while (await stream(served, "baton", max_tokens=20))[1].baton["policy"] != policy:
                await asyncio.sleep(0.1)

    assert publish("small-only")
    await follow("small-only")
    (store,) = served.replicas("Store")
    os.kill(store, signal.SIGKILL)
    await until(lambda: httpx.get(f"{served.url}/ready").json()["degraded"])
    await follow("small-only")
    await until(lambda: publish("large-only"))
    await follow("large-only")


async def test_what_dies_is_said_in_the_terminal(served: Served) -> None:
    assert served.process.stdout is not None
    served.kill("SmallWorker")
    line = ""
    while "a replica of SmallWorker (process" not in line:
        line = await asyncio.to_thread(served.process.stdout.readline)
        assert line
    assert "died" in line


async def test_ctrl_c_ends_streams_by_an_error_and_leaves_no_process(served: Served) -> None:
    """The last test of this service."""
    started = served.processes()
    assert len(started) > 5
    cut = asyncio.create_task(served.told(max_tokens=ENDLESS, **TO_THE_CAP))
    await until(lambda: served.metric("baton_worker_live_rows", "large") >= 1)
    out, err = await asyncio.to_thread(served.interrupt)
    assert (served.process.returncode, err) == (0, "")
    assert "Stopping" in out
    assert "1 answers were cut short" in out
    assert "shutting_down" in (await cut).splitlines()[-2]
    assert alive(started) == {}
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{served.url}/health")
