"""The attacks find what is weak, and a service that holds passes them."""

from __future__ import annotations

import json
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis
from starlette.responses import JSONResponse, PlainTextResponse

from deploy.cli.torture import LONG, SHORT, _is_loopback
from deploy.evaluation.torture import attack, load, redis_faults
from deploy.evaluation.torture import faults as faults_module
from deploy.evaluation.torture.attack import AttackedService, Reply, ScenarioOutcome, percentile
from deploy.evaluation.torture.faults import FAULTS, KINDS, ProcessFault
from deploy.evaluation.torture.hostile import hostile_request
from deploy.evaluation.torture.redis_faults import STATES, own_redis
from deploy.evaluation.torture.run import SCENARIOS, table, torture
from orchestrator.errors import ContextLengthExceeded
from orchestrator.http.auth import Access, Keys
from orchestrator.http.limits import ServiceLimits
from tests.deploy.cli.test_main import baton  # noqa: F401 a fixture
from tests.deploy.service.test_proxy import serving as behind_the_proxy
from tests.orchestrator.serving import scripted, service, serving
from workers.scripted import Scripted

FEW = {"hostile": 60, "large": 2, "overload": 24}


@pytest.fixture(autouse=True)
def _any_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test is about how fast this machine is."""
    monkeypatch.setattr(attack, "HEALTH_S", 60.0)
    monkeypatch.setattr(load, "SLOWER", 1e9)


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
    assert found["overload"].seen["200"] >= 6
    assert found["large"].seen["400"] == 2
    assert "| hostile | 60 |" in table(list(found.values()))


def answers(**given: Any) -> Callable[..., Any]:
    """A service with one answer for every chat, and one for everything else."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        chat = scope["path"] == "/v1/chat/completions"
        made = given["chat"]() if chat and "chat" in given else JSONResponse({"status": "ok"})
        await made(scope, receive, send)

    return app


def _answer(text: str) -> JSONResponse:
    message = {"role": "assistant", "content": text}
    return JSONResponse({"choices": [{"message": message}], "baton": {"degraded": []}})


async def test_what_does_not_hold_is_told() -> None:
    with behind_the_proxy(answers(chat=lambda: PlainTextResponse("oops", 200))) as url:
        found = await attacked(url, overload=1)
    assert "no answer of Baton's" in found["overload"].broken[0]
    numbers = iter(range(10_000))
    with behind_the_proxy(answers(chat=lambda: _answer(f"{next(numbers)}"))) as url:
        found = await attacked(url, overload=5, large=2)
    assert "another answer" in found["overload"].broken[0]
    assert any("megabyte" in one for one in found["large"].broken)
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
        ((), "one of them"),
        (("http://127.0.0.1:1", "--own"), "one of them"),
        (("http://10.0.0.7:8000",), "not on this machine"),
        (("http://127.0.0.1:1", "--scenarios", "faults"), "faults, redis, soak want --own"),
        (("http://127.0.0.1:1", "--scenarios", "flood"), "$BATON_OTHER_API_KEY"),
        (("http://127.0.0.1:1", "--scenarios", "hostile=0"), "above 0"),
        (("http://127.0.0.1:1", "--scenarios", "hostile=-3"), "above 0"),
        (("http://127.0.0.1:1", "--scenarios", "hostile="), "above 0"),
        (("http://127.0.0.1:1", "--scenarios", "hostile=many"), "above 0"),
        (("http://127.0.0.1:1", "--scenarios", ""), "is none of"),
        (("http://127.0.0.1:1", "--scenarios", "nonesuch"), "is none of"),
    ],
)
def test_what_is_refused(baton: Any, arguments: tuple[str, ...], told: str) -> None:  # noqa: F811
    ran = baton("torture", *arguments)
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
    assert found.requests == 4 * len(FAULTS)
    assert found.seen["no ServeController"] == 3
    for kind in set(KINDS) - {"ServeController"}:
        signs = [sign for one, sign in fates.done if one == kind]
        assert signs.count(signal.SIGKILL) == 1
        assert signs.count(signal.SIGSTOP) == signs.count(signal.SIGCONT) == 2


@pytest.mark.usefixtures("_at_once")
async def test_an_answer_that_a_fault_changed_or_lost_is_told() -> None:
    numbers = iter(range(10_000))
    with behind_the_proxy(answers(chat=lambda: _answer(f"{next(numbers)}"))) as url:
        target = AttackedService(url, processes=Fates())
        (found,) = [one async for one in torture(target, {"faults": 1})]
    assert "another answer that does not say why" in found.broken[0]
    refused = iter([_answer("x")] * 2 + [JSONResponse({"error": {}}, 503)] * 99)
    with behind_the_proxy(answers(chat=lambda: next(refused))) as url:
        (found,) = [one async for one in torture(target_of(url), {"faults": 1})]
    assert any("503" in one for one in found.broken)


def target_of(url: str) -> AttackedService:
    return AttackedService(url, processes=Fates())


async def test_what_grows_is_told() -> None:
    with serving(service()) as url:
        (found,) = [one async for one in torture(target_of(url), {"soak": 1})]
    assert found.broken == ["MiB grew from 110 to 120"]
    assert found.seen["threads 7 to 7"] == 1
    assert found.requests > 4


async def test_load_scenarios_measure_and_judge(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "STEP_S", 0.2)
    monkeypatch.setattr(load, "CONCURRENT", (1, 2))
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
        found = {s.scenario: s async for s in torture(target, {"capacity": 1, "flood": 1})}
    assert any("goodput is" in one for one in found["capacity"].broken)
    assert any("are its share" in one for one in found["flood"].broken)


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


async def test_a_service_without_its_store_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_faults, "STATE_S", 0.1)
    begun: list[str] = []

    class Nothing:
        def begin(self, state: str) -> None:
            begun.append(state)

        def end(self, state: str) -> None:
            begun.append(f"no longer {state}")

    with serving(service()) as url:
        target = AttackedService(url, store=Nothing())
        (found,) = [one async for one in torture(target, {"redis": 1})]
    assert found.broken == []
    assert begun == ["hung", "no longer hung"]
    assert found.requests == 8


def test_replies_are_counted_in_one_way_and_percentiles_are_of_what_there_is() -> None:
    outcome = ScenarioOutcome("x")
    outcome.count(Reply("200", ""))
    outcome.count(Reply("200", "", degraded=True), "user")
    assert outcome.requests == 2
    assert dict(outcome.seen) == {"200": 1, "user 200 degraded": 1}
    assert percentile([], 0.95) == 0
    assert percentile([3.0, 1.0, 2.0], 0.95) == 3.0


def test_the_command_says_whether_a_service_held(baton: Any, tmp_path: Path) -> None:  # noqa: F811
    out = tmp_path / "out.json"
    options = ("--short", "--scenarios", "overload", "--json", str(out))
    with serving(service(limits=ServiceLimits(concurrent=200))) as url:
        ran = baton("torture", url, *options)
    assert (ran.status, ran.err) == (0, "")
    assert "| overload | 100 |" in ran.out
    (row,) = json.loads(out.read_text())["rows"]
    assert row["held"] is True
    assert row["seen"]["200"] == 100
    assert _is_loopback("http://[::1]:8000")
    assert not _is_loopback("http://localhost.example")
