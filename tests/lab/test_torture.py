"""The attacks find what is weak, and a service that holds passes them."""

from __future__ import annotations

import asyncio
import json
import random
import re
import signal
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from inspect import isawaitable
from itertools import chain, count, repeat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import httpx
import psutil
import pytest

from deploy.lab.torture import attack as attack_module
from deploy.lab.torture import faults as faults_module
from deploy.lab.torture import load
from deploy.lab.torture.attack import Attack, ScenarioOutcome
from deploy.lab.torture.faults import FAULTS, QUESTIONS, ProcessFault
from deploy.lab.torture.own import KINDS, AttackedService, OwnProcesses
from deploy.lab.torture.run import SCENARIOS, torture
from orchestrator.errors import WorkerError
from orchestrator.http.settings import ServiceLimits
from policies import POLICIES
from tests.orchestrator.serving import service, serving


@pytest.fixture(autouse=True)
def _any_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test depends on the speed of this machine."""
    monkeypatch.setattr(attack_module, "HEALTH_S", 60.0)


async def attacked(url: str, *, own: Any = None, **scenarios: int) -> dict[str, ScenarioOutcome]:
    target = AttackedService(url, **(own or {}))
    return {one.scenario: one async for one in torture(target, scenarios)}


async def test_a_service_that_holds() -> None:
    with serving(service(limits=ServiceLimits(concurrent=6, wait_s=0.05))) as url:
        found = await attacked(url, overload=12)
    for outcome in found.values():
        assert outcome.broken == [], outcome
    assert found["overload"].seen["try 1 200"] >= 6


def _answer(text: str) -> httpx.Response:
    message = {"role": "assistant", "content": text}
    return httpx.Response(200, json={"choices": [{"message": message}], "baton": {"degraded": []}})


def ready_and(answers: Iterator[httpx.Response]) -> Callable[[httpx.Request], httpx.Response]:
    """A service that is ready, and gives one of these answers after the other."""
    ready = httpx.Response(200, json={"degraded": False})
    return lambda request: next(answers) if request.method == "POST" else ready


REFUSED = httpx.Response(429, json={}, headers={"retry-after": "0"})


@pytest.mark.parametrize(
    ("answers", "number", "said"),
    [
        (repeat(httpx.Response(200, text="oops")), 1, "no answer of Baton's"),
        (map(_answer, map(str, count())), 5, "another answer"),
        (chain([_answer("x")], repeat(REFUSED)), 3, "429 with Retry-After 0"),
        (chain([_answer("x")], repeat(REFUSED)), 3, "3 of 3 that were refused came again in vain"),
        (repeat(httpx.Response(500, json={"error": {}})), 1, "a user gets 500"),
    ],
)
async def test_what_does_not_hold_is_reported(
    answers: Iterator[httpx.Response], number: int, said: str
) -> None:
    attack = attacking(ready_and(answers), "overload", number)
    await load.overload(attack)
    await attack.check_alive()
    assert any(said in one for one in attack.outcome.broken)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("http://127.0.0.1:1", "--scenarios", "faults"), "faults needs a service"),
        (("http://127.0.0.1:1", "--scenarios", "overload=0"), "above 0"),
        (("http://127.0.0.1:1", "--scenarios", "overload=many"), "above 0"),
        (("http://127.0.0.1:1", "--scenarios", "nonesuch"), "expected one of overload"),
    ],
)
def test_what_is_refused(baton: Any, arguments: tuple[str, ...], said: str) -> None:
    ran = baton("lab", "torture", *arguments)
    assert ran.status == 2
    assert said in ran.err


ANSWER = {
    "choices": [{"message": {"content": "1"}}], "baton": {"degraded": []}, "degraded": False
}  # fmt: skip


class Fates:
    """Processes of nobody, and what is done to them."""

    def __init__(self) -> None:
        self.done: list[tuple[str, signal.Signals]] = []

    def signal(self, kind: str, sign: signal.Signals) -> Any:
        if kind == "ServeController":
            raise LookupError(kind)
        self.done.append((kind, sign))
        return lambda again: self.done.append((kind, again))


@pytest.fixture
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    never = [ProcessFault(one.kind, one.stopped_s and 0.01) for one in FAULTS]
    monkeypatch.setattr(faults_module, "FAULTS", tuple(never))
    monkeypatch.setattr(faults_module, "BEFORE_S", 0.0)


@pytest.mark.usefixtures("_at_once")
async def test_every_kind_is_killed_and_stopped_and_goes_on() -> None:
    fates = Fates()
    with serving(service()) as url:
        found = (await attacked(url, own={"processes": fates}, faults=len(FAULTS)))["faults"]
    assert found.broken == []
    assert found.requests == len(FAULTS) * len(POLICIES) * len(QUESTIONS)
    assert found.seen["stream 200"] + found.seen["200"] == found.requests
    assert found.seen["stream 200"] >= found.requests // 3
    assert found.seen["no ServeController"] == 3
    for kind in set(KINDS) - {"ServeController"}:
        signs = [sign for one, sign in fates.done if one == kind]
        assert signs.count(signal.SIGKILL) == 1
        assert signs.count(signal.SIGSTOP) == signs.count(signal.SIGCONT) == 2


EVENT = {"delta": {"reasoning_content": "a"}, "finish_reason": None}
LAST = {"delta": {"content": "b"}, "finish_reason": "stop"}


@pytest.mark.parametrize(
    ("lines", "kind", "text"),
    [
        ([{"choices": [EVENT]}, {"choices": [LAST], "baton": {}}, "[DONE]"], "200", "a|b"),
        ([{"choices": [EVENT]}, {"choices": [LAST]}], "lost", "a|b"),
        ([{"choices": [EVENT]}, "[DONE]"], "lost", "a|"),
        ([{"choices": [EVENT]}, {"error": {"message": "gone"}}], "cut", "gone"),
        (["oops"], "no answer of Baton's", None),
    ],
)
async def test_a_stream_is_whole_or_says_why_not(
    lines: list[Any], kind: str, text: str | None
) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        data = (one if isinstance(one, str) else json.dumps(one) for one in lines)
        return httpx.Response(200, text=": here\n\n" + "".join(f"data: {one}\n\n" for one in data))

    reply = await attacking(answer, "faults", 1).ask(stream=True)
    assert reply.kind == kind
    assert text is None or reply.text == text


UNDISTURBED = [_answer("x")] * len(POLICIES) * len(QUESTIONS)


@pytest.mark.usefixtures("_at_once")
@pytest.mark.parametrize(
    ("answers", "said"),
    [
        (map(_answer, map(str, count())), "another answer that does not say why"),
        (map(_answer, map(str, count())), "lost"),  # a stream that never ends
        (
            chain(
                [_answer("x")] * len(POLICIES) * len(QUESTIONS),
                repeat(httpx.Response(503, json={})),
            ),
            "503",
        ),
    ],
)
async def test_an_answer_that_a_fault_changed_or_lost_is_told(
    answers: Iterator[httpx.Response], said: str
) -> None:
    attack = attacking(ready_and(answers), "faults", 1, processes=Fates())
    await faults_module.faults(attack)
    assert any(said in one for one in attack.outcome.broken)


async def test_ready_is_asked_again_until_the_store_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gone = aiohttp.ServerDisconnectedError()
    said: list[Any] = [gone, "<html>", [], {}, {"degraded": True}, {"degraded": False}]

    def answer(request: httpx.Request) -> httpx.Response:
        now = said.pop(0) if len(said) > 1 else said[0]
        if now is gone:
            raise gone
        return httpx.Response(200, content=now if isinstance(now, str) else json.dumps(now))

    attack = attacking(answer, "faults", 1)
    await attack.until_ready()
    assert attack.outcome.broken == []
    assert len(said) == 1
    monkeypatch.setattr(attack_module, "HANG_S", 0.1)
    said[:] = [{"degraded": True}]
    await attack.until_ready()
    assert attack.outcome.broken == ["not ready, or without its store, for 0.1 s"]


class Answered:
    """Stands for the attacker's session: a function answers what it asks."""

    def __init__(self, answer: Callable[[httpx.Request], Any]) -> None:
        self._answer = answer

    def get(self, url: str) -> Any:
        return self._reply(httpx.Request("GET", url))

    def post(self, url: str, data: str, headers: dict[str, str]) -> Any:
        return self._reply(httpx.Request("POST", url, content=data, headers=headers))

    @asynccontextmanager
    async def _reply(self, request: httpx.Request) -> AsyncIterator[Any]:
        answer = self._answer(request)
        if isawaitable(answer):
            answer = await answer
        content = SimpleNamespace(readany=answer.aread)
        yield SimpleNamespace(
            status=answer.status_code,
            headers=answer.headers,
            read=answer.aread,
            content=content,
            close=answer.close,
        )


