"""Experiments in which nothing is to be claimed, looked at all along: few claim anything."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import hypot, inf
from typing import Any, Final

import numpy as np
import pytest
from scipy.stats import binom

from orchestrator.experiments.metrics import Sample
from orchestrator.experiments.sequential import Interval, difference_interval, mean_interval

ALPHA: Final = 0.05
EXPERIMENTS: Final = 40
REQUESTS: Final = 2000
LOOK_EVERY: Final = 100
Claim = Callable[[Sample, Sample], Interval]


@dataclass(frozen=True)
class Law:
    """How a request's value is drawn, its mean, and its ends if it is bounded."""

    draw: Callable[[np.random.Generator, int], Any]
    mean: float
    ends: tuple[float, float] | None = None


LAWS: Final = {
    "normal": Law(lambda random, count: random.normal(5, 1, count), 5.0),
    "lognormal": Law(lambda random, count: random.lognormal(0, 1, count), float(np.exp(0.5))),
    "events": Law(lambda random, count: (random.random(count) < 0.95) * 1.0, 0.95, (0.0, 1.0)),
    "rare": Law(lambda random, count: (random.random(count) < 0.005) * 1.0, 0.005, (0.0, 1.0)),
}


def always_valid(arm: Sample, control: Sample) -> Interval:
    return difference_interval(arm, control, ALPHA)


def claims(law: Law, share: float, claim: Claim, apart: float = 0.0, units: int = 100) -> int:
    """How many experiments claim a difference at any look; the arm's values are `apart` higher."""
    random, claimed = np.random.default_rng(7), 0
    for _ in range(EXPERIMENTS):
        values, mine = law.draw(random, REQUESTS), random.random(REQUESTS) < share
        values = values + apart * mine
        for end in range(LOOK_EVERY, REQUESTS + 1, LOOK_EVERY):
            arm, control = (
                Sample(values[:end][chosen[:end]], law.ends) for chosen in (mine, ~mine)
            )
            if min(arm.count, control.count) < units:
                continue
            found = claim(arm, control)
            if found.low > 0 or found.high < 0:
                claimed += 1
                break
    return claimed


def by_chance(claimed: int, alpha: float) -> bool:
    return bool(binom.sf(claimed - 1, EXPERIMENTS, alpha) > 1e-4)


@pytest.mark.parametrize("units", [10, 100])
@pytest.mark.parametrize("share", [0.5, 0.1])
@pytest.mark.parametrize("name", LAWS)
def test_few_arms_that_are_alike_are_said_to_differ(name: str, share: float, units: int) -> None:
    assert by_chance(claims(LAWS[name], share, always_valid, units=units), ALPHA)


def test_an_arm_that_differs_is_found() -> None:
    assert claims(LAWS["normal"], 0.5, always_valid, apart=0.4) == EXPERIMENTS


def test_the_usual_test_would_be_found_out() -> None:
    """So that the simulation can fail: 1.96 standard errors at every look."""

    def usual(arm: Sample, control: Sample) -> Interval:
        apart, half = arm.mean - control.mean, 1.96 * hypot(arm.error, control.error)
        return Interval(apart, apart - half, apart + half)

    assert not by_chance(claims(LAWS["lognormal"], 0.5, usual), ALPHA)


@pytest.mark.parametrize("name", LAWS)
def test_few_guardrails_stop_an_arm_at_its_limit(name: str) -> None:
    law = LAWS[name]

    def over(arm: Sample, _: Sample) -> Interval:
        found = mean_interval(arm, ALPHA)
        return Interval(found.estimate, found.low - law.mean, inf)

    assert by_chance(claims(law, 0.5, over, units=20), ALPHA)
