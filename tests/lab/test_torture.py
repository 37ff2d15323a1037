"""The attacks find what is weak, and a service that holds passes them."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from inspect import isawaitable
from itertools import chain, repeat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import httpx
import pytest
import redis
from starlette.responses import JSONResponse, PlainTextResponse

from deploy.lab.commands.torture import LONG, SHORT, _is_loopback
from deploy.lab.torture import attack as attack_module
from deploy.lab.torture import faults as faults_module
from deploy.lab.torture import load, own_machine, states
from deploy.lab.torture.attack import (
    Attack,
    AttackedService,
    Reply,
    ScenarioOutcome,
    percentile,
)
from deploy.lab.torture.faults import (
    FAULTS,
    KINDS,
    QUESTIONS,
    OwnProcesses,
    ProcessFault,
)
from deploy.lab.torture.hostile import hostile_request
from deploy.lab.torture.own_experiment import OwnExperiment
from deploy.lab.torture.own_machine import OwnClock, OwnMemory
from deploy.lab.torture.own_redis import STATES, own_redis
from deploy.lab.torture.run import SCENARIOS, client, table, torture
from orchestrator.errors import ContextLengthExceeded, WorkerError
from orchestrator.http.auth import Access, Keys
from orchestrator.http.limits import ServiceLimits
from orchestrator.state.memory import MemoryStore
from policies import POLICIES
from tests.deploy.service.test_proxy import serving as behind_the_proxy
from tests.orchestrator.serving import scripted, service, serving
from workers.scripted import Scripted

FEW = {"hostile": 60, "large": 2, "scrapes": 3, "overload": 12}


@pytest.fixture(autouse=True)
def _any_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test is about how fast this machine is."""
    monkeypatch.setattr(attack_module, "HEALTH_S", 60.0)
    monkeypatch.setattr(load, "SLOWER", 1e9)
    monkeypatch.setattr(load, "BEFORE_S", 0.2)
    monkeypatch.setattr(load, "BURSTS", 1)
    monkeypatch.setattr(load, "QUIET", 2)


async def attacked(url: str, **scenarios: int) -> dict[str, ScenarioOutcome]:
    return {one.scenario: one async for one in torture(AttackedService(url), scenarios)}


class Bounded(Scripted):
    """Refuses what is too long, as real workers do."""

    async def generate(self, call: Any, *args: Any, **more: Any) -> Any:
        if len(call.transcript.messages[0].content) > 10_000:
            raise ContextLengthExceeded("too long", param="messages")
        async for item in super().generate(call, *args, **more):
            yield item


async def test_a_service_that_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    story = scripted().story
    made = service(
        Bounded(story=story, delay=0.001),
        Bounded(story=story, delay=0.001),
        limits=ServiceLimits(concurrent=6, wait_s=0.05),
    )
    with serving(made) as url:
        found = await attacked(url, **FEW)
    for outcome in found.values():
        assert outcome.broken == [], outcome
    assert found["hostile"].requests == 60
    assert found["overload"].seen["try 1 200"] >= 6
    assert found["large"].seen["400"] == 2
    assert found["scrapes"].seen["scrape 200"] == 3
    assert "| hostile | 60 |" in table(list(found.values()))


