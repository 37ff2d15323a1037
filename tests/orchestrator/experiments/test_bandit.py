"""The autopilot in simulation: the right arm, within its bounds, exploring within limits."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from math import inf
from typing import Any

import numpy as np
import pytest

from orchestrator.experiments.bandit import (
    Allocation,
    allocate_samples,
    doubly_robust_scores,
    known_bound,
)
from orchestrator.experiments.documents import (
    Bound,
    Experiment,
    Prices,
    StoppedArm,
    initial_state,
)
from orchestrator.experiments.outcome_log import RequestRecord
from orchestrator.experiments.report import report
from orchestrator.experiments.samples import Sample
from tests.orchestrator.experiments.records import request

TRUTH = {  # latency in ms, reward: the embedded pair's, roughly
    "large": (140.0, 0.95),
    "shared.0": (62.0, 0.80),  # a threshold too low
    "shared.1": (84.0, 0.95),
    "shared.2": (110.0, 0.955),
    "small": (29.0, 0.68),
}
BATCH = 500


def pilot(**more: Any) -> Experiment:
    bound = {"metric": "reward", "by": 0.03, "than": "large"}
    return Experiment.parse(
        {
            "name": "pilot",
            "kind": "bandit",
            "arms": [
                {"name": "large", "policy": "large-only"},
                {"name": "shared", "policy": "specreason", "grid": {"threshold": [3, 5, 7]}},
                {"name": "small", "policy": "small-only"},
            ],
            "goal": {"metric": "ms", "within": [bound]},
            **more,
        }
    )


class World:
    """Answers to requests, by arm, and what a bandit has seen of them."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.times: dict[str, list[float]] = {name: [] for name in TRUTH}
        self.rewards: dict[str, list[float]] = {name: [] for name in TRUTH}

    def serve(self, weights: dict[str, float], count: int) -> None:
        drawn = self.random.choice(list(weights), count, p=list(weights.values()))
        for name, number in Counter(drawn.tolist()).items():
            ms, right = TRUTH[name]
            self.times[name] += (ms * self.random.lognormal(-0.18, 0.6, number)).tolist()
            self.rewards[name] += (self.random.random(number) < right).astype(float).tolist()

    def samples(self) -> dict[str, dict[Any, Sample]]:
        return {
            name: {
                "ms": Sample(np.array(self.times[name])),
                "reward": Sample(np.array(self.rewards[name]), (0.0, 1.0)),
            }
            for name in TRUTH
        }

    def run(self, experiment: Experiment, batches: int) -> list[Allocation]:
        found = []
        weights: dict[str, float] = dict(experiment.weights)
        for _ in range(batches):
            self.serve(weights, BATCH)
            found.append(allocate_samples(experiment, self.samples(), self.random))
            weights = dict(found[-1].weights)
        return found


def test_it_converges_to_the_fastest_arm_that_keeps_the_bound() -> None:
    right = 0
    for seed in range(40):
        last = World(seed).run(pilot(exploration=0.3), 40)[-1]
        right += max(last.weights, key=last.weights.__getitem__) == "shared.1"
        assert last.weights["shared.1"] < 0.95  # exploration does not end
        assert last.weights["small"] < 0.01
        assert last.weights["shared.0"] < 0.01
    assert right >= 36  # 95 % sure of a bound: 285 of 300 seeds are right


def test_exploration_is_bounded_from_the_first_decision_on() -> None:
    world = World(3)
    unproven = []
    for found in world.run(pilot(), 20):
        proven = {n for n, b in found.beliefs.items() if b["sure"]}
        unproven.append(sum(w for n, w in found.weights.items() if n not in proven))
        assert sum(found.weights.values()) == pytest.approx(1)
        assert min(found.weights.values()) > 0
    assert max(unproven) <= 0.1 + 1e-9


def test_a_bound_is_known_by_many_units_not_by_ten() -> None:
    bound = pilot().goal.within[0]  # a reward at most 0.03 below
    control = Sample(np.repeat([1.0, 0.0], [950, 50]), (0.0, 1.0))

    def known(right: int, wrong: int) -> bool | None:
        own = Sample(np.repeat([1.0, 0.0], [right, wrong]), (0.0, 1.0))
        return known_bound(bound, own, control, 1000)

    assert known(9, 0) is known(10, 0) is known(95, 5) is known(0, 9) is None
    assert known(2850, 150) is True
    assert known(60, 40) is False
    slower = Bound(metric="ms", by=10.0)
    times = Sample(np.random.default_rng(1).normal(100, 10, 500))
    assert known_bound(slower, times, times, 1000) is True
    assert known_bound(slower, Sample(times.values + 30), times, 1000) is False


def test_without_bounds_it_is_thompson_sampling() -> None:
    last = World(4).run(pilot(goal={"metric": "ms"}), 10)[-1]
    assert last.weights["small"] > 0.9
    assert last.beliefs["small"]["best"] > 0.99


