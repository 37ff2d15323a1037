"""Bisection with a known answer, and the range that a policy names itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import pytest
from pydantic import Field

from deploy.evaluation.threshold_search import (
    NEAR,
    ROUNDS,
    CalibrationResult,
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


async def found(
    share: Callable[[float], float], where: Range, measure: Measure, value: float
) -> CalibrationResult:
    """The result for a policy with this large share at each threshold, and quality by the share."""

    async def measured(at: float) -> Point:
        assert len(asked) < 3 + ROUNDS  # rounding may take one halving more
        assert at not in asked
        asked.append(at)
        return Point(at, share(at), 0.5 + share(at) / 2, 0.5 + share(at) / 2)

    asked: list[float] = []
    result = await search(measured, where, CalibrationTarget(measure, value))
    assert sorted(asked) == sorted(point.value for point in result.tried)
    return result


TO_TEN = Range("x", 0, 10)


@pytest.mark.parametrize("share", [lambda at: at / 10, lambda at: 1 - at / 10])
async def test_a_target_is_met_at_the_least_cost(share: Callable[[float], float]) -> None:
    result = await found(share, TO_TEN, "large_share", 0.33)
    assert result.met
    assert 0.33 - NEAR <= result.best.large_share <= 0.33  # no closer than a sample can tell
    assert [point.value for point in result.tried] == sorted(one.value for one in result.tried)
    for measure in ("agreement", "accuracy"):
        result = await found(share, TO_TEN, measure, 0.8)  # type: ignore[arg-type]
        assert result.met
        assert 0.8 <= result.best.agreement <= 0.8 + NEAR


@pytest.mark.parametrize(
    ("share", "high", "least", "most"),
    [
        # A cliff is searched to its edge, as near as the range is halved.
        (lambda at: 0.1 if at < 7.3 else 0.9, 10, 7.3 - 10 / 2 ** (ROUNDS - 1), 7.2999),
        # No further than the digits that are kept.
        (lambda at: 0.1 if at < 0.73005 else 0.9, 1, 0.73, 0.73),
        # A judge may call all steps nearly right, and still know the better ones.
        (lambda at: min(1.0, max(0.0, (at - 8.9955) / 0.004)), 10, 8.9973, 8.9975),
    ],
)
async def test_a_jump_is_found(
    share: Callable[[float], float], high: float, least: float, most: float
) -> None:
    result = await found(share, Range("x", 0, high), "large_share", 0.5)
    assert result.met
    assert least <= result.best.value <= most


async def test_whole_numbers() -> None:
    result = await found(lambda at: at / 10, Range("x", 0, 10, whole=True), "large_share", 0.35)
    assert (result.best.value, result.met) == (3, True)
    assert all(point.value == int(point.value) for point in result.tried)


@pytest.mark.parametrize(
    ("where", "measure", "value", "best", "met"),
    [
        (TO_TEN, "large_share", 1.0, 10, True),
        (Range("x", 5, 10), "large_share", 0.3, 5, False),
        (Range("x", 0, 5), "accuracy", 0.9, 5, False),
    ],
)
async def test_ends_that_settle_it(
    where: Range, measure: Measure, value: float, best: float, met: bool
) -> None:
    result = await found(lambda at: at / 10, where, measure, value)
    assert (result.met, result.best.value, len(result.tried)) == (met, best, 2)