async def test_an_experiments_report_is_read_over_all_its_events(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(load, "EVENTS", 600)
    store = MemoryStore()
    access = Access(Keys(["user"]), admins=Keys(["admin"]), observers=Keys(["observer"]))
    with serving(service(store=store, access=access)) as url:
        own = OwnExperiment(url, "admin", lambda: store)
        target = AttackedService(url, "user", None, "observer", experiments=own)
        (found,) = [one async for one in torture(target, {"reports": 3})]
        assert found.broken == []
        assert found.seen["report 200"] == 3
        await own.start(600, random.Random(0))
        with pytest.raises(WorkerError, match="expected an experiment to start and stop, got 4"):
            await own.start(600, random.Random(0))  # it runs
    with serving(service(access=access)) as url:
        own = OwnExperiment(url, "admin", MemoryStore)  # another store than the service's
        target = AttackedService(url, "user", None, "observer", experiments=own)
        (found,) = [one async for one in torture(target, {"reports": 1})]
    assert found.broken[0].startswith("no report of Baton's to a report")


def answers(**given: Any) -> Callable[..., Any]:
    """A service with one answer for every chat, and one for everything else."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        chat = scope["path"] == "/v1/chat/completions"
        made = given["chat"]() if chat and "chat" in given else JSONResponse({"degraded": False})
        await made(scope, receive, send)

    return app


def _answer(text: str) -> JSONResponse:
    message = {"role": "assistant", "content": text}
    return JSONResponse({"choices": [{"message": message}], "baton": {"degraded": []}})


async def test_what_does_not_hold_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with behind_the_proxy(answers(chat=lambda: PlainTextResponse("oops", 200))) as url:
        found = await attacked(url, overload=1)
    assert "no answer of Baton's" in found["overload"].broken[0]
    numbers = iter(range(10_000))
    with behind_the_proxy(answers(chat=lambda: _answer(f"{next(numbers)}"))) as url:
        found = await attacked(url, overload=5, large=2, scrapes=2)
    assert "another answer" in found["overload"].broken[0]
    assert any("megabyte" in one for one in found["large"].broken)
    assert any("no metrics" in one for one in found["scrapes"].broken)
    monkeypatch.setattr(load, "TRIES", 2)
    first, full = iter([_answer("x")]), JSONResponse({}, 429, {"retry-after": "1"})
    with behind_the_proxy(answers(chat=lambda: next(first, full))) as url:
        found = await attacked(url, overload=3)
    assert found["overload"].seen["try 2 429"] == 3
    assert "3 of 3 that were refused came again in vain" in found["overload"].broken
    crash = JSONResponse({"error": {"message": "x"}}, 500)
    with behind_the_proxy(answers(chat=lambda: crash)) as url:
        found = await attacked(url, hostile=40)
    assert any(one.startswith("500 to") for one in found["hostile"].broken)
    assert any("afterwards a user gets 500" in one for one in found["hostile"].broken)


def test_attacks_are_repeatable_and_of_every_kind() -> None:
    chance, again = random.Random(1), random.Random(1)
    made = [hostile_request(chance) for _ in range(300)]
    assert made == [hostile_request(again) for _ in range(300)]
    assert any(max(one) > 127 for one in made)
    assert len({one.split(b" ")[0] for one in made}) > 4
    assert LONG.keys() == SCENARIOS.keys() > SHORT.keys()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "expected a URL or --own, got neither"),
        (("--own", "large=48"), "got --own and large=48: scenarios go behind --scenarios"),
        (("http://10.0.0.7:8000",), "not on this machine"),
        (
            ("http://127.0.0.1:1", "--scenarios", "faults"),
            "reports, faults, redis, memory, disk, clock, soak want --own",
        ),
        (("http://127.0.0.1:1", "--scenarios", "flood"), "$BATON_OTHER_API_KEY"),
        (("http://127.0.0.1:1", "--scenarios", "hostile=0"), "above 0"),
        (("http://127.0.0.1:1", "--scenarios", "hostile=-3"), "above 0"),
        (("http://127.0.0.1:1", "--scenarios", "hostile="), "above 0"),
        (("http://127.0.0.1:1", "--scenarios", "hostile=many"), "above 0"),
        (("http://127.0.0.1:1", "--scenarios", ""), "is none of"),
        (("http://127.0.0.1:1", "--scenarios", "nonesuch"), "is none of"),
    ],
)
def test_what_is_refused(baton: Any, arguments: tuple[str, ...], told: str) -> None:
    ran = baton("lab", "torture", *arguments)
    assert ran.status == 2
    assert told in ran.err


ANSWER = {"choices": [{"message": {"content": "1"}}], "baton": {"degraded": []}}


async def test_a_cache_that_tells_is_found_out_and_one_that_does_not_is_not() -> None:
    seen, tells = set[str](), True

    async def app(scope: Any, receive: Any, send: Any) -> None:
        cached = 0
        if scope["path"].endswith("completions"):
            asked = json.loads((await receive())["body"])
            text = asked["messages"][0]["content"]
            cached = 30 if text in seen else 20
            if asked.get("user") == "victim":
                seen.add(text)
        details = {"cached_tokens": cached if tells else 20}
        usage = {"usage": {"prompt_tokens_details": details}}
        await JSONResponse(ANSWER | usage)(scope, receive, send)

    with behind_the_proxy(app) as url:
        found = (await attacked(url, guesses=100))["guesses"]
        assert found.requests == 100
        assert found.seen["right by cached tokens 10 of 10"] == 1
        assert "by cached tokens a stranger guessed 10 of 10 digits" in found.broken
        tells = False
        found = (await attacked(url, guesses=100))["guesses"]
        assert not any("cached tokens" in one for one in found.broken)


class Fates:
    """Processes of nobody, and what is done to them."""

    def __init__(self) -> None:
        self.done: list[tuple[str, signal.Signals]] = []
        self.grown = 0.0

    def signal(self, kind: str, sign: signal.Signals) -> Any:
        if kind == "ServeController":
            raise LookupError(kind)
        self.done.append((kind, sign))
        return lambda again: self.done.append((kind, again))

    def levels(self) -> dict[str, float]:
        self.grown += 10
        return {"MiB": 100 + self.grown, "threads": 7}


@pytest.fixture
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    never = [ProcessFault(one.kind, one.stopped_s and 0.01) for one in FAULTS]
    monkeypatch.setattr(faults_module, "FAULTS", tuple(never))


@pytest.mark.usefixtures("_at_once")
async def test_every_kind_is_killed_and_stopped_and_goes_on() -> None:
    fates = Fates()
    with serving(service()) as url:
        target = AttackedService(url, processes=fates)
        (found,) = [one async for one in torture(target, {"faults": len(FAULTS)})]
    assert found.broken == []
    assert found.requests == len(FAULTS) * len(POLICIES) * len(QUESTIONS)
    assert found.seen["stream 200"] + found.seen["200"] == found.requests
    assert found.seen["stream 200"] >= found.requests // 3
    assert found.seen["no ServeController"] == 3
    for kind in set(KINDS) - {"ServeController"}:
        signs = [sign for one, sign in fates.done if one == kind]
        assert signs.count(signal.SIGKILL) == 1
        assert signs.count(signal.SIGSTOP) == signs.count(signal.SIGCONT) == 2


async def test_later_faults_are_short_but_every_tenth() -> None:
    order = faults_module._order(attacking(rightly, "faults", 200))
    assert len(order) == 200
    assert set(order[: len(FAULTS)]) == set(FAULTS)
    long = [fault for fault in order if fault.stopped_s == 60.0]
    assert {fault.kind for fault in long} == set(KINDS)
    assert len(long) == len(KINDS) + (200 - len(FAULTS)) // 10


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

    reply = await attacking(answer, "faults", 1).stream()
    assert reply.kind == kind
    assert text is None or reply.text == text


@pytest.mark.usefixtures("_at_once")
async def test_an_answer_that_a_fault_changed_or_lost_is_told() -> None:
    numbers = iter(range(10_000))
    with behind_the_proxy(answers(chat=lambda: _answer(f"{next(numbers)}"))) as url:
        target = AttackedService(url, processes=Fates())
        (found,) = [one async for one in torture(target, {"faults": 1})]
    assert any("another answer that does not say why" in one for one in found.broken)
    assert any("lost" in one for one in found.broken)  # a stream that never ends
    undisturbed = len(POLICIES) * len(QUESTIONS)
    refused = chain([_answer("x")] * undisturbed, repeat(JSONResponse({"error": {}}, 503)))
    with behind_the_proxy(answers(chat=lambda: next(refused))) as url:
        (found,) = [one async for one in torture(target_of(url), {"faults": 1})]
    assert any("503" in one for one in found.broken)


def target_of(url: str) -> AttackedService:
    return AttackedService(url, processes=Fates())


async def test_what_grows_is_told() -> None:
    with serving(service()) as url:
        (found,) = [one async for one in torture(target_of(url), {"soak": 1})]
    assert found.broken == ["MiB grew from 110 to 170"]
    assert found.seen["threads 7 to 7"] == 1
    assert found.requests > 4


async def test_load_scenarios_measure_and_judge(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "STEP_S", 2.0)
    monkeypatch.setattr(load, "WARM_S", 0.0)
    monkeypatch.setattr(load, "CONCURRENT", (2,))
    monkeypatch.setattr(load, "GOODPUT", 0.0)  # of a machine that does other things
    monkeypatch.setattr(load, "ADMITTED_SLOWER", 1e9)
    access = Access(Keys(["one", "two"]))
    made = service(access=access, limits=ServiceLimits(concurrent=4, wait_s=0.5))
    with serving(made) as url:
        target = AttackedService(url, "one", "two")
        found = {s.scenario: s async for s in torture(target, {"capacity": 1, "flood": 1})}
        assert found["capacity"].broken == []
        assert any(one.startswith("goodput") for one in found["capacity"].seen)
        assert found["flood"].seen["quiet 200"] > 0
        assert not any("refused" in one for one in found["flood"].broken)
    monkeypatch.setattr(load, "GOODPUT", 99.0)
    for scenario, told in ("capacity", "goodput is"), ("flood", "are its share"):
        attack = attacking(soon, scenario, 1, key="one", other_key="two")
        await SCENARIOS[scenario](attack)
        assert any(told in one for one in attack.outcome.broken)


def test_a_redis_of_ones_own_in_every_bad_state() -> None:
    with own_redis() as server:
        client = redis.Redis.from_url(server.url, socket_timeout=0.3)
        client.set("kept", "1")
        for state in STATES:
            server.begin(state)
            if state in ("hung", "gone", "read-only", "full"):
                with pytest.raises(redis.RedisError):
                    client.set("new", "2")
            server.end(state)
            client.set("new", "2")
            assert (client.get("kept") is None) == (STATES.index(state) >= STATES.index("wiped"))
        client.close()
    with pytest.raises(redis.ConnectionError):
        redis.Redis.from_url(server.url).ping()


def test_a_redis_that_does_not_start_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[subprocess.Popen[bytes]] = []

    class Noted(subprocess.Popen[bytes]):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            begun.append(self)

    monkeypatch.setattr(subprocess, "Popen", Noted)
    monkeypatch.setattr("deploy.lab.torture.own_redis.START_S", 0.0)
    with pytest.raises(WorkerError, match="did not start"), own_redis():
        pass
    (process,) = begun
    ended = process.poll() is not None
    process.kill()
    assert ended


async def test_a_service_in_a_bad_state_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(states, "STATE_S", 0.1)
    begun: list[str] = []

    class Nothing:
        states, refusals = ("odd", "worse"), ("503",)

        def begin(self, state: str) -> None:
            begun.append(state)

        def end(self, state: str) -> None:
            begun.append(f"no longer {state}")

    with serving(service()) as url:
        target = AttackedService(url, states={"clock": Nothing()})
        (found,) = [one async for one in torture(target, {"clock": 3})]
    assert found.broken == []
    assert begun[:4] == ["odd", "no longer odd", "worse", "no longer worse"]
    assert (found.requests, found.seen["clock odd"]) == (36, 2)
    numbers = iter(range(10_000))
    with behind_the_proxy(answers(chat=lambda: _answer(f"{next(numbers)}"))) as url:
        target = AttackedService(url, states={"clock": Nothing()})
        (found,) = [one async for one in torture(target, {"clock": 1})]
    assert any("after clock odd: large-only: another" in one for one in found.broken)


class Answered:
    """Stands for the attacker's session: a function answers what it asks."""

    def __init__(self, answer: Callable[[httpx.Request], Any]) -> None:
        self._answer = answer

    def get(self, url: str) -> Any:
        return self._reply(httpx.Request("GET", url))

    def post(self, url: str, data: bytes, headers: dict[str, str]) -> Any:
        return self.request("POST", url, data, headers)

    def request(self, method: str, url: str, data: bytes, headers: dict[str, str]) -> Any:
        return self._reply(httpx.Request(method, url, content=data, headers=headers))

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
    return httpx.Response(200, json={"degraded": False, **ANSWER})


async def soon(request: httpx.Request) -> httpx.Response:
    await asyncio.sleep(0.01)
    return rightly(request)


@pytest.mark.parametrize("lost", [True, False])
async def test_a_stranger_who_is_refused_proves_nothing(lost: bool) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        if body.get("user") != "stranger" or "What is" not in body["messages"][0]["content"]:
            return rightly(request)
        if lost:
            raise aiohttp.ServerDisconnectedError
        return httpx.Response(429, json={})

    attack = attacking(answer, "guesses", 40)
    await SCENARIOS["guesses"](attack)
    assert len(attack.outcome.broken) == 40
    assert attack.outcome.broken[0].startswith(f"the stranger got {'lost' if lost else '429'}")
    assert attack.outcome.seen["right by time 0 of 0"] == 1


async def test_so_few_guesses_are_made_more_until_they_could_tell() -> None:
    attack = attacking(rightly, "guesses", 1)
    await SCENARIOS["guesses"](attack)
    assert attack.outcome.requests == 40


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
    await SCENARIOS["capacity"](attack)
    assert attack.outcome.broken == ["nothing was answered"]


async def test_what_comes_before_it_is_none_either() -> None:
    seen = list[Reply]()
    attack = attacking(soon, "capacity", 1)
    assert await load._closed_loop(attack, 2, 0.0, seen=seen.append, warm_s=0.1) == []
    assert seen


async def test_a_connection_is_kept_and_a_stream_left() -> None:
    connections = set[object]()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        connections.add(tuple(scope["client"]))
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 429, "headers": headers})
        await send({"type": "http.response.body", "body": b"data: {}\n\n", "more_body": leaving})
        while leaving and (await receive())["type"] != "http.disconnect":
            pass

    leaving = False
    with behind_the_proxy(app) as url:
        async with client() as http:
            attack = Attack(AttackedService(url), http, ScenarioOutcome("soak"), 1, random.Random())
            assert [(await attack.ask()).kind for _ in range(3)] == ["429"] * 3
            assert len(connections) == 1
            leaving = True
            await attack.leave("a stream without an end")