def test_arms_that_nobody_has_seen_are_explored_and_not_trusted() -> None:
    random = np.random.default_rng(5)
    nothing = {
        name: {"ms": Sample(np.array([])), "reward": Sample(np.array([]), (0.0, 1.0))}
        for name in TRUTH
    }
    found = allocate_samples(pilot(), nothing, random)  # type: ignore[arg-type]
    assert found.weights["large"] > 0.9  # what the bound compares with keeps it
    assert all(found.weights[name] > 0.005 for name in TRUTH)


def test_the_same_evidence_and_seed_give_the_same_weights() -> None:
    world = World(6)
    world.serve(dict(pilot().weights), 1000)
    first, again = (
        allocate_samples(pilot(), world.samples(), np.random.default_rng(1)) for _ in range(2)
    )
    assert first == again


def test_every_process_draws_the_same() -> None:
    """Replicas hash strings differently, and must not differ in what they think."""
    script = (
        "from tests.orchestrator.experiments.test_bandit import World, pilot\n"
        "print(World(7).run(pilot(), 2)[-1].weights)"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", script],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout
        for seed in ("1", "2", "3", "4")
    }
    assert said == {f"{World(7).run(pilot(), 2)[-1].weights}\n"}


def adaptive(seed: int, count: int = 400) -> dict[str, list[RequestRecord]]:
    """Two arms alike; the one that did better in the first half is drawn more in the second."""
    random = np.random.default_rng(seed)
    by_arm: dict[str, list[RequestRecord]] = {"a": [], "b": []}
    chance = 0.5
    for n in range(count):
        if n == count // 8:
            means = {
                k: np.mean([r.outcome.ms for r in v if r.outcome and r.outcome.ms])
                for k, v in by_arm.items()
            }
            chance = 0.95 if means["a"] < means["b"] else 0.05
        arm = "a" if random.random() < chance else "b"
        by_arm[arm].append(
            request(
                arm,
                n,
                ms=float(100 + 20 * random.normal()),
                probability=chance if arm == "a" else 1 - chance,
            )
        )
    return by_arm


def test_estimates_are_unbiased_where_the_means_are_not() -> None:
    biased, unbiased = [], []
    for seed in range(400):
        by_arm = adaptive(seed)
        scores = doubly_robust_scores(by_arm, "ms", inf, Prices())
        for arm, own in by_arm.items():
            biased.append(np.mean([r.outcome.ms for r in own if r.outcome and r.outcome.ms]))
            unbiased.append(scores[arm].mean())
    error = np.std(unbiased) / np.sqrt(len(unbiased))
    assert abs(np.mean(unbiased) - 100) < 4 * error
    assert np.mean(biased) > 100 + 4 * np.std(biased) / np.sqrt(len(biased))


def of_arms(*names: str) -> Experiment:
    arms = [{"name": name, "policy": "x"} for name in names]
    return Experiment.parse(
        {"name": "pilot", "kind": "bandit", "arms": arms, "goal": {"metric": "ms"}, "min_units": 10}
    )


def test_the_report_of_a_bandit_goes_by_them() -> None:
    made = of_arms("a", "b")
    wrong = 0
    for seed in range(40):
        by_arm = adaptive(seed)
        found = report(made, initial_state(0.0), [*by_arm["a"], *by_arm["b"]])
        assert found.sample_ratio is None
        assert all(one.fixed_horizon is None for one in found.comparisons)
        wrong += found.verdicts["b"] in ("better", "worse")
    assert wrong <= 5


def test_what_comes_after_an_arm_was_stopped_says_nothing_of_it() -> None:
    """Arms that are alike, of which one is stopped early: its mean stays, and is seen no more."""
    made, wrong = of_arms("a", "b", "c"), 0
    stopped = {"b": StoppedArm(at=60.0, why="it was slow")}
    state = initial_state(0.0).model_copy(update={"stopped": stopped})
    for seed in range(20):
        random = np.random.default_rng(seed)
        requests = []
        for n in range(3000):
            names = "abc" if n <= 60 else "ac"
            arm = names[int(random.integers(len(names)))]
            ms = float(100 * random.lognormal(0, 0.6))
            requests.append(request(arm, n, ms=ms, probability=1 / len(names)))
        found = report(made, state, requests)
        wrong += found.verdicts["b"] in ("better", "worse")
        assert found.verdicts["c"] == "too_early"
    assert wrong <= 3


@pytest.mark.parametrize("weights", [{"a": 0.5, "c": 0.5}, {"a": 0.5, "b": 0.0, "c": 0.5}])
def test_the_report_of_a_bandit_whose_arm_was_stopped(weights: dict[str, float]) -> None:
    stopped = {"b": StoppedArm(at=90.0, why="it was slow")}
    update = {"stopped": stopped, "weights": weights}
    requests = [request("abc"[n % 3], n, ms=100.0 + n % 7, probability=1 / 3) for n in range(300)]
    found = report(of_arms("a", "b", "c"), initial_state(0.0).model_copy(update=update), requests)
    needed = {one.arm: one.needed for one in found.comparisons if one.metric == "ms"}
    assert needed["b"] is None
    assert needed["c"] is not None
    assert found.weights == {"a": 0.5, "b": 0.0, "c": 0.5}
