"""A service on several Ray nodes: nodes die, load and versions change, no request is lost.

`BATON_NODES=all` in the environment shows it behind HAProxy as well as behind Ray's own proxy.
"""

from __future__ import annotations

import asyncio
import copy
import json
import os
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.deploy.conftest import until
from tests.deploy.service.cable import THERE, Cable
from tests.deploy.service.nodes import ADMIN_KEY, KEY, Nodes, samples
from tests.deploy.telemetry.test_dashboard import QUERIES, RULES, check, labels_of
from tests.deploy.telemetry.test_tracing import Collector, collector

pytestmark = [pytest.mark.serve, pytest.mark.timeout(1200)]

SECRET = "xyzzy"  # stands in every question, and in no log
QUESTIONS = [f"{number} + 34, {SECRET}, step by step" for number in range(12)]
PROXIES = ["ray", "haproxy"] if os.environ.get("BATON_NODES") == "all" else ["ray"]


@pytest.fixture(scope="module", params=PROXIES)
def nodes(request: pytest.FixtureRequest) -> Iterator[Nodes]:
    """A head that runs no replica of a model, and two nodes that may run the large one."""
    folder = Path(tempfile.mkdtemp(prefix="baton-", dir="/tmp"))  # sockets want short paths
    cluster = Nodes(folder, haproxy=request.param == "haproxy")
    try:
        for _ in range(2):
            cluster.add(pool="models")
        yield cluster
    finally:
        cluster.close()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def cable() -> Iterator[Cable | None]:
    """None on a machine that allows no network of ours."""
    with ExitStack() as undo:
        made = None
        with suppress(OSError, subprocess.CalledProcessError):
            made = Cable(undo)
        yield made


@pytest.fixture(scope="module")
def spans() -> Iterator[Collector]:
    with collector() as there:
        yield there


@pytest.fixture(scope="module")
def data(nodes: Nodes, tiny_file: Path, spans: Collector) -> dict[str, Any]:
    """Two orchestrators, one small worker, one or two large ones, each pool where it belongs."""
    data: dict[str, Any] = yaml.safe_load(tiny_file.read_text())
    data["http_options"]["port"] = nodes.port
    data["logging_config"] = {"encoding": "JSON", "log_level": "INFO", "enable_access_log": False}
    args = data["applications"][0]["args"]
    args["tracing"] = {"endpoint": spans.url}
    args["auth"] = {
        "api_keys_env": "BATON_KEYS",
        "observer_keys_env": "BATON_OBSERVER_KEYS",
        "admin_key_env": "BATON_ADMIN_KEY",
    }
    args["orchestrator"] = {"replicas": 2, "nodes": {"pool": "head"}}
    # A busy machine is slow, not broken: what takes its time is waited for.
    args["workers"]["small"] |= {"replicas": 1, "patience_s": 300, "nodes": {"pool": "head"}}
    args["workers"]["large"] |= {
        "replicas": {"min": 1, "max": 2, "up_after_s": 0, "down_after_s": 1, "full_at": 0.5},
        "rows": 4,
        "patience_s": 300,
        "nodes": {"pool": "models"},
    }
    # Serve's own option, as for any deployment: what one node takes along is one replica.
    data["applications"][0]["deployments"] = [{"name": "LargeWorker", "max_replicas_per_node": 1}]
    return data


async def answer(nodes: Nodes, question: str, **more: Any) -> str:
    """Thought and answer of a stream that ended as it should."""
    text, finish = "", None
    async with nodes.client() as client:
        chunks = await client.chat.completions.create(
            **{"model": "large-only", "max_tokens": 160, **more},
            messages=[{"role": "user", "content": question}],
            stream=True,
        )
        async for chunk in chunks:
            delta = chunk.choices[0].delta
            text += (getattr(delta, "reasoning_content", None) or "") + (delta.content or "")
            finish = chunk.choices[0].finish_reason or finish
    assert finish in ("stop", "length")
    return text