async def test_connections_that_the_quiet_key_loses_count_as_refused() -> None:
    asked = 0

    async def answer(request: httpx.Request) -> httpx.Response:
        nonlocal asked
        await asyncio.sleep(0.01)
        if request.headers["authorization"] == "Bearer quiet":
            asked += 1
            if asked % 2:
                raise aiohttp.ServerDisconnectedError
        return rightly(request)

    attack = attacking(answer, "flood", 1, key="loud", other_key="quiet")
    await SCENARIOS["flood"](attack)
    lost = attack.outcome.seen["quiet lost"]
    assert lost > 0
    assert f"the other key was refused {lost} times" in attack.outcome.broken


async def test_a_lost_connection_took_its_time() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        raise aiohttp.SocketTimeoutError("too long")

    reply = await attacking(answer, "overload", 1).ask()
    assert (reply.kind, reply.text) == ("lost", "SocketTimeoutError")
    assert reply.seconds > 0


async def test_what_was_not_there_at_a_sixth_of_a_soak_is_told() -> None:
    class Late(Fates):
        def levels(self) -> dict[str, float]:
            self.grown += 1
            return {"MiB": 100} if self.grown == 1 else {"MiB": 100, "MiB of LargeWorker": 50}

    attack = attacking(rightly, "soak", 1, processes=Late())
    await SCENARIOS["soak"](attack)
    assert attack.outcome.broken == []
    assert attack.outcome.seen["MiB of LargeWorker unknown to 50"] == 1


