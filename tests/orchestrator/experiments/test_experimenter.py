"""Experiments over real HTTP: arms, exposures, shadows, guardrails, reports."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import httpx
import pytest

from orchestrator.errors import (
    Conflict,
    InvalidRequest,
    StoreError,
    StoreUnavailable,
    Unsupported,
    WorkerError,
)
from orchestrator.experiments import experimenter, outcome_log
from orchestrator.experiments.documents import Experiment, initial_state
from orchestrator.experiments.outcome_log import LogReader
from orchestrator.experiments.runs import Run
from orchestrator.http.auth import Access, Keys
from orchestrator.http.service import Service
from orchestrator.state.memory import MemoryStore
from orchestrator.state.versions import AuditInfo
from tests.orchestrator.experiments.records import request
from tests.orchestrator.serving import HTTP, post, scripted, service, serving, until

ARMS = [{"name": "large", "policy": "large-only"}, {"name": "small", "policy": "small-only"}]
AGREEING = {"metric": "agreement", "at_least": 0.9}


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experimenter, "UPDATE_S", 0.05)


def start(url: str, **more: Any) -> httpx.Response:
    body = {"name": "trial", "arms": ARMS, "goal": {"metric": "ms"}, **more}
    return HTTP.post(f"{url}/v1/experiments", json=body)


def show(url: str, path: str = "trial") -> Any:
    found = HTTP.get(f"{url}/v1/experiments/{path}")
    assert found.status_code == 200, found.text
    return found.json()


def ask(url: str, body: Any = None, **headers: str) -> dict[str, Any]:
    answered = post(url, body, headers=headers)
    assert answered.status_code == 200, answered.text
    made: dict[str, Any] = answered.json()["baton"]
    return made


def recorded(made: Service, stream: str = "outcomes/trial/1") -> list[dict[str, Any]]:
    """What the embedded store holds; read as an observer, from the test's own thread."""
    store = made.shared.store
    assert isinstance(store, MemoryStore)
    entries = asyncio.run(store.read(stream, count=10_000))
    return [json.loads(entry.event) for entry in entries]


def test_a_request_is_answered_by_its_arm_and_says_so() -> None:
    made = service()
    with serving(made) as url:
        assert start(url).status_code == 201
        seen = [ask(url) for _ in range(40)]
        assert {(one["arm"], one["policy"]) for one in seen} == {
            ("large", "large-only"),
            ("small", "small-only"),
        }
        assert {one["experiment"] for one in seen} == {"trial"}
        until(lambda: len(recorded(made)) == 80)
        exposed = {one["trace_id"]: one for one in recorded(made) if one["kind"] == "exposure"}
        assert {one["trace_id"]: one["arm"] for one in seen} == {
            trace: one["arm"] for trace, one in exposed.items()
        }
        report = show(url, "trial/report")
        assert report["verdicts"] == {"small": "too_early"}
        assert sum(report["sample_ratio"]["counts"].values()) == 40
        assert report["arms"]["large"]["ms"]["units"] > 0
        assert report["arms"]["large"]["large_share"]["mean"] == 1.0
        stopped = HTTP.post(f"{url}/v1/experiments/trial/stop", json={"note": "done"})
        assert stopped.json()["status"] == "stopped"
        assert ask(url)["experiment"] is None
        assert HTTP.get(f"{url}/v1/experiments/nobody/report").status_code == 404


def test_a_comparison_ends_in_the_right_verdict() -> None:
    made = service()
    with serving(made) as url:
        goal = {"metric": "large_tokens", "within": [{"metric": "error", "by": 0.9}]}
        start(url, goal=goal, min_units=20)
        for _ in range(120):
            ask(url)
        until(lambda: len(recorded(made)) == 240)
        report = show(url, "trial/report")
        assert report["verdicts"] == {"small": "better"}
        assert report["sentence"].startswith("small is better than large: its tokens by large")
        (bound,) = report["bounds"]
        assert bound["surely"]


