"""Assignment: ranges, the law of the shares, and who stays where."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.experiments.assignment import assign, place
from orchestrator.experiments.documents import Experiment, StoppedArm, initial_state


def made(weights: tuple[float, ...] = (0.5, 0.5), **more: Any) -> Experiment:
    arms = [
        {"name": f"arm{number}", "policy": "specreason", "weight": weight}
        for number, weight in enumerate(weights)
    ]
    return Experiment.parse({"name": "trial", "arms": arms, **more})


@pytest.mark.parametrize(
    ("coverage", "weights", "parts"),
    [
        (1, [0.5, 0.5], [(0, 0.5), (0.5, 1)]),
        (0.5, [0.5, 0.5], [(0, 0.25), (0.5, 0.75)]),
        (0, [0.5, 0.5], [(0, 0), (0.5, 0.5)]),
        (1, [0.25] * 4, [(0, 0.25), (0.25, 0.5), (0.5, 0.75), (0.75, 1)]),
        (0.2, [0.2, 0.3, 0.5], [(0, 0.04), (0.2, 0.26), (0.5, 0.6)]),
    ],
)
def test_each_arm_has_a_range(
    coverage: float, weights: list[float], parts: list[tuple[float, float]]
) -> None:
    experiment = made(tuple(weights), coverage=coverage)
    for unit in map(str, range(2000)):
        at = place(experiment.seed, unit)
        arms = (f"arm{n}" for n, (low, high) in enumerate(parts) if low <= at < high)
        assert assign(experiment, initial_state(0), unit) == next(arms, None)


@pytest.mark.parametrize("weights", [(0.5, 0.5), (0.1, 0.9), (0.2, 0.3, 0.5), (0.01, 0.99)])
def test_units_are_divided_by_the_weights(weights: tuple[float, ...]) -> None:
    experiment, state = made(weights), initial_state(0)
    counts = Counter(assign(experiment, state, f"user-{n}") for n in range(20_000))
    for number, weight in enumerate(weights):
        assert abs(counts[f"arm{number}"] / 20_000 - weight) < 0.011  # three standard errors


def test_another_process_says_the_same() -> None:
    script = (
        "from orchestrator.experiments.assignment import assign\n"
        "from orchestrator.experiments.documents import Experiment, initial_state\n"
        "made = Experiment.parse({'name': 'trial', 'coverage': 0.7, 'arms': ["
        "{'name': 'arm0', 'policy': 'x', 'weight': 0.5},"
        "{'name': 'arm1', 'policy': 'x', 'weight': 0.5}]})\n"
        "found = [assign(made, initial_state(0), f'u{n}') for n in range(1000)]\n"
        "print(','.join(one or '-' for one in found))"
    )
    said = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    experiment = made(coverage=0.7)
    here = [assign(experiment, initial_state(0), f"u{n}") or "-" for n in range(1000)]
    assert said.stdout.strip().split(",") == here


@settings(max_examples=40)
@given(st.text(max_size=20), st.floats(0, 1), st.floats(0, 1))
def test_growing_coverage_moves_nobody(unit: str, one: float, other: float) -> None:
    less, more = sorted((one, other))
    before = assign(made((0.2, 0.3, 0.5), coverage=less), initial_state(0), unit)
    if before is not None:
        assert assign(made((0.2, 0.3, 0.5), coverage=more), initial_state(0), unit) == before


def test_secrets_make_experiments_independent() -> None:
    one, other = made(secret="0" * 32), made(secret="1" * 32)
    both = Counter(
        tuple(assign(made, initial_state(0), f"u{n}") for made in (one, other)) for n in range(4000)
    )
    # each of the four pairs is due 1,000 times, give or take 27
    assert all(abs(count - 1000) < 4 * 27 for count in both.values())


def test_groups_keep_experiments_apart() -> None:
    group = {"name": "g", "start": 0.0, "end": 0.5}
    one = made(group=group)
    other = made(name="other", group={**group, "start": 0.5, "end": 1.0})
    for unit in map(str, range(2000)):
        arms = [assign(each, initial_state(0), unit) for each in (one, other)]
        assert arms.count(None) == 1


def test_a_stopped_arm_gives_its_units_to_nobody() -> None:
    experiment, state = made(), initial_state(0)
    stopped = state.model_copy(update={"stopped": {"arm1": StoppedArm(at=1, why="slow")}})
    for n in range(200):
        before = assign(experiment, state, f"u{n}")
        after = assign(experiment, stopped, f"u{n}")
        assert after == (None if before == "arm1" else before)
