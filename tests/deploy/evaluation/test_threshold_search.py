"""Bisection with a known answer, and the range that a policy names itself."""

from __future__ import annotations

from typing import ClassVar

import pytest
from pydantic import Field

from deploy.evaluation.threshold_search import (
    NEAR,
    ROUNDS,
    CalibrationTarget,
    Measure,
    Point,
    Range,
    search,
)
from orchestrator.errors import InvalidRequest
from orchestrator.loop.actions import Script
from orchestrator.loop.policy import Policy
from orchestrator.types import Transcript
from policies.cascade import Cascade
from policies.single import LargeOnly
from policies.specreason import SpecReason


class Gate(Policy):
    """A policy with thresholds of every kind."""

    calibrated: ClassVar[str | None] = "share"
    share: float = Field(default=0.5, gt=0, lt=1)
    nats: float = Field(default=2.0, ge=0)
    window: int = Field(default=4, ge=1, le=9)
    name: str = "x"

    def solve(self, transcript: Transcript) -> Script[None]:
        yield from ()


def test_the_policy_names_its_threshold_and_the_field_its_bounds() -> None:
    assert Range.of(SpecReason) == Range("threshold", 0.0, 10.0)
    found = Range.of(Gate)
    assert found.parameter == "share"
    assert (found.low, found.high) == (0.001, 0.999)
    assert Range.of(Gate, "window") == Range("window", 1, 9, whole=True)
    assert Range.of(Gate, "nats", (0.5, 10)) == Range("nats", 0.5, 10)
    assert Range.of(Gate, "nats", (0.50001, 10)) == Range("nats", 0.5, 10)  # as results are kept


def test_bounds_are_checked_beside_the_other_parameters() -> None:
    asked = "reject_below", (0.0, 9.0)
    assert Range.of(Cascade, *asked, {"accept_at": 10}).high == 9
    for params, bounds in (({"accept_at": 4}, (0.0, 9.0)), ({}, None)):
        with pytest.raises(InvalidRequest, match=r"reject_below cannot be .*above accept_at"):
            Range.of(Cascade, "reject_below", bounds, params)
    with pytest.raises(InvalidRequest, match="accept_at cannot be 0: reject_below: cannot be"):
        Range.of(Cascade, "accept_at", None, {"reject_below": 3})


@pytest.mark.parametrize(
    ("policy", "parameter", "bounds", "said"),
    [
        (LargeOnly, None, None, "LargeOnly names no threshold"),
        (Gate, "nats", None, "nats needs a range"),
        (Gate, "nats", (3.0, 3.0), "nats needs a range"),
        (Gate, "nats", (0.0, float("inf")), "nats needs a range"),
        (Gate, "nats", (3.0, 3.00004), "nats needs a range"),
        (Gate, None, (0.00001, 0.5), "share cannot be 0: .* greater than 0"),
        (Gate, "name", None, "no number .name. .* budget, .*answer_reserve, share, nats, window"),
        (Gate, "nope", None, "no number 'nope'"),
        (SpecReason, None, (0.0, 20.0), "threshold cannot be 20: .* at most 10"),
        (Gate, None, (0.0, 0.5), "share cannot be 0: .* greater than 0"),
        (Gate, "window", (0.5, 9), "window cannot be 0.5: .* integer"),
    ],
)
def test_what_cannot_be_searched(
    policy: type[Policy],
    parameter: str | None,
    bounds: tuple[float, float] | None,
    said: str,
) -> None:
    with pytest.raises(InvalidRequest, match=said):
        Range.of(policy, parameter, bounds)


class Curve:
    """A policy whose large share is the threshold over ten (or ten minus it)."""

    def __init__(self, *, falling: bool = False) -> None:
        self.falling = falling
        self.asked: list[float] = []

    async def __call__(self, value: float) -> Point:
        self.asked.append(value)
        share = 1 - value / 10 if self.falling else value / 10
        return Point(value, share, 0.5 + share / 2, 0.5 + share / 2)


@pytest.mark.parametrize("falling", [False, True])
async def test_a_share_is_met_from_below_and_nearly_used_up(falling: bool) -> None:
    curve = Curve(falling=falling)
    found = await search(curve, Range("x", 0, 10), CalibrationTarget("large_share", 0.33))
    assert found.met
    assert 0.33 - NEAR <= found.best.large_share <= 0.33
    assert len(curve.asked) == len(found.tried) < 2 + ROUNDS  # no closer than a sample can tell
    assert [point.value for point in found.tried] == sorted(curve.asked)


@pytest.mark.parametrize("falling", [False, True])
@pytest.mark.parametrize("measure", ["agreement", "accuracy"])
async def test_quality_is_met_at_the_least_cost(measure: Measure, falling: bool) -> None:
    found = await search(Curve(falling=falling), Range("x", 0, 10), CalibrationTarget(measure, 0.8))
    assert found.met
    assert 0.8 <= found.best.agreement <= 0.8 + NEAR


async def test_a_cliff_is_searched_to_its_edge() -> None:
    """Shares that jump: the last value below the jump, as near as the range is halved."""

    async def cliff(value: float) -> Point:
        return Point(value, 0.1 if value < 7.3 else 0.9, 0.9)

    found = await search(cliff, Range("x", 0, 10), CalibrationTarget("large_share", 0.5))
    assert found.met
    assert 7.3 - 10 / 2 ** (ROUNDS - 1) < found.best.value < 7.3


async def test_a_search_ends_where_the_digits_that_are_kept_do() -> None:
    asked = list[float]()

    async def cliff(value: float) -> Point:
        asked.append(value)
        assert len(asked) < 2 + ROUNDS
        return Point(value, 0.1 if value < 0.73005 else 0.9, 0.9)

    found = await search(cliff, Range("x", 0, 1), CalibrationTarget("large_share", 0.5))
    assert found.best.value == 0.73
    assert len(set(asked)) == len(asked)


async def test_scores_that_lie_close_together_are_told_apart() -> None:
    """A judge may call all steps nearly right, and still know the better ones."""

    async def narrow(value: float) -> Point:
        return Point(value, min(1.0, max(0.0, (value - 8.9955) / 0.004)), 0.9)

    found = await search(narrow, Range("x", 0, 10), CalibrationTarget("large_share", 0.5))
    assert found.met
    assert 0.5 - 2 * NEAR <= found.best.large_share <= 0.5


async def test_whole_numbers() -> None:
    curve = Curve()
    found = await search(
        curve, Range("x", 0, 10, whole=True), CalibrationTarget("large_share", 0.35)
    )
    assert (found.best.value, found.met) == (3, True)
    assert all(value == int(value) for value in curve.asked)


async def test_ends_that_settle_it() -> None:
    easy = Curve()
    found = await search(easy, Range("x", 0, 10), CalibrationTarget("large_share", 1.0))
    assert (found.met, found.best.value, len(easy.asked)) == (True, 10, 2)
    found = await search(Curve(), Range("x", 5, 10), CalibrationTarget("large_share", 0.3))
    assert (found.met, found.best.value) == (False, 5)
    found = await search(Curve(), Range("x", 0, 5), CalibrationTarget("accuracy", 0.9))
    assert (found.met, found.best.value) == (False, 5)