def test_those_who_read_a_report_at_once_are_given_one(monkeypatch: pytest.MonkeyPatch) -> None:
    made, computed, failing = service(), list[int](), True
    computing = experimenter.report

    def counted(experiment: Any, state: Any, requests: Any, *more: Any) -> Any:
        if failing:
            raise RuntimeError("once")
        computed.append(len(requests))
        return computing(experiment, state, requests, *more)

    monkeypatch.setattr(experimenter, "report", counted)
    with serving(made) as url:
        start(url)
        ask(url)
        until(lambda: len(recorded(made)) == 2)
        assert HTTP.get(f"{url}/v1/experiments/trial/report").status_code == 500
        failing = False
        with ThreadPoolExecutor(4) as pool:
            shown = list(pool.map(lambda _: show(url, "trial/report"), range(4)))
        assert all(one == shown[0] for one in shown)
        assert computed == [1]
        ask(url)
        until(lambda: len(recorded(made)) == 4)
        assert show(url, "trial/report")["sample_ratio"] != shown[0]["sample_ratio"]
        assert computed == [1, 2]


def test_events_that_a_restored_store_lacks_are_forgotten() -> None:
    made = service()
    with serving(made) as url:
        start(url)
        ask(url)
        until(lambda: len(recorded(made)) == 2)
        assert sum(show(url, "trial/report")["sample_ratio"]["counts"].values()) == 1
        asyncio.run(made.shared.store.drop("outcomes/trial/1"))  # an older backup lacks them
        watcher = made.shared.watcher
        watcher.current = replace(watcher.current, identity="of the backup")
        assert not any(show(url, "trial/report")["sample_ratio"]["counts"].values())


async def test_the_log_of_a_run_is_read_once_however_many_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(experimenter, "REPORTS", 2)
    made = service()
    shared, reading, begun = made.shared, made.shared.store.read, list[str]()

    async def read(stream: str, *, after: str = "", count: int = 1000) -> Any:
        if not after:
            begun.append(stream)
        return await reading(stream, after=after, count=count)

    monkeypatch.setattr(shared.store, "read", read)
    names = [f"trial-{n}" for n in range(4)]
    for n, name in enumerate(names):
        group = {"name": "trials", "start": n / 4, "end": (n + 1) / 4}
        trial = Experiment.parse({"name": name, "arms": ARMS, "group": group})
        run = await shared.experimenter.runs.start(trial, AuditInfo())
        await shared.store.append(run.stream, lines(0, 1), keep=9)
    await shared.watcher.refresh()
    for _ in range(3):
        await shared.experimenter.update()
    assert begun == [f"outcomes/{name}/1" for name in names]
    await shared.experimenter.report("trial-0")
    assert len(begun) == 4
    await shared.experimenter.runs.stop("trial-0", AuditInfo())
    await shared.watcher.refresh()
    for _ in range(3):
        await shared.experimenter.update()
    assert len(begun) == 4
    for _ in range(3):
        await shared.experimenter.report("trial-0")  # whose log is kept no longer
    assert begun[4:] == ["outcomes/trial-0/1"]


def test_a_session_stays_with_its_arm() -> None:
    with serving(service()) as url:
        assert start(url, unit="session", secret="0" * 32).status_code == 201
        arms = {
            session: {ask(url, **{"x-session-id": session})["arm"] for _ in range(5)}
            for session in ("a", "b", "c", "d", "e", "f")
        }
        assert all(len(found) == 1 for found in arms.values())
        assert len(set().union(*arms.values())) == 2
        assert ask(url)["experiment"] is None  # it names no session


def test_users_and_keys_are_units_too() -> None:
    access = Access(Keys(["one", "two"]), Keys(["root"]))
    with serving(service(access=access)) as url:
        root = {"authorization": "Bearer root"}
        body = {"name": "trial", "arms": ARMS, "unit": "user"}
        refused = HTTP.post(
            f"{url}/v1/experiments", json=body, headers={"authorization": "Bearer one"}
        )
        assert refused.status_code == 403
        assert HTTP.post(f"{url}/v1/experiments", json=body, headers=root).status_code == 201
        mine = {"authorization": "Bearer one"}
        arms = [ask(url, {"user": "ada"}, **mine)["arm"] for _ in range(6)]
        assert len(set(arms)) == 1
        HTTP.post(f"{url}/v1/experiments/trial/stop", json={}, headers=root)
        body |= {"unit": "key"}
        assert HTTP.post(f"{url}/v1/experiments", json=body, headers=root).status_code == 201
        assert len({ask(url, {"user": f"u{n}"}, **mine)["arm"] for n in range(6)}) == 1


