"""Guardrails: what breaks is stopped soon, what holds is not, however often one looks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from orchestrator.experiments.decisions import decide, next_ramp_step
from orchestrator.experiments.documents import (
    Experiment,
    ExperimentState,
    StoppedArm,
    initial_state,
)
from orchestrator.experiments.guardrails import crossed_guardrails
from orchestrator.experiments.outcome_log import RequestRecord, served_by
from tests.orchestrator.experiments.records import request


def experiment(*guardrails: dict[str, Any], **more: Any) -> Experiment:
    arms = [{"name": "large", "policy": "large-only"}, {"name": "new", "policy": "specreason"}]
    return Experiment.parse({"name": "trial", "arms": arms, "guardrails": list(guardrails), **more})


def requests(arm: str, count: int, **values: Any) -> list[RequestRecord]:
    """`count` requests; a value may be a list with one for each."""
    return [
        request(arm, n, **{k: v[n] if isinstance(v, list) else v for k, v in values.items()})
        for n in range(count)
    ]


def looked(
    made: Experiment, own: list[RequestRecord], control: list[RequestRecord]
) -> dict[str, str]:
    return crossed_guardrails(made, initial_state(0.0), {"large": control, "new": own})


BROKEN: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    ({"metric": "error", "at_most": 0.05}, {"status": "failed"}, {"status": "finished"}),
    ({"metric": "ms", "at_most": 200, "quantile": 0.95}, {"ms": 300.0}, {"ms": 100.0}),
    ({"metric": "ms", "at_most": 200}, {"ms": [300.0 + n % 9 for n in range(40)]}, {"ms": 100.0}),
    ({"metric": "large_share", "at_most": 0.6}, {"large_tokens": 90}, {"large_tokens": 10}),
    ({"metric": "reward", "at_least": 0.8}, {"reward": 0.0}, {"reward": 1.0}),
    ({"metric": "reward", "worse_than_control_by": 0.02}, {"reward": 0.0}, {"reward": 1.0}),
    ({"metric": "error", "worse_than_control_by": 0.02}, {"status": "failed"}, {}),
]


@pytest.mark.parametrize(("rail", "bad", "good"), BROKEN)
def test_a_broken_arm_is_stopped_within_40_requests(
    rail: dict[str, Any], bad: dict[str, Any], good: dict[str, Any]
) -> None:
    made = experiment(rail)
    found = looked(made, requests("new", 40, **bad), requests("large", 40, **good))
    assert found.keys() == {"new"}
    assert rail["metric"] in found["new"]
    steady = {key: (value[0] if isinstance(value, list) else value) for key, value in good.items()}
    assert looked(made, requests("new", 40, **steady), requests("large", 40, **good)) == {}


@pytest.mark.parametrize(("rail", "bad", "good"), BROKEN)
def test_a_few_requests_and_the_control_stop_nothing(
    rail: dict[str, Any], bad: dict[str, Any], good: dict[str, Any]
) -> None:
    made = experiment(rail)
    assert looked(made, requests("new", 19, **bad), requests("large", 40, **good)) == {}
    if "worse_than_control_by" not in rail:
        assert looked(made, requests("new", 40, **good), requests("large", 40, **bad)) == {}


def test_a_stopped_arm_says_why_and_stays_stopped() -> None:
    made = experiment({"metric": "error", "at_most": 0.05})
    failed = requests("new", 40, status="failed")
    state, action = decide(made, initial_state(0.0), failed, at=9.0)
    assert action == "guardrail"
    assert state.stopped["new"].at == 9.0
    assert state.stopped["new"].why == "error at most 0.05: 1 over 40 units"
    assert crossed_guardrails(made, state, {"large": [], "new": failed}) == {}
    assert decide(made, state, failed, at=99.0) == (state, "")


@pytest.mark.parametrize(
    "rail",
    [
        {"metric": "error", "at_most": 0.05, "alpha": 0.05},
        {"metric": "ms", "at_most": 250, "quantile": 0.95, "alpha": 0.05},
        {"metric": "reward", "worse_than_control_by": 0.0, "alpha": 0.05},
        {"metric": "ms", "worse_than_control_by": 0.0, "alpha": 0.05},
    ],
)
def test_sound_arms_are_seldom_stopped_however_often_one_looks(rail: dict[str, Any]) -> None:
    """60 experiments at the very limit, a look after every 40 requests."""
    made, random, wrong = experiment(rail), np.random.default_rng(1), 0
    for _ in range(60):
        arms = {}
        for arm in ("large", "new"):
            slow = np.exp(np.log(250) - 0.5 * 1.645 + 0.5 * random.normal(size=200))  # p95 is 250
            failed = np.where(random.random(200) < 0.05, "failed", "finished")
            arms[arm] = requests(
                arm,
                200,
                ms=slow.tolist(),
                status=failed.tolist(),
                reward=(random.random(200) < 0.9).astype(float).tolist(),
            )
        wrong += any(
            looked(made, arms["new"][:count], arms["large"][:count]) for count in range(40, 201, 40)
        )
    assert wrong / 60 <= 0.05


RAMP = {"hold_s": 60.0, "units": 10}


@pytest.mark.parametrize(
    ("at", "units", "steps"),
    [(59, 10, False), (60, 9, False), (60, 10, True), (1e9, 0, False)],
)
def test_the_ramp_waits_for_time_and_units(at: float, units: int, steps: bool) -> None:
    made, state = experiment(ramp=RAMP), initial_state(0.0)
    found = next_ramp_step(made, state, {"large": 50, "new": units}, at)
    assert (found is not None) is steps
    if found is not None:
        assert (found.step, found.step_since) == (1, at)


def test_the_ramp_goes_up_to_all_and_no_further() -> None:
    made = experiment(ramp=RAMP)
    state: ExperimentState | None = initial_state(0.0)
    covered = []
    for at in (100, 200, 300, 400):
        assert state is not None
        covered.append(state.coverage(made))
        state = next_ramp_step(made, state, {"large": 99, "new": 99}, at)
    assert covered == [0.01, 0.05, 0.25, 1.0]
    assert state is None
    assert next_ramp_step(experiment(), initial_state(0.0), {}, 1e9) is None


def test_the_ramp_goes_up_for_shadows_alone() -> None:
    ghost = {"name": "ghost", "policy": "specreason", "shadow": True}
    made = Experiment.parse(
        {"name": "trial", "arms": [{"name": "large", "policy": "large-only"}, ghost], "ramp": RAMP}
    )
    assert next_ramp_step(made, initial_state(0.0), {"large": 9}, 60) is None
    higher = next_ramp_step(made, initial_state(0.0), {"large": 10}, 60)
    assert higher is not None
    assert higher.step == 1


def test_a_ramp_ends_with_its_experiment() -> None:
    made = experiment({"metric": "error", "at_most": 0.05}, ramp=RAMP)
    stops = {"new": StoppedArm(at=1.0, why="slow")}
    stopped = initial_state(0.0).model_copy(update={"stopped": stops})
    assert next_ramp_step(made, stopped, {"large": 99}, 1e9) is None
    ended = initial_state(0.0).model_copy(update={"ended": 5.0})
    assert next_ramp_step(made, ended, {"large": 99, "new": 99}, 1e9) is None


def test_a_quantile_is_of_units_where_they_send_many_requests() -> None:
    """One user whose requests are all slow is one slow unit, however many requests they are."""
    made = experiment({"metric": "ms", "at_most": 200, "quantile": 0.95})
    slow = [request("new", n, unit="one", ms=300.0) for n in range(60)]
    fast = [request("new", 100 + n, unit=f"u{n % 200}", ms=100.0) for n in range(600)]
    assert looked(made, [*slow, *fast], []) == {}
    many = [request("new", 1000 + n, unit=f"s{n % 100}", ms=300.0) for n in range(300)]
    assert looked(made, [*many, *fast], [])


def test_units_that_are_all_slow_are_counted_not_their_requests() -> None:
    """Few units say little about a p95, even by a hundred slow requests each."""
    made = experiment({"metric": "ms", "at_most": 200, "quantile": 0.5, "min_units": 2})
    units = [request("new", n, unit=f"u{n % 3}", ms=300.0) for n in range(300)]
    assert looked(made, units, []) == {}
    assert looked(made, [request("new", n, unit=f"u{n % 30}", ms=300.0) for n in range(300)], [])


@pytest.mark.parametrize("rail", [{}, {"quantile": 0.95}])
@pytest.mark.parametrize("metric", ["ms", "first_step_ms"])
@pytest.mark.parametrize("status", ["cancelled", "failed"])
def test_a_slow_control_stops_no_arm_whose_requests_got_no_answer(
    status: str, metric: str, rail: dict[str, Any]
) -> None:
    """Against a limit a request without an answer counts with the time that had passed."""
    made = experiment({"metric": metric, "at_most": 2000, **rail})
    control = [request("large", 100 + n, ms=500.0, first_step_ms=400.0) for n in range(60)]
    control.append(request("large", 200, ms=600_000.0, first_step_ms=600_000.0))

    def new(patience_ms: float) -> list[RequestRecord]:
        """Every third request ends after about so long, without a first step."""
        done = {"ms": 500.0, "first_step_ms": 400.0}
        return [
            request("new", n, **done)
            if n % 3
            else request("new", n, ms=patience_ms + n, status=status)
            for n in range(90)
        ]

    def stopped(made: Experiment, own: list[RequestRecord]) -> bool:
        by_arm = served_by(made.weights, [*own, *control])
        return bool(crossed_guardrails(made, initial_state(0.0), by_arm))

    assert not stopped(made, new(patience_ms=500.0))
    assert stopped(made, new(patience_ms=30_000.0))
    relative = experiment({"metric": metric, "worse_than_control_by": 0.0})
    assert stopped(relative, new(patience_ms=500.0))


@pytest.mark.parametrize("metric", ["ms", "first_step_ms"])
def test_an_arm_with_requests_without_an_answer_is_not_too_fast(metric: str) -> None:
    """How long they would have taken nobody knows."""
    made = experiment({"metric": metric, "at_least": 50})
    fast = {
        "ms": [9.0 + n % 3 for n in range(60)],
        "first_step_ms": [5.0 + n % 3 for n in range(60)],
    }
    own = requests("new", 60, **fast)
    assert looked(made, own, []).keys() == {"new"}
    for status in ("cancelled", "failed"):
        assert looked(made, [*own, request("new", 99, ms=9.0, status=status)], []) == {}
    assert looked(made, [*own, request("new", 99, ms=9.0, status="failed", refused=True)], [])


def test_the_rails_of_correlated_users_stop_what_is_within_its_limit_seldom() -> None:
    """Each user is fast or slow: 4 % of them are slow, and 5 % may be."""
    rail = {"metric": "ms", "at_most": 200, "quantile": 0.95}
    made, stopped = experiment(rail), 0
    for seed in range(30):
        random = np.random.default_rng(seed)
        own: list[RequestRecord] = []
        for user in range(120):
            ms = 300.0 if random.random() < 0.04 else 100.0
            own += [
                request("new", 10 * user + n, unit=f"u{user}", ms=ms)
                for n in range(int(random.integers(1, 10)))
            ]
        stopped += any(looked(made, own[:count], []) for count in (100, 200, 400, len(own)))
    assert stopped <= 1