def attacking(
    answer: Callable[[httpx.Request], Any], scenario: str, number: int, **target: Any
) -> Attack:
    """An attack on a function."""
    service = AttackedService("http://service", **target)
    http: Any = Answered(answer)
    return Attack(service, http, ScenarioOutcome(scenario), number, random.Random(0))


def rightly(request: httpx.Request) -> httpx.Response:
    return httpx.Response(200, json=ANSWER)


async def soon(request: httpx.Request) -> httpx.Response:
    await asyncio.sleep(0.01)
    return rightly(request)


async def test_what_comes_after_its_time_is_no_part_of_the_capacity(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(load, "STEP_S", 0.1)
    monkeypatch.setattr(load, "WARM_S", 0.0)
    monkeypatch.setattr(load, "CONCURRENT", (8,))

    async def late(request: httpx.Request) -> httpx.Response:
        await asyncio.sleep(0.3)
        return rightly(request)

    attack = attacking(late, "capacity", 1)
    await load.capacity(attack)
    assert attack.outcome.broken == ["no request was answered"]


@pytest.mark.parametrize(("scenario", "excused"), [("faults", True), ("overload", False)])
async def test_health_is_excused_only_if_replicas_are_killed(
    monkeypatch: pytest.MonkeyPatch, scenario: str, excused: bool
) -> None:
    monkeypatch.setattr(attack_module, "HEALTH_S", 0.0)
    asked = asyncio.Event()

    def ill(request: httpx.Request) -> httpx.Response:
        asked.set()
        return httpx.Response(503)

    attack = attacking(ill, scenario, 1)
    async with asyncio.timeout(20), attack.watched_health():
        await asked.wait()
        await asyncio.sleep(0.1)  # its answer is on its way
    said = " ".join(attack.outcome.broken)
    assert ("/health took" in said, "/health answered 503" in said) == (not excused, not excused)


async def test_four_times_the_capacity_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "STEP_S", 1.0)
    monkeypatch.setattr(load, "WARM_S", 0.0)
    monkeypatch.setattr(load, "CONCURRENT", (2,))
    for goodput, slower, broken in ((0.0, 1e9, []), (99.0, 0.0, ["goodput is", "p95 of"])):
        monkeypatch.setattr(load, "GOODPUT", goodput)
        monkeypatch.setattr(load, "ADMITTED_SLOWER", slower)
        attack = attacking(soon, "capacity", 1)
        await load.capacity(attack)
        found = attack.outcome.broken
        assert len(found) == len(broken)
        assert all(one.startswith(said) for one, said in zip(found, broken, strict=True))
        assert any(one.startswith("goodput") for one in attack.outcome.seen)