def test_who_says_what_they_want_takes_no_part() -> None:
    with serving(service(methods={"lookup": "lookup"})) as url:
        start(url)
        assert ask(url, {"model": "specreason"})["experiment"] is None
        assert ask(url, {"policy": {"threshold": 3}})["experiment"] is None
        assert ask(url, {"policy": {"name": "bild"}})["experiment"] is None
        assert ask(url, {"speculation": "lookup"})["experiment"] is None
        assert post(url, {"n": 2}).json()["baton"]["experiment"] is None


METHODS = {"vanilla": "vanilla", "lookup": "lookup", "reflective": "reflective (lossy)"}


def test_an_arm_is_decoded_by_its_method_and_says_so() -> None:
    large = scripted()
    made = service(large=large, methods=METHODS, speculation={"large": "vanilla"})
    arms = [
        {"name": "plain", "policy": "large-only"},
        {"name": "copied", "policy": "large-only", "speculation": "lookup"},
        {"name": "trusting", "policy": "specreason", "speculation": "reflective"},
        {"name": "ghost", "policy": "large-only", "speculation": "lookup", "shadow": True},
    ]
    wanted = {"plain": None, "copied": "lookup", "trusting": "reflective"}
    said = {"plain": "vanilla", "copied": "lookup", "trusting": "reflective (lossy)"}
    with serving(made) as url:
        initial_state = start(url, arms=arms)
        assert initial_state.status_code == 201, initial_state.text
        assert {n: a["speculation"] for n, a in initial_state.json()["arms"].items()} == {
            **wanted,
            "ghost": "lookup",
        }
        for _ in range(40):  # all arms answer, but for a chance of 3 in ten million
            one = ask(url)
            assert one["speculation"] == {"large": said[one["arm"]]}
            heard = {h.call.speculation for h in large.calls if h.call.request == one["trace_id"]}
            assert heard == {wanted[one["arm"]]}
            kept = HTTP.get(f"{url}/v1/traces/{one['trace_id']}").json()
            assert kept["speculation"] == one["speculation"]
        # A shadow is asked for by its own method, not by that of the arm it repeats.
        until(lambda: any(h.call.request.endswith("-shadow") for h in large.calls))
        shadows = {h.call.speculation for h in large.calls if h.call.request.endswith("-shadow")}
        assert shadows == {"lookup"}
        until(lambda: sum(one["kind"] == "outcome" for one in recorded(made, "outcomes")) >= 40)
        ended = [one for one in recorded(made, "outcomes") if one["kind"] == "outcome"]
        assert {one["arm"]: one["speculation"] for one in ended} == said


def test_rewards_stop_an_arm_where_an_administrator_trusts_who_gives_them() -> None:
    made = service(access=Access(Keys(["app", "tester"]), Keys(["root"])))
    rails = [{"metric": "reward", "at_least": 0.9, "min_units": 20}]
    named = {name: {"authorization": f"Bearer {name}"} for name in ("app", "tester", "root")}
    tester = Keys(["tester"]).owner("Bearer tester")
    body = {"name": "trial", "arms": ARMS, "guardrails": rails}
    with serving(made) as url:

        def begin(**more: Any) -> httpx.Response:
            return HTTP.post(f"{url}/v1/experiments", json=body | more, headers=named["root"])

        def judge(who: str) -> None:
            for _ in range(60):
                given = ask(url, **named[who])
                told = {"trace_id": given["trace_id"], "reward": 0.0}
                HTTP.post(f"{url}/v1/feedback", json=told, headers=named[who])

        def stopped() -> bool:
            found = HTTP.get(f"{url}/v1/experiments/trial", headers=named["root"]).json()
            return "small" in found["state"]["stopped"]

        refused = begin()
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "judges")
        assert begin(judges=[tester]).status_code == 201
        judge("app")
        until(lambda: len(recorded(made)) == 180)
        read = HTTP.get(f"{url}/v1/experiments/trial/report", headers=named["root"]).json()
        assert not any("reward" in arm for arm in read["arms"].values())
        assert not stopped()
        judge("tester")
        until(stopped)


