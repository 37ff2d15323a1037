"""Tests for one planned look: against known values and scipy, and their level by simulation."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import chi2_contingency, ttest_1samp, ttest_ind

from orchestrator.experiments.fixed_horizon import fixed_difference_test, fixed_paired_test
from orchestrator.experiments.samples import Sample, linearise


def test_welch_and_its_interval_are_scipys() -> None:
    random = np.random.default_rng(7)
    own, other = random.lognormal(0, 1, 80), random.lognormal(0.3, 0.5, 120)
    found = fixed_difference_test(Sample(own), Sample(other), 0.05)
    assert found is not None
    theirs = ttest_ind(own, other, equal_var=False)
    assert found.p == pytest.approx(theirs.pvalue)
    assert (found.low, found.high) == pytest.approx(tuple(theirs.confidence_interval(0.95)))
    assert fixed_difference_test(Sample(own[:1]), Sample(other), 0.05) is None
    assert fixed_difference_test(Sample(np.ones(5)), Sample(np.ones(5)), 0.05) is None


def test_proportions_are_compared_as_such() -> None:
    def share(right: int, count: int) -> Sample:
        return Sample(np.array([1.0] * right + [0.0] * (count - right)), (0.0, 1.0))

    found = fixed_difference_test(share(56, 70), share(48, 80), 0.05)
    assert found is not None
    # Newcombe (1998), table II (a): 56/70 - 48/80, method 10
    assert (found.low, found.high) == pytest.approx((0.0524, 0.3339), abs=1e-4)
    cells = [[56, 14], [48, 32]]
    assert found.p == pytest.approx(chi2_contingency(cells, correction=False).pvalue, rel=1e-9)
    for right in (0, 1, 50):  # nothing is undefined at the ends
        found = fixed_difference_test(share(50 - right, 50), share(right, 50), 0.05)
        assert found is not None
        assert -1 <= found.low <= found.high <= 1
        assert found.p < 1e-9
    same = fixed_difference_test(share(0, 50), share(0, 60), 0.05)
    assert same is not None
    assert same.p == 1.0


def test_pairs_have_a_test_of_their_own() -> None:
    found = fixed_paired_test(Sample(np.array([1.0, 2.0, 3.0, 2.0])), 0.05)
    assert found is not None
    # mean 2, standard error 0.408, t of 3 degrees at 97.5 %: 3.182
    assert (found.low, found.high) == pytest.approx((2 - 1.299, 2 + 1.299), abs=1e-3)
    theirs = ttest_1samp([1.0, 2.0, 3.0, 2.0], 0.0)
    assert found.p == pytest.approx(theirs.pvalue, rel=1e-9)
    assert fixed_paired_test(Sample(np.zeros(9)), 0.05) is None


def test_units_that_ask_often_count_once() -> None:
    """Ratios by the delta method hold their level where requests of a unit are alike."""
    random = np.random.default_rng(9)
    wrong = naive = 0
    for _ in range(400):
        arms = []
        for _ in range(2):
            asked = random.integers(1, 20, 150)
            mood = random.normal(100, 30, 150)  # of a unit
            arms.append(np.stack([asked * mood, asked], axis=1).astype(float))
        samples = [linearise(arm) for arm in arms]
        tested = fixed_difference_test(samples[0], samples[1], 0.05)
        assert tested is not None
        wrong += tested.p < 0.05
        flat = [np.repeat(arm[:, 0] / arm[:, 1], arm[:, 1].astype(int)) for arm in arms]
        naive += ttest_ind(*flat, equal_var=False).pvalue < 0.05
    assert wrong / 400 < 0.09  # 0.05, give or take 3.7 standard errors
    assert naive / 400 > 0.3