def test_a_process_is_stopped_and_continued(monkeypatch: pytest.MonkeyPatch) -> None:
    name = ["bash", "-c", "exec -a ray::LargeWorker sleep 60"]
    child = subprocess.Popen(name)
    tree = [psutil.Process(child.pid)]
    monkeypatch.setattr(OwnProcesses, "_tree", lambda _: tree)
    processes = OwnProcesses(0)
    with pytest.raises(LookupError, match="SmallWorker"):
        processes.signal("SmallWorker", signal.SIGKILL)
    while not Path(f"/proc/{child.pid}/cmdline").read_bytes().startswith(b"ray::"):
        pass
    again = processes.signal("LargeWorker", signal.SIGSTOP)
    again(signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    again(signal.SIGCONT)  # it is gone, and that is no error
    with pytest.raises(LookupError, match="LargeWorker"):
        processes.signal("LargeWorker", signal.SIGKILL)


def test_the_table_of_ended_scenarios_survives_a_failure(
    baton: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(attack: Attack) -> None:
        raise WorkerError("the service ended")

    monkeypatch.setitem(SCENARIOS, "capacity", (fails, 1))  # type: ignore[arg-type]
    with serving(service(limits=ServiceLimits(concurrent=200))) as url:
        ran = baton("lab", "torture", url, "--scenarios", "overload=2,capacity")
        assert ran.status == 1
        assert "the service ended" in ran.err
        assert re.search(r"overload +2 +yes", ran.out)
        ran = baton("lab", "torture", url, "--scenarios", "overload=20")
    assert (ran.status, ran.err) == (0, "")
    assert re.search(r"overload +20 +yes +slowest /health", ran.out)
    assert "overload: held" in ran.out