class Absent:
    """A state of what is not there, so many times; or that cannot be brought about."""

    states, refusals = ("LargeWorker",), ("503",)

    def __init__(self, times: int, error: type[Exception] = LookupError) -> None:
        self.times, self.error, self.ended = times, error, 0

    def begin(self, state: str) -> None:
        self.times -= 1
        if self.times >= 0:
            raise self.error(state)

    def end(self, state: str) -> None:
        self.ended += 1


async def test_a_kind_that_is_being_replaced_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(states, "STATE_S", 0.01)
    later = Absent(1)
    attack = attacking(rightly, "memory", 1, states={"memory": later})
    await SCENARIOS["memory"](attack)
    assert attack.outcome.broken == []
    assert (attack.outcome.seen["memory LargeWorker"], later.ended) == (1, 1)
    monkeypatch.setattr(states, "HANG_S", 0.1)
    never = Absent(99)
    attack = attacking(rightly, "memory", 1, states={"memory": never})
    await SCENARIOS["memory"](attack)
    assert attack.outcome.broken == ["memory LargeWorker: there was no LargeWorker for 0.1 s"]
    assert never.ended == 0


async def test_a_state_is_over_and_no_stream_goes_on_when_a_run_is_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = 0

    async def answer(request: httpx.Request) -> httpx.Response:
        nonlocal asked
        asked += 1
        if asked > len(faults_module.MODELS):
            await asyncio.sleep(3600)
        return rightly(request)

    what = Absent(0)
    attack = attacking(answer, "memory", 1, states={"memory": what})
    run = asyncio.ensure_future(SCENARIOS["memory"](attack))
    while not attack.outcome.seen:
        await asyncio.sleep(0.01)
    run.cancel()
    await asyncio.wait({run})
    await asyncio.sleep(0.01)
    assert what.ended == 1
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_ready_is_asked_again_until_the_store_is_followed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(states, "STATE_S", 0.01)
    gone = aiohttp.ServerDisconnectedError()
    said: list[Any] = [{}, gone, "<html>", [], {}, {"degraded": True}, {"degraded": False}]

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path != "/ready":
            return rightly(request)
        now = said.pop(0) if len(said) > 1 else said[0]  # the first is until_ready's
        if now is gone:
            raise gone
        return httpx.Response(200, content=now if isinstance(now, str) else json.dumps(now))

    attack = attacking(answer, "redis", 1, states={"redis": Absent(0)})
    await SCENARIOS["redis"](attack)
    assert attack.outcome.broken == []
    assert len(said) == 1
    monkeypatch.setattr(states, "HANG_S", 0.1)
    said[:] = [{"degraded": True}]
    attack = attacking(answer, "redis", 1, states={"redis": Absent(0)})
    await SCENARIOS["redis"](attack)
    assert attack.outcome.broken == ["after redis LargeWorker: without its store for 0.1 s"]


