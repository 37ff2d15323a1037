"""Sequential tests: against known values and scipy, and their error rates by simulation."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import lambertw
from scipy.stats import norm
from scipy.stats import skew as skew_of
from scipy.stats import t as student

from orchestrator.experiments import sequential
from orchestrator.experiments.metrics import Sample, Values
from orchestrator.experiments.sequential import (
    boundary,
    difference_interval,
    hall,
    mean_interval,
    proportion_exceeds,
    required_units,
    sample_ratio,
    student_quantile,
)

ALPHA = 0.05


@pytest.mark.parametrize("alpha", [0.499, 0.05, 0.01, 1e-6, 1e-12])
def test_the_sequence_is_the_papers(alpha: float) -> None:
    # theorem 2.2, with rho from the exact expression of appendix B.2
    rho2 = (-lambertw(-(alpha**2) * np.exp(-1), -1).real - 1) / sequential.TUNED_FOR
    for count in (10, 1000, 50_000):
        seen = count * rho2
        half = np.sqrt(2 * (seen + 1) / seen * np.log(np.sqrt(seen + 1) / alpha))
        assert boundary(count, alpha) == pytest.approx(half, rel=1e-12)


def test_the_sequence_is_tightest_where_it_is_tuned(monkeypatch: pytest.MonkeyPatch) -> None:
    widths = {}
    for tuned in (200, 1000, 2000, 4000, 20_000):
        monkeypatch.setattr(sequential, "TUNED_FOR", tuned)
        widths[tuned] = boundary(2000, ALPHA)
    assert min(widths, key=widths.__getitem__) == 2000
    assert boundary(0, ALPHA) == float("inf")


@pytest.mark.parametrize("normal", [2.0, 3.0, 5.0, 8.0])
@pytest.mark.parametrize("freedom", [4.0, 9.0, 25.0, 64.0, 1e6])
def test_students_t_is_scipys_or_infinite(normal: float, freedom: float) -> None:
    found = student_quantile(normal, freedom)
    expected = student.isf(norm.sf(normal), freedom)
    assert found == (pytest.approx(expected, rel=5e-4) if freedom >= normal**2 else float("inf"))


def test_it_sees_a_difference_that_is_there() -> None:
    random = np.random.default_rng(3)
    seen = 0
    for _ in range(200):
        own, other = random.normal(0.25, 1, 500), random.normal(0, 1, 500)
        found = difference_interval(Sample(own), Sample(other), ALPHA)
        seen += found.low > 0
    # z is 3.95 on average and 2.98 suffice: in 83 of 100
    assert 0.75 < seen / 200 < 0.91


def test_a_proportion_within_its_limit_is_seldom_called_above_it() -> None:
    random = np.random.default_rng(5)
    hits = np.cumsum(random.random((300, 300)) < 0.05, axis=1).tolist()
    wrong = sum(
        any(proportion_exceeds(seen, n, 0.05, 0.05) for n, seen in enumerate(row, start=1))
        for row in hits
    )
    assert 0 < wrong / 300 <= 0.05


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
    bad = sample_ratio({"a": 5300, "b": 4700}, {"a": 0.5, "b": 0.5})
    assert not bad.ok
    assert bad.p < 1e-6
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


def test_how_many_units_a_difference_needs() -> None:
    values = Sample(np.random.default_rng(8).normal(0, 1, 100_000))
    found = required_units(values, values, 0.2, 1.0, 0.05)
    assert found is not None
    # Cohen (1988), table 2.4.1: one planned look takes 393 units in each arm
    assert 1.6 * 786 < found.always_valid < 2.1 * 786
    skew = required_units(values, values, 0.2, 1 / 9, 0.05)
    assert skew is not None
    assert skew.always_valid > 2.5 * found.always_valid
    assert required_units(values, values, 0.0, 1.0, 0.05) is None


def test_moments_are_numpys_and_scipys() -> None:
    random = np.random.default_rng(10)
    values = random.lognormal(0, 1, 50)
    found = Sample(values)
    assert found.variance == pytest.approx(np.var(values, ddof=1))
    assert found.skewness == pytest.approx(skew_of(values))
    hits = (random.random(50) < 0.9) * 1.0
    ends = np.append(hits, (0, 1))
    found = Sample(hits, (0.0, 1.0))
    assert (found.mean, found.variance) == pytest.approx((hits.mean(), ends.var()))
    assert 0 < Sample(np.zeros(50), (0.0, 1.0)).error < 0.05  # never quite sure
    assert found.skewness == pytest.approx(skew_of(ends))
    assert Sample(np.full(9, 0.1)).skewness == 0  # no rounding error is taken for skew
    assert Sample(np.array([])).error == Sample(np.array([1.0])).error == np.inf


def test_halls_quantile_inverts_his_transformation() -> None:
    for skewness in (-0.5, -1e-3, 0.2, 0.9):
        for normal in range(-4, 5):
            t = hall(normal, skewness)
            back = t + skewness * t**2 / 3 + skewness**2 * t**3 / 27 + skewness / 6
            assert back == pytest.approx(normal, abs=1e-6)
    assert hall(2.0, 0.0) == pytest.approx(2.0)


def test_a_small_arm_of_skewed_times_is_not_fast_for_lack_of_slow_ones() -> None:
    """What it lacks shows in the other arm: its interval reaches further down than up is near."""
    random = np.random.default_rng(11)
    control, arm = Sample(random.lognormal(0, 1, 2000)), Sample(random.lognormal(0, 0.5, 20))
    found = difference_interval(arm, control, ALPHA)
    assert found.high - found.estimate > 1.5 * (found.estimate - found.low)
    even = difference_interval(control, control, ALPHA)
    assert even.high == pytest.approx(-even.low)


def test_intervals_where_nothing_is_known_are_without_end() -> None:
    few, none = Sample(np.array([1.0])), Sample(np.array([]))
    for one in (mean_interval(few, ALPHA), difference_interval(few, none, ALPHA)):
        assert (one.low, one.high) == (-np.inf, np.inf)


def test_units_that_ask_often_count_once() -> None:
    """Ratios by the delta method have the right error if requests of a unit are alike."""
    random = np.random.default_rng(9)
    wrong = naive = 0
    for _ in range(400):
        arms = []
        for _ in range(2):
            asked = random.integers(1, 20, 150)
            mood = random.normal(100, 30, 150)  # of a unit
            units, values = np.repeat(np.arange(150), asked), np.repeat(mood, asked)
            arms.append(Values(np.zeros_like(values), units, values, np.ones_like(values)))
        wrong += _differ(*(arm.sample(None) for arm in arms))
        naive += _differ(*(Sample(arm.above) for arm in arms))
    assert wrong / 400 < 0.09  # 0.05, give or take 3.7 standard errors
    assert naive / 400 > 0.3


def _differ(arm: Sample, control: Sample) -> bool:
    """At one look, with 95 % confidence."""
    return bool(abs(arm.mean - control.mean) > 1.96 * np.hypot(arm.error, control.error))