@pytest.mark.parametrize(
    ("failure", "status", "refused"),
    [
        (WorkerError("gone"), 503, False),
        (InvalidRequest("too long"), 400, True),
        (Unsupported("no probabilities"), 400, False),  # another arm could have answered
    ],
)
def test_an_outcome_says_whether_the_request_could_be_answered_at_all(
    failure: Exception, status: int, refused: bool
) -> None:
    made = service(large=scripted(failures={0: failure}))
    with serving(made) as url:
        start(url, arms=[ARMS[0], {"name": "too", "policy": "large-only"}])
        assert post(url).status_code == status
        until(lambda: len(recorded(made)) == 2)
        (ended,) = [one for one in recorded(made) if one["kind"] == "outcome"]
        assert (ended["status"], ended["refused"]) == ("failed", refused)
        assert ended["ms"] > 0


def test_a_guardrail_stops_an_arm_by_itself_and_says_why() -> None:
    made = service(small=_Broken())
    rails = [{"metric": "error", "at_most": 0.05}]
    with serving(made) as url:
        start(url, guardrails=rails)

        def stopped() -> bool:
            for _ in range(10):
                post(url)
            return "small" in show(url)["state"]["stopped"]

        until(stopped)
        assert show(url)["state"]["stopped"]["small"]["why"].startswith("error at most 0.05: 1 ")
        until(lambda: all(post(url).status_code == 200 for _ in range(20)))
        report = show(url, "trial/report")
        assert "was stopped (error at most 0.05" in report["sentence"]
        assert report["stopped"].keys() == {"small"}
        assert 'baton_experiment_arms_stopped_total{experiment="trial"} 1.0' in (
            HTTP.get(f"{url}/metrics").text
        )


class _Broken:
    """A worker that reads prompts and then fails, as one does that runs out of memory."""

    def __init__(self) -> None:
        self._inner = scripted()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def generate(self, call: Any, span: Any, sampling: Any, **more: Any) -> Any:
        if span.max_tokens > 1:
            raise WorkerError("out of memory")
        async for item in self._inner.generate(call, span, sampling, **more):
            yield item


def test_shadows_answer_again_and_are_never_returned() -> None:
    made = service()
    shadow = {"name": "ghost", "policy": "specreason", "shadow": True}
    with serving(made) as url:
        start(url, arms=[ARMS[0], shadow])
        seen = [ask(url) for _ in range(5)]
        assert {one["policy"] for one in seen} == {"large-only"}

        def shadows() -> list[dict[str, Any]]:
            return [one for one in recorded(made) if one.get("shadow")]

        until(lambda: len(shadows()) == 5)
        assert {one["trace_id"] for one in shadows()} == {one["trace_id"] for one in seen}
        assert {(one["arm"], one["agreement"]) for one in shadows()} == {("ghost", True)}
        told_of = {one["metric"]: one for one in show(url, "trial/report")["comparisons"]}
        assert told_of["agreement"]["always_valid"]["estimate"] == 1.0
        assert told_of["small_tokens"]["paired"]


def test_a_cap_on_the_thought_holds_for_shadows_too() -> None:
    made = service()
    shadow = {"name": "ghost", "policy": "small-only", "shadow": True}
    with serving(made) as url:
        start(url, arms=[ARMS[0], shadow])
        served = ask(url, {"thinking_token_budget": 2})
        until(lambda: len(recorded(made)) == 3)
    (outcome,) = (one for one in recorded(made) if one.get("shadow"))
    assert outcome["small_tokens"] == served["metrics"]["large_tokens"]


def test_shadows_wait_until_nobody_is_being_answered() -> None:
    made = service()
    shadow = {"name": "ghost", "policy": "specreason", "shadow": True}
    with serving(made) as url:
        start(url, arms=[ARMS[0], shadow])
        with _one_slow_request(made):
            for _ in range(5):
                ask(url)
            until(lambda: len(recorded(made)) == 10)
            threading.Event().wait(0.3)
            assert not [one for one in recorded(made) if one.get("shadow")]
        until(lambda: len([one for one in recorded(made) if one.get("shadow")]) == 5)


