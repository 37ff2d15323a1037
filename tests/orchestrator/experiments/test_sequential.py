"""The statistics: against known values and other libraries, and their error rates by simulation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy.stats import chisquare, ttest_ind
from statsmodels.stats.power import tt_ind_solve_power
from statsmodels.stats.weightstats import CompareMeans, DescrStatsW

from orchestrator.experiments.documents import Experiment
from orchestrator.experiments.samples import Sample, linearise
from orchestrator.experiments.sequential import (
    boundary,
    degrees_of_freedom,
    difference_interval,
    fixed_difference_test,
    fixed_paired_test,
    half_width,
    mean_interval,
    proportion_exceeds,
    required_units,
    sample_ratio,
)

EXPERIMENTS, REQUESTS, EVERY, ALPHA, TUNED = 2000, 4000, 50, 0.05, 1000
LAWS: dict[str, tuple[Callable[..., Any], bool]] = {
    "times": (lambda random, shape: random.lognormal(4.4, 0.6, shape), False),
    "skewed times": (lambda random, shape: random.lognormal(4.4, 1.0, shape), False),
    "rewards": (lambda random, shape: (random.random(shape) < 0.95) * 1.0, True),
    "rare errors": (lambda random, shape: (random.random(shape) < 0.005) * 1.0, True),
}


def looks(law: str, share: float, seed: int) -> tuple[Any, Any, Any]:
    """A/A: differences, errors by arm and units by arm, at a look every 50 requests.

    The last two axes are (experiments, looks). The sums are those of `Sample`, for all experiments
    at once: that they are is checked below.
    """
    draw, bounded = LAWS[law]
    random = np.random.default_rng(seed)
    values = draw(random, (EXPERIMENTS, REQUESTS))
    mine = random.random(values.shape) < share
    found = [moments(values, arm, bounded) for arm in (mine, ~mine)]
    means, errors, counts = (np.stack(one) for one in zip(*found, strict=True))
    return means[0] - means[1], errors, counts


def moments(values: Any, arm: Any, bounded: bool) -> tuple[Any, Any, Any]:
    def seen(of: Any) -> Any:
        return np.cumsum(of, axis=1)[:, EVERY - 1 :: EVERY]

    count, total, squares = seen(arm), seen(values * arm), seen(values**2 * arm)
    mean = total / np.maximum(count, 1)
    if bounded:
        spread = (squares + 1) / (count + 2) - ((total + 1) / (count + 2)) ** 2
    else:
        spread = (squares - count * mean**2) / np.maximum(count - 1, 1)
        spread = np.where(count > 1, spread, np.inf)
    return mean, np.sqrt(spread / np.maximum(count, 1)), count


@pytest.mark.parametrize("share", [0.5, 0.1])
@pytest.mark.parametrize("law", LAWS)
def test_of_2000_aa_experiments_few_enough_claim_a_difference(law: str, share: float) -> None:
    apart, errors, counts = looks(law, share, seed=1)
    error = np.hypot(*errors)
    half = half_width(error, counts.sum(axis=0), degrees_of_freedom(errors, counts), ALPHA, TUNED)
    enough = counts.min(axis=0) >= Experiment.model_fields["min_units"].default
    wrong = (np.abs(apart) > half) & enough
    assert wrong[:, -1].mean() <= ALPHA  # one look, at the end
    assert wrong.any(axis=1).mean() <= ALPHA  # a look after every 50 requests
    if law != "rare errors":  # the usual test under the same looks, so that this can fail
        assert ((np.abs(apart) > error * 1.96) & enough).any(axis=1).mean() > 3 * ALPHA


@pytest.mark.parametrize("law", LAWS)
def test_the_simulation_looks_at_what_difference_computes(law: str) -> None:
    draw, bounded = LAWS[law]
    random = np.random.default_rng(2)
    values, mine = draw(random, (1, 300)), random.random((1, 300)) < 0.3
    found = [moments(values, arm, bounded) for arm in (mine, ~mine)]
    means, errors, counts = (np.stack(one)[:, 0, -1] for one in zip(*found, strict=True))
    ends = (0.0, 1.0) if bounded else None
    told = difference_interval(
        Sample(values[mine], ends), Sample(values[~mine], ends), ALPHA, TUNED
    )
    half = half_width(np.hypot(*errors), 300, degrees_of_freedom(errors, counts), ALPHA, TUNED)
    assert told.high - told.estimate == pytest.approx(half)
    assert told.estimate == pytest.approx(means[0] - means[1])


def test_the_sequence_is_the_papers() -> None:
    # theorem 2.2 with rho from the exact expression of appendix B.2, by hand:
    # rho^2 = (-W_-1(-0.0025/e) - 1) / 1000 = 8.2120e-3
    rho2 = 8.21197e-3
    assert np.exp(1000 * rho2) * ALPHA**2 == pytest.approx(1000 * rho2 + 1, rel=1e-3)
    for count in (10, 1000, 50_000):
        seen = count * rho2
        half = np.sqrt(2 * (seen + 1) / seen * np.log(np.sqrt(seen + 1) / ALPHA))
        assert boundary(count, ALPHA, 1000) == pytest.approx(half, rel=1e-4)


def test_the_sequence_is_tightest_where_it_is_tuned() -> None:
    at = {tuned: boundary(2000, ALPHA, tuned) for tuned in (200, 1000, 2000, 4000, 20_000)}
    assert min(at, key=at.__getitem__) == 2000
    assert boundary(0, ALPHA, 1000) == float("inf")


def test_it_sees_a_difference_that_is_there() -> None:
    random = np.random.default_rng(3)
    seen = 0
    for _ in range(200):
        own, other = random.normal(0.25, 1, 500), random.normal(0, 1, 500)
        found = difference_interval(Sample(own), Sample(other), ALPHA, TUNED)
        seen += found.low > 0
    # z is 3.95 on average and 2.98 suffice: in 83 of 100
    assert 0.75 < seen / 200 < 0.91


def test_intervals_of_one_mean_hold_at_every_look() -> None:
    random = np.random.default_rng(4)
    missed = 0
    for _ in range(200):
        values = random.lognormal(0, 0.6, 1000)
        truth = np.exp(0.18)
        for count in range(50, 1001, 50):
            found = mean_interval(Sample(values[:count]), ALPHA, TUNED)
            if not found.low <= truth <= found.high:
                missed += 1
                break
    assert missed / 200 <= ALPHA


def test_a_proportion_within_its_limit_is_seldom_called_above_it() -> None:
    random = np.random.default_rng(5)
    hits = np.cumsum(random.random((1000, 500)) < 0.05, axis=1)
    wrong = sum(
        any(proportion_exceeds(int(h), n + 1, 0.05, 0.05) for n, h in enumerate(row))
        for row in hits
    )
    assert wrong / 1000 <= 0.05


@pytest.mark.parametrize(
    ("hits", "count", "limit", "above"),
    [
        (0, 0, 0.1, False),
        (1, 1, 0.0, True),
        (3, 3, 0.05, True),  # 1/4 / 0.05^3 = 2000
        (1, 2, 0.05, False),  # B(2,2) / (.05 * .95) = 3.5
        (5, 100, 0.05, False),
        (5, 5, 1.0, False),
    ],
)
def test_a_proportion_against_its_limit(hits: int, count: int, limit: float, above: bool) -> None:
    assert proportion_exceeds(hits, count, limit, 0.01) is above


def test_the_sample_ratio() -> None:
    good = sample_ratio({"a": 5030, "b": 4970}, {"a": 0.5, "b": 0.5})
    assert good.ok
    assert good.p == pytest.approx(chisquare([5030, 4970]).pvalue)
    bad = sample_ratio({"a": 5300, "b": 4700}, {"a": 0.5, "b": 0.5})
    assert not bad.ok
    assert bad.p < 1e-8
    assert bad.always_valid_p < 1e-6
    part = sample_ratio({"a": 200, "b": 100}, {"a": 0.5, "b": 0.25, "c": 0.25})
    assert part.expected == {"a": 200, "b": 100}
    assert part.ok
    assert sample_ratio({"a": 0, "b": 0}, {"a": 0.5, "b": 0.5}).ok


def test_the_sample_ratio_may_be_looked_at_after_every_unit() -> None:
    random = np.random.default_rng(6)
    wrong = 0
    for _ in range(300):
        ones = np.cumsum(random.random(1000) < 0.3)
        wrong += any(
            not sample_ratio(
                {"a": int(ones[n]), "b": n + 1 - int(ones[n])}, {"a": 0.3, "b": 0.7}, alpha=0.05
            ).ok
            for n in range(0, 1000, 100)
        )
    assert wrong / 300 <= 0.05


def test_welch_and_its_interval_are_scipys_and_statsmodels() -> None:
    random = np.random.default_rng(7)
    own, other = random.lognormal(0, 1, 80), random.lognormal(0.3, 0.5, 120)
    found = fixed_difference_test(Sample(own), Sample(other), 0.05)
    assert found is not None
    assert found.p == pytest.approx(ttest_ind(own, other, equal_var=False).pvalue)
    theirs = CompareMeans(DescrStatsW(own), DescrStatsW(other)).tconfint_diff(usevar="unequal")
    assert (found.low, found.high) == pytest.approx(theirs)
    assert fixed_difference_test(Sample(own[:1]), Sample(other), 0.05) is None
    assert fixed_difference_test(Sample(np.ones(5)), Sample(np.ones(5)), 0.05) is None


def test_proportions_are_compared_as_such() -> None:
    def share(right: int, count: int) -> Sample:
        return Sample(np.array([1.0] * right + [0.0] * (count - right)), (0.0, 1.0))

    found = fixed_difference_test(share(56, 70), share(48, 80), 0.05)
    assert found is not None
    # Newcombe (1998), table II (a): 56/70 - 48/80, method 10
    assert (found.low, found.high) == pytest.approx((0.0524, 0.3339), abs=1e-4)
    assert 0.005 < found.p < 0.01
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
    assert fixed_paired_test(Sample(np.zeros(9)), 0.05) is None


def test_how_many_units_a_difference_needs() -> None:
    values = Sample(np.random.default_rng(8).normal(0, 1, 100_000))
    found = required_units(values, values, 0.2, 1.0, 0.05, 1000)
    assert found is not None
    half = 2 / np.sqrt(found.always_valid) * boundary(found.always_valid, 0.05, 1000)
    assert half == pytest.approx(0.2, rel=0.01)
    assert found.always_valid > found.fixed / 2
    theirs = tt_ind_solve_power(effect_size=0.2, alpha=0.05, power=0.8, ratio=1.0)
    assert found.fixed == pytest.approx(2 * theirs, rel=0.02)
    skew = required_units(values, values, 0.2, 1 / 9, 0.05, 1000)
    assert skew is not None
    assert skew.fixed > 2.5 * found.fixed
    assert required_units(values, values, 0.0, 1.0, 0.05, 1000) is None


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


def test_a_bounded_sample_is_never_quite_sure() -> None:
    sure = Sample(np.zeros(50), (0.0, 1.0))
    assert sure.mean == 0
    assert 0 < sure.error < 0.05
    assert Sample(np.array([])).error == float("inf")