@pytest.mark.parametrize(
    ("scenario", "excused"),
    [("faults", True), ("memory", True), ("redis", False), ("disk", False), ("clock", False)],
)
async def test_health_is_excused_only_where_replicas_are_lost(
    monkeypatch: pytest.MonkeyPatch, scenario: str, excused: bool
) -> None:
    monkeypatch.setattr(attack_module, "HEALTH_S", 0.0)
    attack = attacking(rightly, scenario, 1)
    async with attack.watched_health():
        await asyncio.sleep(0.01)
    assert any("/health took" in one for one in attack.outcome.broken) is not excused


async def test_health_that_says_it_is_ill_is_seen() -> None:
    asked = asyncio.Event()

    def ill(request: httpx.Request) -> httpx.Response:
        asked.set()
        return httpx.Response(503)

    attack = attacking(ill, "flood", 1)
    async with asyncio.timeout(20), attack.watched_health():
        await asked.wait()
        await asyncio.sleep(0.1)  # its answer is on its way
    assert any("/health answered 503" in one for one in attack.outcome.broken)


TERMED = """
import os, signal
from deploy.lab.commands.torture import _end_on_sigterm
_end_on_sigterm()
try:
    os.kill(os.getpid(), signal.SIGTERM)
finally:
    print("what was started ended")
"""


