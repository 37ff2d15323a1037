"""Tests for one look at a planned sample size, beside the sequential ones."""

from __future__ import annotations

from dataclasses import dataclass
from math import hypot, sqrt

import numpy as np

from orchestrator.experiments.distributions import (
    NORMAL,
    chi_square_tail,
    student_quantile,
    student_tail,
)
from orchestrator.experiments.samples import Sample


@dataclass(frozen=True, slots=True)
class FixedHorizonTest:
    """A test for one look at a planned sample size: its name, interval and p value."""

    test: str
    low: float
    high: float
    p: float


def fixed_difference_test(arm: Sample, control: Sample, alpha: float) -> FixedHorizonTest | None:
    """Newcombe's interval and the chi-square test for proportions, else Welch's t."""
    if min(arm.count, control.count) < 2:
        return None
    if arm.binary and control.binary:
        return _proportions(arm, control, alpha)
    if not (arm.values.std() or control.values.std()):
        return None
    parts = [float(np.var(one.values, ddof=1)) / one.count for one in (arm, control)]
    error = sqrt(sum(parts))
    freedom = sum(parts) ** 2 / (
        parts[0] ** 2 / (arm.count - 1) + parts[1] ** 2 / (control.count - 1)
    )
    return _student("Welch's t", arm.mean - control.mean, error, freedom, alpha)


def fixed_paired_test(sample: Sample, alpha: float) -> FixedHorizonTest | None:
    """Student's t on the differences of pairs."""
    if sample.count < 2 or not sample.values.std():
        return None
    error = float(np.std(sample.values, ddof=1)) / sqrt(sample.count)
    return _student("paired t", sample.mean, error, sample.count - 1, alpha)


def _student(
    test: str, estimate: float, error: float, freedom: float, alpha: float
) -> FixedHorizonTest:
    half = error * float(student_quantile(-NORMAL.inv_cdf(alpha / 2), freedom))
    p = 2 * student_tail(abs(estimate) / error, freedom)
    return FixedHorizonTest(test, estimate - half, estimate + half, p)


def _proportions(arm: Sample, control: Sample, alpha: float) -> FixedHorizonTest:
    """Newcombe's interval (1998, method 10) and the chi-square test without correction."""
    count, pooled = arm.count + control.count, (arm.values.sum() + control.values.sum())
    difference, chance = arm.mean - control.mean, float(pooled) / count
    variance = chance * (1 - chance) * (1 / arm.count + 1 / control.count)
    p = chi_square_tail(difference**2 / variance, 1) if variance else 1.0
    (low, high), (other_low, other_high) = (_wilson(one, alpha) for one in (arm, control))
    return FixedHorizonTest(
        "proportions: Newcombe, chi-square",
        max(-1.0, difference - hypot(arm.mean - low, other_high - control.mean)),
        min(1.0, difference + hypot(high - arm.mean, control.mean - other_low)),
        p,
    )


def _wilson(sample: Sample, alpha: float) -> tuple[float, float]:
    """Wilson's interval for a proportion."""
    z, count, share = NORMAL.inv_cdf(alpha / 2), sample.count, sample.mean
    middle = share + z**2 / (2 * count)
    half = -z * sqrt(share * (1 - share) / count + (z / (2 * count)) ** 2)
    whole = 1 + z**2 / count
    return (middle - half) / whole, (middle + half) / whole
