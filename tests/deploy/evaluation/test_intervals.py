"""Statistics against known numbers and against scipy."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binomtest

from deploy.evaluation.intervals import (
    mean,
    paired,
    quantile,
    ratio_of_sums,
    wilson,
)


def test_wilson_is_scipys() -> None:
    for right, count in ((0, 7), (1, 1), (977, 1000), (33, 50)):
        theirs = binomtest(right, count).proportion_ci(method="wilson")
        assert wilson(right, count) == pytest.approx((theirs.low, theirs.high), abs=1e-6)
    assert wilson(0, 0) == (0.0, 1.0)


def test_the_paired_difference() -> None:
    ours = [True] * 70 + [True] * 12 + [False] * 4 + [False] * 14
    theirs = [True] * 70 + [False] * 12 + [True] * 4 + [False] * 14
    difference, *interval = paired(ours, theirs)
    assert difference == pytest.approx(0.08)
    # by hand: up 13/102, down 5/102, half 1.96 * sqrt((18/102 - (8/102)**2) / 102)
    assert interval == pytest.approx([-0.00166, 0.15852], abs=1e-5)
    assert paired([True] * 50, [True] * 50)[0] == 0.0
    assert paired([], []) == (0.0, -1.0, 1.0)


def test_quantiles() -> None:
    assert quantile([3, 1, 2], 0.5) == 2
    assert quantile([0, 10], 0.95) == pytest.approx(9.5)
    assert quantile([], 0.5) == mean([]) == 0.0


def test_a_ratio_of_sums_against_the_delta_method() -> None:
    rng = np.random.default_rng(3)
    theirs = rng.lognormal(3.0, 0.5, 800)
    ours = 2 * theirs * rng.lognormal(0.0, 0.2, 800)
    low, high = ratio_of_sums(ours.tolist(), theirs.tolist())
    ratio = ours.sum() / theirs.sum()
    half = 1.96 * np.std(ours - ratio * theirs) / (theirs.mean() * len(theirs) ** 0.5)
    assert (low, high) == pytest.approx((ratio - half, ratio + half), rel=0.005)
    assert (low, high) == ratio_of_sums(ours.tolist(), theirs.tolist())  # no chance in it


def test_a_ratio_of_equal_or_of_no_times() -> None:
    assert ratio_of_sums([2.0, 4.0], [1.0, 2.0]) == (2.0, 2.0)
    assert ratio_of_sums([], []) == (0.0, 0.0)
    assert ratio_of_sums([0.0], [0.0]) == (0.0, 0.0)
