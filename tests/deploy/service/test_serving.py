"""The whole house on a real Ray: streams, lost replicas, hang-ups, affinity, Ctrl-C."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import time
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import pytest
import yaml

from deploy.evaluation.candidates import Candidate
from deploy.evaluation.clients import LocalClient, RequestOptions, ask
from deploy.launch.deployment_file import load
from deploy.launch.workers import load_pair
from tests.deploy.conftest import Served, alive, free_port

pytestmark = [pytest.mark.serve, pytest.mark.timeout(400)]

LONG = 3000  # tokens: more than a test waits for
QUESTION = [{"role": "user", "content": "12 + 34, step by step"}]


async def stream(served: Served, model: str = "large-only", **more: Any) -> tuple[str, Any]:
    """Thought and answer as one text, and the last chunk that had a choice."""
    text, last = "", None
    chunks = await served.client.chat.completions.create(
        model=model,
        messages=QUESTION,  # type: ignore[arg-type]
        stream=True,
        **{"max_tokens": 300, **more},
    )
    async for chunk in chunks:
        last = chunk
        delta = chunk.choices[0].delta
        text += (getattr(delta, "reasoning_content", None) or "") + "|" * bool(delta.content)
        text += delta.content or ""
    return text.replace("|", ""), last


async def until(condition: Any, seconds: float) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come to pass"
        await asyncio.sleep(0.1)


def test_what_baton_serve_prints(served: Served) -> None:
    assert served.process.stdout is not None
    lines = []
    while not lines or not lines[-1].startswith("curl"):
        lines.append(served.process.stdout.readline())
    assert f"{served.url}/v1/chat/completions" in lines[-1]


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


async def test_chat_through_the_openai_client(served: Served) -> None:
    answer = await served.client.chat.completions.create(
        model="baton",
        messages=QUESTION,  # type: ignore[arg-type]
        max_tokens=60,
    )
    extra: Any = answer.model_extra
    assert extra["baton"]["policy"] == "specreason"
    assert {step["author"] for step in extra["baton"]["steps"]} >= {"large"}
    assert answer.usage is not None
    assert answer.usage.completion_tokens > 0
    models = [model.id async for model in served.client.models.list()]
    assert models[:2] == ["baton", "small-only"]


async def test_the_stream_says_what_the_whole_answer_says(served: Served) -> None:
    whole = await served.client.chat.completions.create(
        model="large-only",
        messages=QUESTION,  # type: ignore[arg-type]
        max_tokens=300,
    )
    text, last = await stream(served)
    message: Any = whole.choices[0].message
    assert text == message.reasoning_content + message.content
    assert last.choices[0].finish_reason == whole.choices[0].finish_reason


async def test_requests_side_by_side_have_the_methods_they_ask_for(served: Served) -> None:
    asked = [None, "chain", "lookup", "vanilla"] * 2
    before = served.metric("baton_worker_passes_total", "large")
    answers = await asyncio.gather(
        *(stream(served, extra_body={"speculation": one} if one else {}) for one in asked)
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


async def test_the_arms_of_an_experiment_may_differ_by_method_alone(served: Served) -> None:
    arms = [
        {"name": "plain", "policy": "large-only"},
        {"name": "drafted", "policy": "large-only", "speculation": "chain"},
    ]
    document = {"name": "methods", "arms": arms, "goal": {"metric": "ms"}}
    async with httpx.AsyncClient(base_url=served.url, timeout=30) as http:
        assert (await http.post("/v1/experiments", json=document)).status_code == 201
        try:
            answers = await asyncio.gather(
                *(stream(served, "baton", max_tokens=60) for _ in range(12))
            )
        finally:
            await http.post("/v1/experiments/methods/stop", json={})
    assert len({text for text, _ in answers}) == 1
    methods = {
        (baton["arm"], baton["speculation"]["large"])
        for baton in (last.model_extra["baton"] for _, last in answers)
    }
    assert methods == {("plain", "vanilla"), ("drafted", "chain")}


@pytest.mark.parametrize("model", ["large-only", "specreason"])
async def test_all_large_replicas_die_during_streams(served: Served, model: str) -> None:
    long = {"max_tokens": 1200}  # so that they are seen while they run
    undisturbed, _ = await stream(served, model, **long)
    streams = [asyncio.create_task(stream(served, model, **long)) for _ in range(4)]
    await until(lambda: served.metric("baton_worker_live_rows", "large") > 0, 20)
    served.kill("LargeWorker")
    for text, last in await asyncio.gather(*streams):
        assert text == undisturbed
        assert last.choices[0].finish_reason in ("stop", "length")
    await until(lambda: len(served.replicas("LargeWorker")) == 2, 60)


async def test_one_of_two_dies_and_nobody_waits_for_its_replacement(served: Served) -> None:
    undisturbed, _ = await stream(served, max_tokens=1200)
    streams = [asyncio.create_task(stream(served, max_tokens=1200)) for _ in range(6)]
    await until(lambda: served.metric("baton_worker_live_rows", "large") > 0, 20)
    served.kill("LargeWorker", 1)
    assert {text for text, _ in await asyncio.gather(*streams)} == {undisturbed}
    await until(lambda: served.metric("baton_worker_replicas", "large") == 2, 90)


async def test_a_replica_that_is_stopped_is_left(served: Served) -> None:
    """As one on a node that was lost: no connection closes."""
    await until(lambda: served.metric("baton_worker_replicas", "large") == 2, 90)
    brief, _ = await stream(served)
    undisturbed, _ = await stream(served, max_tokens=1200)  # until the metric has shown them
    streams = [asyncio.create_task(stream(served, max_tokens=1200)) for _ in range(6)]
    await until(lambda: served.metric("baton_worker_live_rows", "large") > 3, 20)
    stopped = served.replicas("LargeWorker")[0]
    before = served.metric("baton_lost_calls_total", "large")
    os.kill(stopped, signal.SIGSTOP)
    try:
        assert {text for text, _ in await asyncio.gather(*streams)} == {undisturbed}
        lost = served.metric("baton_lost_calls_total", "large")
        assert lost > before  # streams were there when it stopped
        later = await asyncio.gather(*(stream(served) for _ in range(6)))
        assert {text for text, _ in later} == {brief}
        # Nobody goes there any more: a call that did would be lost before it was answered.
        assert served.metric("baton_lost_calls_total", "large") == lost
        assert httpx.get(f"{served.url}/ready").status_code == 200
        assert served.replicas("LargeWorker")[0] == stopped
    finally:
        os.kill(stopped, signal.SIGCONT)
    await until(lambda: served.metric("baton_worker_replicas", "large") == 2, 90)


async def test_text_is_shown_while_it_is_written(served: Served) -> None:
    chunks = await served.client.chat.completions.create(
        model="large-only",
        messages=QUESTION,  # type: ignore[arg-type]
        stream=True,
        max_tokens=LONG,
    )
    async for chunk in chunks:
        if getattr(chunk.choices[0].delta, "reasoning_content", None):
            break
    assert served.metric("baton_worker_live_rows", "large") == 1
    await chunks.close()


DRAFTING = {"judge": "short", "step_tokens": LONG, "threshold": 0}
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

    streams = [
        asyncio.create_task(
            stream(served, model, max_tokens=LONG, extra_body={"policy": policy} if policy else {})
        )
        for _ in range(25)
    ]
    await until(lambda: all(a >= b for a, b in zip(gauges(*seen), seen.values(), strict=True)), 60)
    assert not any(task.done() for task in streams)
    for task in streams:
        task.cancel()
    await asyncio.wait(streams)
    every = [(name, worker) for name in ("live_rows", "queued") for worker in ("small", "large")]
    await until(lambda: not any(gauges(*every)), 15)


MANY_STEPS = {"judge": "short", "step_tokens": 8, "threshold": 0}


async def cached_alone(endless_file: Path, questions: list[str]) -> float:
    """The share of prompt tokens found in the cache by one large worker in this process."""
    args = load(endless_file).args
    pair = load_pair(args.workers)
    try:
        client = LocalClient(args, pair, RequestOptions(max_tokens=960))
        for question in questions:
            await ask(client, question, Candidate("specreason", "specreason", MANY_STEPS))
        stats = pair["large"].stats()
        return stats["cached_tokens"] / stats["prompt_tokens"]
    finally:
        for worker in pair.values():
            worker.close()


async def test_a_request_stays_on_one_of_two_replicas(served: Served, endless_file: Path) -> None:
    questions = [f"{number} and a question of its own, which is long enough" for number in range(4)]
    names = ("baton_worker_cached_tokens_total", "baton_worker_prompt_tokens_total")
    before = [served.metric(name, "large") for name in names]
    for question in questions:
        await served.client.chat.completions.create(
            model="specreason",
            messages=[{"role": "user", "content": question}],
            max_tokens=960,
            extra_body={"policy": MANY_STEPS},
        )
    after = [served.metric(name, "large") for name in names]
    cached, prompt = (new - old for new, old in zip(after, before, strict=True))
    alone = await cached_alone(endless_file, questions)
    # What requests share among themselves (the markup before a question) is read twice.
    assert cached / prompt > max(0.9, alone - 0.02)


async def test_the_other_doors_lead_to_the_same_models(served: Served) -> None:
    api = served.client
    card = await api.models.retrieve("large-only")
    assert (card.model_extra or {})["max_model_len"] > 100
    said = await api.completions.create(
        model="large-only", prompt="12+30=", max_tokens=4, echo=True, logprobs=1
    )
    told = said.choices[0].logprobs
    assert told is not None
    assert "".join(told.tokens or ()) == said.choices[0].text
    made = await api.responses.create(
        model="large-only", input="What is 12+30?", max_output_tokens=60
    )
    assert [item.type for item in made.output] == ["reasoning", "message"]
    assert made.usage is not None
    assert made.usage.output_tokens <= 60


async def test_errors_are_openais(served: Served) -> None:
    with pytest.raises(openai.BadRequestError) as info:
        await stream(served, max_tokens=60, extra_body={"policy": {"thresh": 1}})
    assert "thresh" in info.value.message
    long = [{"role": "user", "content": "12 " * 5000}]
    with pytest.raises(openai.BadRequestError) as info:
        await served.client.chat.completions.create(model="baton", messages=long)  # type: ignore[arg-type]
    assert info.value.code == "context_length_exceeded"


@pytest.mark.parametrize(
    ("sign", "begun"), [(signal.SIGINT, "raylet/raylet"), (signal.SIGTERM, "ServeController")]
)
def test_a_signal_while_starting(
    endless_file: Path, tmp_path: Path, sign: signal.Signals, begun: str
) -> None:
    data = yaml.safe_load(endless_file.read_text())
    data["http_options"]["port"] = free_port()
    file = tmp_path / "other.yaml"
    file.write_text(yaml.safe_dump(data))
    service = Served(file)
    end = time.monotonic() + 60
    while not any(begun in line for line in service.processes().values()):
        assert time.monotonic() < end, "Ray did not start"
        time.sleep(0.05)
    started = service.processes()
    _, err = service.interrupt(sign)
    assert (service.process.returncode, err) == (130, "")
    assert alive(started) == {}


@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="a GPU may be here")
def test_workers_that_no_gpu_can_hold_are_no_reason_to_wait(
    endless_file: Path, tmp_path: Path
) -> None:
    data = yaml.safe_load(endless_file.read_text())
    data["http_options"]["port"] = free_port()
    data["applications"][0]["args"]["workers"]["small"] |= {
        "engine": "builtin",
        "device": "cuda",
        "gpu": 0.25,
    }
    file = tmp_path / "cuda.yaml"
    file.write_text(yaml.safe_dump(data))
    service = Served(file)
    try:
        _, err = service.process.communicate(timeout=120)
    finally:
        if service.process.poll() is None:
            service.interrupt()
    assert service.process.returncode == 1
    assert "more GPUs than the 0 of this machine: workers.small 0.25; write device: cpu, or" in err


def test_ctrl_c_leaves_no_process(served: Served) -> None:
    started = served.processes()
    assert len(started) > 5
    out, err = served.interrupt()
    assert served.process.returncode == 0
    assert err == ""
    assert "Stopping" in out
    assert alive(started) == {}
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{served.url}/health")