def total(metrics: dict[str, float], name: str, **labels: str) -> float:
    """The sum of the samples of that name with those labels among theirs; there is at least one."""
    values = [
        value
        for key, value in metrics.items()
        if key.partition("{")[0] == name
        and all(f'{label}="{text}"' in key for label, text in labels.items())
    ]
    assert values, name
    return sum(values)


def is_count(name: str) -> bool:
    return name.partition("{")[0].endswith(("_total", "_bucket", "_sum", "_count"))


class Falling(AssertionError):
    """A counter went backwards."""


class Watch:
    """Scrapes for as long as something goes on, and compares each series with what it was."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes, self.last, self._highest = nodes, dict[str, float](), dict[str, float]()

    async def __aenter__(self) -> Watch:
        self._task = asyncio.create_task(self._scrape())
        return self

    async def __aexit__(self, *_: Any) -> None:
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        self.look(self._nodes.metrics())

    async def _scrape(self) -> None:
        while True:
            with suppress(httpx.HTTPError, ValueError):
                self.look(await asyncio.to_thread(self._nodes.metrics))
            await asyncio.sleep(0.5)

    def look(self, now: dict[str, float]) -> None:
        for name, value in filter(lambda one: is_count(one[0]), now.items()):
            if value < self._highest.get(name, 0.0):
                raise Falling(f"{name}: {self._highest[name]} and then {value}")
            self._highest[name] = value
        self.last = now


class Load:
    """So many streams at a time while it lasts; all answers as they were."""

    def __init__(self, nodes: Nodes, expected: dict[str, str], streams: int) -> None:
        self._nodes, self._expected, self._streams = nodes, expected, streams
        self.answered, self._over = 0, False

    async def __aenter__(self) -> Load:
        asking = (self._ask(question) for question in QUESTIONS[: self._streams])
        self._asking = asyncio.gather(*asking)
        return self

    async def __aexit__(self, *_: Any) -> None:
        self._over = True
        await self._asking

    async def _ask(self, question: str) -> None:
        while not self._over:
            assert await answer(self._nodes, question) == self._expected[question]
            self.answered += 1

    async def go_on(self) -> None:
        """Wait until as many streams as there are at a time were answered."""
        enough = self.answered + self._streams
        await until(lambda: self._asking.done() or self.answered >= enough)
        if self._asking.done():
            await self._asking  # one has failed


@pytest.fixture(scope="module")
def expected() -> dict[str, str]:
    """Answers of an undisturbed run, once there was one."""
    return {}


async def test_deploy_and_status(
    nodes: Nodes, data: dict[str, Any], expected: dict[str, str]
) -> None:
    nodes.deploy(data)
    nodes.wait()
    status = yaml.safe_load(nodes.serve("status"))
    application = status["applications"]["baton"]
    assert application["status"] == "RUNNING"
    assert {name: one["status"] for name, one in application["deployments"].items()} == {
        "Orchestrator": "HEALTHY",
        "SmallWorker": "HEALTHY",
        "LargeWorker": "HEALTHY",
        "Store": "HEALTHY",
    }
    # Replicas are where their labels say: the large model is not on the head.
    (large,) = nodes.replicas("LargeWorker")
    assert large["node_id"] not in {one["node_id"] for one in nodes.replicas("SmallWorker")}
    assert len(nodes.replicas("Orchestrator")) == 2
    ids = nodes.get("/v1/models").headers.get_list("x-request-id")
    assert len(ids) == 1
    answers = await asyncio.gather(*(answer(nodes, question) for question in QUESTIONS))
    expected.update(zip(QUESTIONS, answers, strict=True))
    assert len(set(answers)) > 6


async def test_the_node_with_the_large_worker_dies_during_streams(
    nodes: Nodes, expected: dict[str, str]
) -> None:
    (large,) = nodes.replicas("LargeWorker")
    before = total(nodes.metrics(), "baton_lost_calls_total", worker="large")
    async with Watch(nodes) as watch:
        streams = [asyncio.create_task(answer(nodes, question)) for question in QUESTIONS]
        await until(lambda: total(nodes.metrics(), "baton_worker_live_rows", worker="large") > 0)
        nodes.kill(nodes.number(large["pid"]))
        assert await asyncio.gather(*streams) == list(expected.values())
    assert total(watch.last, "baton_lost_calls_total", worker="large") > before
    await asyncio.to_thread(nodes.wait)


async def test_replicas_come_with_the_load_and_go_after_it(
    nodes: Nodes, cable: Cable | None, expected: dict[str, str]
) -> None:
    # In place of the lost one, and at the end of a cable.
    nodes.add(pool="models") if cable is None else nodes.add_apart(cable.file, pool="models")
    async with Watch(nodes):
        async with Load(nodes, expected, 8) as running:
            await until(lambda: len(nodes.replicas("LargeWorker")) == 2)
            assert len({one["node_id"] for one in nodes.replicas("LargeWorker")}) == 2
            await running.go_on()
        await until(lambda: len(nodes.replicas("LargeWorker")) == 1)


async def test_streams_outlive_a_cut_cable(
    nodes: Nodes, cable: Cable | None, expected: dict[str, str]
) -> None:
    """For a moment, and until Ray gives the node at its end up, with its replica."""
    if cable is None:
        pytest.skip("no network of its own on this machine")

    def there() -> list[int]:
        return [one["pid"] for one in nodes.replicas("LargeWorker") if one["node_ip"] == THERE]

    def both_write() -> bool:  # one has room for four
        return total(nodes.metrics(), "baton_worker_live_rows", worker="large") > 4

    async with Load(nodes, expected, 8) as running:
        await until(lambda: len(nodes.replicas("LargeWorker")) == 2)
        (pid,) = there()
        number = nodes.number(pid)
        await until(both_write)
        cable.cut()
        await until(cable.loses, every=0.05)
        cable.mend()
        await running.go_on()
        assert there() == [pid]
        await until(both_write)
        cable.cut()
        await until(lambda: not there())
        await running.go_on()
        cable.mend()
        await until(lambda: not nodes.lives(number))  # it hears that it was given up
        await running.go_on()


async def test_on_rays_port_a_lost_orchestrator_takes_no_count_with_it(nodes: Nodes) -> None:
    def exported() -> dict[str, float]:
        return {
            name: value
            for name, value in samples(nodes.exported()).items()
            if name.startswith("ray_baton_") and 'deployment="Orchestrator"' in name
        }

    def answered() -> bool:  # Ray's agent shows a series some seconds after its first count
        counts = [
            value
            for name, value in exported().items()
            if name.startswith("ray_baton_requests_total{") and 'policy="specreason"' in name
        ]
        return sum(counts) >= 4

    async with Watch(nodes) as watch:
        for question in QUESTIONS[:4]:
            await answer(nodes, question, model="specreason", max_tokens=100)
        await until(answered)  # what it counted since its last export would be lost with it
        before = exported()
        victim = nodes.replicas("Orchestrator")[0]
        os.kill(victim["pid"], 9)
        await until(lambda: victim["pid"] not in nodes.pids("Orchestrator"))
        await until(lambda: len(nodes.replicas("Orchestrator")) == 2)
        await until(lambda: total(watch.last, "baton_orchestrator_replicas") == 2)
    after = exported()
    for name in filter(is_count, before):
        assert after[name] >= before[name], name


async def test_a_rolling_update_loses_no_request(
    nodes: Nodes, data: dict[str, Any], expected: dict[str, str]
) -> None:
    newer = copy.deepcopy(data)
    newer["applications"][0]["args"]["limits"]["max_tokens"] = 2000
    names = ("Orchestrator", "SmallWorker", "LargeWorker")
    old = {pid for name in names for pid in nodes.pids(name)}
    nodes.add(pool="models")  # for a second large worker: so much load asks for one

    def updated() -> bool:
        return not old & {pid for name in names for pid in nodes.pids(name)}

    async with Watch(nodes), Load(nodes, expected, 4) as running:
        await running.go_on()
        await asyncio.to_thread(nodes.deploy, newer)
        await until(updated)
        await asyncio.to_thread(nodes.wait)
        await running.go_on()
    before = len(QUESTIONS) * 2  # of the two tests that every mode begins with

    def counted() -> float:  # those of the replaced orchestrators included
        exported = samples(nodes.exported())
        return total(exported, "ray_baton_requests_total", policy="large-only")

    await until(lambda: counted() >= before + 8)


async def test_a_change_reaches_both_orchestrators(nodes: Nodes) -> None:
    """They meet in the store that is held in memory."""
    made = httpx.post(
        f"{nodes.url}/v1/policies",
        json={"policy": "small-only"},
        headers={"Authorization": f"Bearer {ADMIN_KEY}"},
    )
    assert made.status_code == 201
    messages = [{"role": "user", "content": QUESTIONS[0]}]

    async def policies() -> set[str]:
        async with nodes.client() as client:
            asked = (
                client.chat.completions.create(model="baton", messages=messages, max_tokens=20)  # type: ignore[arg-type]
                for _ in range(24)
            )
            return {one.baton["policy"] for one in await asyncio.gather(*asked)}  # type: ignore[attr-defined]

    while await policies() != {"small-only"}:
        pass


async def test_logs_are_json_with_ids_and_without_secrets(nodes: Nodes) -> None:
    """After all that has gone wrong above."""
    async with nodes.client() as client:
        reply = await client.chat.completions.with_raw_response.create(
            model="small-only",
            max_tokens=20,
            messages=[{"role": "user", "content": QUESTIONS[0]}],
            extra_headers={"x-request-id": "asked-by-me"},
        )
    assert reply.headers.get_list("x-request-id") == ["asked-by-me"]
    logs = nodes.folder / "session_latest" / "logs"

    def read() -> list[dict[str, Any]]:
        files = (logs / "serve").glob("replica_baton_*.log")
        written = [line for file in files for line in file.read_text().splitlines(keepends=True)]
        return [json.loads(line) for line in written if line.endswith("\n")]

    def of_mine() -> list[dict[str, Any]]:
        return [line for line in read() if line.get("request_id") == "asked-by-me"]

    await until(lambda: bool(of_mine()))  # it is written behind the answer
    found, lines = of_mine(), read()
    assert len(found) == 1, found
    (mine,) = found
    assert mine["path"] == "/v1/chat/completions"
    assert (mine["status"], mine["deployment"]) == (200, "baton_Orchestrator")
    assert all(line["asctime"] and line["levelname"] for line in lines)
    lost = [line for line in lines if "trying again" in line["message"]]
    assert lost
    assert all(len(line["trace_id"]) == 32 and line["request_id"] for line in lost)
    for file in logs.rglob("*"):
        if file.is_file():
            text = file.read_bytes()
            assert SECRET.encode() not in text, file
            assert KEY.encode() not in text, file


async def test_a_clients_trace_reaches_the_collector(nodes: Nodes, spans: Collector) -> None:
    trace = secrets.token_hex(16)
    parent = {"traceparent": f"00-{trace}-{secrets.token_hex(8)}-01"}
    await answer(nodes, QUESTIONS[0], model="specreason", max_tokens=60, extra_headers=parent)

    def arrived() -> set[str]:
        names = {span.name for span in spans.spans if span.trace_id.hex() == trace}
        return names if "chat specreason" in names else set()

    assert await until(arrived) >= {"chat specreason", "step", "generate", "classify"}


async def test_replicas_apart_on_rays_own_port(nodes: Nodes) -> None:
    wanted = ("requests_total", "worker_passes_total", "worker_slots", "request_seconds_bucket")
    # Ray's agent shows a series some seconds after its first value.
    await until(lambda: all(f"ray_baton_{name}{{" in nodes.exported() for name in wanted))
    text = nodes.exported()
    found = [line for line in text.splitlines() if line.startswith("ray_baton_requests_total{")]
    assert len({line.partition('replica="')[2].partition('"')[0] for line in found}) >= 2


def test_rays_own_port_has_what_dashboard_and_alerts_ask_for(nodes: Nodes) -> None:
    labels = labels_of(nodes.exported())
    for query in (*QUERIES, *(rule["expr"] for rule in RULES)):
        if "ray_baton_experiment" not in query:  # none has run here
            check(query, labels)