def test_sigterm_ends_what_was_started() -> None:
    ran = subprocess.run([sys.executable, "-c", TERMED], capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (143, "what was started ended\n")


PRINT = "import time; print(time.time(), time.monotonic(), flush=True); input()\n"


def test_a_clock_moves_and_time_goes_on(tmp_path: Path) -> None:
    try:
        clock = OwnClock(tmp_path)
    except WorkerError as error:
        pytest.skip(str(error))
    child = subprocess.Popen(
        [sys.executable, "-c", PRINT * 3],
        env={**os.environ, **clock.environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    said: list[tuple[float, ...]] = []
    for move in (lambda: None, lambda: clock.begin("a day behind"), lambda: clock.end("")):
        move()
        if said:
            child.stdin.write("\n")
            child.stdin.flush()
        said.append(tuple(map(float, child.stdout.readline().split())))
    child.communicate("\n")
    (at, since), (behind, later), (again, last) = said
    assert behind - at == pytest.approx(-86400, abs=30)
    assert again - at == pytest.approx(0, abs=30)
    assert since <= later <= last < since + 30


def test_a_process_without_memory_is_refused_more_until_it_may_have_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taking = "for _ in range(2):\n try: bytearray(1 << 28); print('had', flush=True)\n"
    taking += " except MemoryError: print('none', flush=True)\n input()\n"
    child = subprocess.Popen(
        [sys.executable, "-c", "print('up', flush=True); input()\n" + taking],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    monkeypatch.setattr(own_machine, "first_process", lambda kind: child.pid)
    child.stdout.readline()
    memory, said = OwnMemory(), []
    for change in (memory.begin, memory.end):
        change("LargeWorker")
        child.stdin.write("\n")
        child.stdin.flush()
        said.append(child.stdout.readline())
    child.communicate("\n")
    assert said == ["none\n", "had\n"]


def test_a_process_that_ended_meanwhile_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    monkeypatch.setattr(own_machine, "first_process", lambda kind: child.pid)
    with pytest.raises(LookupError, match="LargeWorker"):
        OwnMemory().begin("LargeWorker")
    monkeypatch.setattr(faults_module, "first_process", lambda kind: child.pid)
    with pytest.raises(LookupError, match="LargeWorker"):
        OwnProcesses().signal("LargeWorker", signal.SIGKILL)


FILL = """
import os, sys, tempfile
from pathlib import Path
from deploy.lab.torture import own_machine
own_machine.DISK_BYTES = 1 << 20
folder = Path(sys.argv[1])
disk = own_machine.OwnDisk(folder)
disk.begin("full")
try:
    (folder / "one").write_bytes(b"x" * 9999)
except OSError as error:
    print(error.errno)
disk.end("full")
(folder / "two").write_bytes(b"x" * 9999)
print(sorted(os.listdir(folder)))
disk.close()
folder.rmdir()
"""


def test_a_disk_is_full_for_its_service_alone(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FILL, str(tmp_path)]
    done = subprocess.run(command, text=True, capture_output=True)
    if "run it as root" in done.stderr:
        pytest.skip("this user may not mount a file system")
    assert (done.stdout, done.returncode) == (f"{errno.ENOSPC}\n['one', 'two']\n", 0), done.stderr
    assert not tmp_path.exists()


def test_replies_are_counted_in_one_way_and_percentiles_are_of_what_there_is() -> None:
    outcome = ScenarioOutcome("x")
    outcome.count(Reply("200", ""))
    outcome.count(Reply("200", "", degraded=True), "user")
    assert outcome.requests == 2
    assert dict(outcome.seen) == {"200": 1, "user 200 degraded": 1}
    assert percentile([], 0.95) == 0
    assert percentile([3.0, 1.0, 2.0], 0.95) == 3.0


def test_the_table_of_what_ended_outlives_what_follows(
    baton: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def fails(attack: Attack) -> None:
        raise WorkerError("redis-server did not start")

    monkeypatch.setitem(SCENARIOS, "large", fails)  # type: ignore[arg-type]
    out = tmp_path / "out.json"
    options = ("--scenarios", "overload=2,large", "--json", str(out))
    with serving(service()) as url:
        ran = baton("lab", "torture", url, *options)
    assert ran.status == 1
    assert "redis-server did not start" in ran.err
    assert "| overload | 2 |" in ran.out
    assert [row["scenario"] for row in json.loads(out.read_text())["rows"]] == ["overload"]


def test_the_command_says_whether_a_service_held(baton: Any, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    options = ("--short", "--scenarios", "overload", "--json", str(out))
    with serving(service(limits=ServiceLimits(concurrent=200))) as url:
        ran = baton("lab", "torture", url, *options)
    assert (ran.status, ran.err) == (0, "")
    assert "| overload | 100 |" in ran.out
    (row,) = json.loads(out.read_text())["rows"]
    assert row["held"] is True
    assert row["seen"]["try 1 200"] == 100
    assert _is_loopback("http://[::1]:8000")
    assert not _is_loopback("http://localhost.example")
