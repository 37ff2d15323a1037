"""Past readouts of an experiment: how many are kept, how far apart, and what they say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.experiments import experimenter, readouts
from orchestrator.experiments.documents import Experiment, initial_state
from orchestrator.experiments.report import ExperimentReport, report
from orchestrator.experiments.runs import Run
from orchestrator.state.memory import MemoryStore
from tests.orchestrator.experiments.records import request
from tests.orchestrator.serving import HTTP, post, service, serving, until

EXPERIMENT = Experiment.model_validate(
    {
        "name": "trial",
        "arms": [{"name": "one", "policy": "large-only"}, {"name": "two", "policy": "small-only"}],
        "goal": {"metric": "ms"},
    }
)
RUN = Run(1, EXPERIMENT, initial_state(1000.0), {}, b"")


def nothing() -> ExperimentReport:
    return report(EXPERIMENT, RUN.state, [])


async def test_the_older_a_run_the_longer_between_two_readouts() -> None:
    store = MemoryStore()
    assert await readouts.next_due(store, RUN, 1000.0) == 1000.0
    await readouts.keep(store, RUN, nothing(), 1000.0)
    assert await readouts.next_due(store, RUN, 1000.0) == 1005.0
    assert await readouts.next_due(store, RUN, 400.0) == 405.0  # the clock was ahead, and is set
    await readouts.keep(store, RUN, nothing(), 1000.0 + 1200)
    assert await readouts.next_due(store, RUN, 2300.0) == 2200.0 + 10


async def test_a_long_run_has_few_readouts_which_span_it() -> None:
    store = MemoryStore()
    at, made = 1000.0, 0
    while at < 1000.0 + 90 * 86_400:  # three months
        await readouts.keep(store, RUN, nothing(), at)
        at = await readouts.next_due(store, RUN, at)
        made += 1
    assert made < readouts.KEPT
    shown = await readouts.read(store, RUN)
    assert readouts.SHOWN / 2 < len(shown) <= readouts.SHOWN
    times = [one["at"] for one in shown]
    assert times == sorted(times)
    assert times[0] < 1000 + 3600
    assert times[-1] > 1000 + 89 * 86_400
    assert await readouts.read(store, replace(RUN, number=2)) == []  # a run has its own


async def test_more_than_are_kept_push_the_oldest_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readouts, "KEPT", 3)
    store = MemoryStore()
    for at in range(5):
        await readouts.keep(store, RUN, nothing(), at)
    assert [one["at"] for one in await readouts.read(store, RUN)] == [2, 3, 4]


async def test_a_readout_says_the_goals_intervals() -> None:
    store = MemoryStore()
    requests = [
        request(arm, n, ms=float(base + n % 5))
        for n, (arm, base) in enumerate([("one", 100), ("two", 50)] * 100)
    ]
    made = report(EXPERIMENT, RUN.state, requests)
    await readouts.keep(store, RUN, made, 5000.0)
    (kept,) = await readouts.read(store, RUN)
    (goal,) = [one for one in made.comparisons if one.metric == "ms"]
    assert kept == {
        "at": 5000.0,
        "intervals": {
            "two": [goal.always_valid.estimate, goal.always_valid.low, goal.always_valid.high]
        },
    }
    assert kept["intervals"]["two"][2] < 0


def test_a_service_keeps_them_and_its_report_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experimenter, "UPDATE_S", 0.05)
    monkeypatch.setattr(readouts, "APART_S", 0.1)

    def past(url: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = HTTP.get(f"{url}/v1/experiments/trial/report").json()[
            "readouts"
        ]
        return found

    with serving(service()) as url:
        body = EXPERIMENT.model_dump(mode="json", exclude_defaults=True)
        assert HTTP.post(f"{url}/v1/experiments", json=body).status_code == 201
        for _ in range(6):
            post(url)
        until(lambda: len(past(url)) >= 3)
        HTTP.post(f"{url}/v1/experiments/trial/stop", json={}).raise_for_status()
        ended = len(past(url))
        assert 3 <= len(past(url)) <= ended + 1  # what was read stays to be seen, and no more comes