@contextmanager
def _one_slow_request(made: Service) -> Iterator[None]:
    """Somebody is being answered all the while."""
    made.live.admission.live += 1
    made.live.quiet.clear()
    try:
        yield
    finally:
        made.live.admission.live -= 1
        made.live.quiet.set()


@pytest.mark.parametrize("refusal", [Conflict("another was faster"), StoreUnavailable("away")])
async def test_what_could_not_be_carried_out_is_decided_once_more(
    refusal: StoreError, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, refusals = service(), [refusal]
    shared, change = made.shared, made.shared.experimenter.runs.change
    ramp = {"steps": [0.1, 1.0], "hold_s": 0.0, "units": 0}
    trial = Experiment.parse({"name": "trial", "arms": ARMS, "ramp": ramp})
    await shared.experimenter.runs.start(trial, AuditInfo())

    async def refusing(*args: Any) -> None:
        if refusals:
            raise refusals.pop()
        await change(*args)

    monkeypatch.setattr(shared.experimenter.runs, "change", refusing)
    await shared.watcher.refresh()
    with suppress(StoreUnavailable):
        await shared.experimenter.update()
    assert shared.watcher.current.experiments[0].state.step == 0
    await shared.experimenter.update()
    assert shared.watcher.current.experiments[0].state.step == 1


def lines(first: int, count: int) -> list[bytes]:
    made = [request("large", n, ms=1.0) for n in range(first, first + count)]
    return [one.exposure.model_dump_json().encode() for one in made]


async def test_a_slow_report_rests_until_more_than_events_are_new(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(experimenter, "SLOW_S", 0.0)
    monkeypatch.setattr(experimenter, "REST", 1e9)
    shared = service().shared
    runs = shared.experimenter.runs
    run = await runs.start(Experiment.parse({"name": "trial", "arms": ARMS}), AuditInfo())
    _, first = await shared.experimenter.report("trial")
    await shared.store.append(run.stream, lines(0, 3), keep=20)
    _, again = await shared.experimenter.report("trial")
    assert again is first
    await runs.stop("trial", AuditInfo())
    _, last = await shared.experimenter.report("trial")
    assert last.sample_ratio is not None
    assert last.sample_ratio.counts == {"large": 3, "small": 0}


async def test_a_reader_knows_whether_requests_were_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outcome_log, "EVENTS_KEPT", 20)
    monkeypatch.setattr(outcome_log, "KEPT", 30)
    now = [0.0]
    store = MemoryStore(wall_clock=lambda: now[0])
    run = Run(1, Experiment.parse({"name": "trial", "arms": ARMS}), initial_state(0.0), {})
    early = LogReader(run)
    await early.read(store)
    assert early.since is None
    for n in range(3):
        now[0] = 10.0 * n
        await store.append(run.stream, lines(10 * n, 10), keep=20)
        await early.read(store)
    assert early.since is None  # it was there all the while
    late = LogReader(run)
    await late.read(store)
    assert late.since == 10.0
    await store.append(run.stream, lines(30, 1), keep=20)
    for reader, since in ((early, 0.0), (late, 10.0)):
        await reader.read(store)
        assert reader.since == since


def test_what_can_never_be_decided_is_not_started() -> None:
    with serving(service()) as url:
        for wrong in ({"goal": {"metric": "cost"}}, {"guardrails": [AGREEING]}):
            refused = start(url, **wrong)
            assert refused.status_code == 400
            assert next(iter(wrong)) in refused.json()["error"]["message"]
        assert start(url, goal={"metric": "cost"}, prices={"large": 1.0}).status_code == 201


def test_a_report_says_from_when_its_requests_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outcome_log, "KEPT", 8)
    made = service()
    with serving(made) as url:
        start(url)
        assert show(url, "trial/report")["since"] is None
        for _ in range(12):
            ask(url)
        until(lambda: len(recorded(made)) == 24)
        report = show(url, "trial/report")
        exposed = sorted(one["at"] for one in recorded(made) if one["kind"] == "exposure")
        assert report["since"] == pytest.approx(exposed[4])
        assert report["verdicts"] == {"small": "forgotten"}
