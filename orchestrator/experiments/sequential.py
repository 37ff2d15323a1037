"""Sequential tests, valid at any number of looks.

Intervals: the asymptotic confidence sequence of Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas
(arXiv 2103.06476, theorem 2.2), a normal mixture after Robbins: with probability 1 - alpha it
contains the mean at *every* sample size at once, asymptotically. For two arms it is applied to the
difference of means, whose influence function has the usual standard error (section 3 there). The
skewness of the estimate (Hall 1992) corrects the error of the asymptotics in small arms with skewed
values. A simulation counts false claims: tests/orchestrator/experiments/test_false_claims.py.

Proportions against a limit: the beta mixture of binomial likelihoods (Robbins 1970), exact for any
number of units. Sample ratios: the Dirichlet mixture of multinomials (Lindon and Malek, arXiv
2011.03567), likewise exact.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import cbrt, exp, hypot, inf, isfinite, lgamma, log, log1p, sqrt
from statistics import NormalDist
from typing import Final

import numpy as np

from orchestrator.experiments.metrics import Sample

TUNED_FOR: Final = 1000
"""The units at which intervals are tightest; their coverage holds only if that is fixed ahead."""
POWER: Final = 0.8
CONCENTRATION: Final = 100.0
"""The weight of the intended shares in the Dirichlet prior of `sample_ratio`, which gives most
power against shares that are off by about a tenth."""
_EXPANSION: Final = (
    np.array([1, 0, 1]) / 4,
    np.array([5, 0, 16, 0, 3]) / 96,
    np.array([3, 0, 19, 0, 17, 0, -15]) / 384,
    np.array([79, 0, 776, 0, 1482, 0, -1920, 0, -945]) / 92160,
)
"""Polynomials of the normal quantile, by rising powers of 1 / degrees of freedom."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A confidence interval around an estimate."""

    estimate: float
    low: float
    high: float

    def ends(self, sign: int) -> tuple[float, float]:
        """Return the ends, the better one last; `sign` is -1 if less is better."""
        return (self.low, self.high) if sign > 0 else (-self.high, -self.low)


def boundary(count: float, alpha: float) -> float:
    """Return the half-width of the confidence sequence at `count` units, in standard errors.

    The mixture's width is chosen so that the sequence is tightest at `TUNED_FOR` units (there,
    appendix B.2).
    """
    if count <= 0:
        return inf
    seen = count * _best_width(alpha) / TUNED_FOR  # t rho^2 of the paper
    return sqrt(2 * (seen + 1) / seen * log(sqrt(seen + 1) / alpha))


@cache
def _best_width(alpha: float) -> float:
    """Return the x > 0 with x - log(1 + x) = -2 log(alpha).

    By Lambert's W it is -W_{-1}(-alpha^2 / e) - 1. The function is convex and rises, so Newton's
    method falls to x from a bound above it (Chatzigeorgiou 2013, arXiv 1601.04895).
    """
    wanted = -2 * log(alpha)
    x = sqrt(2 * wanted) + wanted
    while (step := (x - log1p(x) - wanted) * (1 + x) / x) > 1e-14 * x:
        x -= step
    return x


def mean_interval(sample: Sample, alpha: float) -> Interval:
    """Return the confidence sequence for a mean."""
    skewness = sample.skewness / sqrt(max(sample.count, 1))
    quantile = student_quantile(boundary(sample.count, alpha), sample.count - 1)
    return _interval(sample.mean, sample.error, skewness, quantile)


def difference_interval(arm: Sample, control: Sample, alpha: float) -> Interval:
    """Return the confidence sequence for the arm's mean minus the control's.

    The larger of the two skewnesses counts for both arms. A small sample of skewed values mostly
    lacks the few large ones, so it looks symmetric while its mean is far off; the other arm has
    them.
    """
    error, skewness, freedom = hypot(arm.error, control.error), 0.0, inf
    if 0 < error < inf:
        own, other = arm.error / error, control.error / error
        larger = max(arm.skewness, control.skewness, key=abs)
        skewness = larger * (own**3 / sqrt(arm.count) - other**3 / sqrt(control.count))
        # Welch and Satterthwaite
        freedom = 1 / (own**4 / max(arm.count - 1, 1) + other**4 / max(control.count - 1, 1))
    quantile = student_quantile(boundary(_informative(arm.count, control.count), alpha), freedom)
    return _interval(arm.mean - control.mean, error, skewness, quantile)


def _informative(arm: float, control: float) -> float:
    """Return the number of units in two equal arms with the same information.

    It is the sequence's time: 100 units against 10,000 have about the information of 400 in two
    equal arms.
    """
    return 4 * arm * control / (arm + control) if arm + control > 0 else 0.0


def _interval(estimate: float, error: float, skewness: float, quantile: float) -> Interval:
    """Return the confidence sequence around an estimate.

    The sequence is asymptotic. Since the variance is estimated, Student's t replaces its normal
    quantile. Since the estimate is skewed, Hall's transformation of that is used if it is wider.
    """
    if not (isfinite(error) and isfinite(quantile)):
        return Interval(estimate, -inf, inf)
    below = max(quantile, hall(quantile, skewness))
    above = max(quantile, -hall(-quantile, skewness))
    return Interval(estimate, estimate - error * below, estimate + error * above)


def student_quantile(normal: float, freedom: float) -> float:
    """Return the value that Student's t exceeds as often as a normal variable exceeds `normal`.

    Fisher and Cornish's expansion (1960). It is within 0.05 % if the degrees of freedom are at
    least the square of `normal`; below that the value is infinite, since no claim can be made.
    """
    if not isfinite(normal) or max(freedom, 1) < normal**2:
        return inf
    terms = (np.polyval(term, normal) / freedom ** (i + 1) for i, term in enumerate(_EXPANSION))
    return float(normal * (1 + sum(terms)))


def hall(quantile: float, skewness: float) -> float:
    """Return the quantile of a studentised mean of this skewness, from the normal one.

    The inverse of Hall's cubic transformation (Hall 1992, "On the removal of skewness by
    transformation", J. R. Statist. Soc. B 54), which is monotone and right to second order.
    """
    if abs(skewness) < 1e-9:
        return quantile
    return 3 / skewness * (cbrt(1 + skewness * (quantile - skewness / 6)) - 1)


def proportion_exceeds(hits: int, count: int, limit: float, alpha: float) -> bool:
    """Return whether a proportion is above `limit`, by a one-sided sequential test.

    For a proportion within the limit, the probability that this is ever True is at most `alpha`.
    That also holds if `hits` is a sum of values between 0 and 1 whose mean is the proportion: a
    likelihood ratio is convex in the value, so values of 0 and 1 have the largest mean.
    """
    misses, above = count - hits, hits > limit * count
    if not above or limit <= 0 or limit >= 1:
        return above
    mixture = lgamma(hits + 1) + lgamma(misses + 1) - lgamma(count + 2)
    return mixture - hits * log(limit) - misses * log1p(-limit) >= -log(alpha)


@dataclass(frozen=True, slots=True)
class SampleRatioTest:
    """A test for a sample ratio mismatch; its p value is valid at any number of looks."""

    counts: Mapping[str, int]
    expected: Mapping[str, float]
    p: float
    ok: bool


def sample_ratio(
    counts: Mapping[str, int], weights: Mapping[str, float], alpha: float = 0.001
) -> SampleRatioTest:
    """Compare counted units with intended shares."""
    total, whole = sum(counts.values()), sum(weights[name] for name in counts)
    shares = {name: weights[name] / whole for name in counts}
    expected = {name: total * share for name, share in shares.items()}
    if total == 0 or len(counts) < 2:
        return SampleRatioTest(counts, expected, 1.0, True)
    mixture = lgamma(CONCENTRATION) - lgamma(CONCENTRATION + total)
    intended = 0.0
    for name, seen in counts.items():
        prior = CONCENTRATION * shares[name]
        mixture += lgamma(prior + seen) - lgamma(prior)
        intended += seen * log(shares[name])
    p = exp(min(0.0, intended - mixture))
    return SampleRatioTest(counts, expected, p, p >= alpha)


@dataclass(frozen=True, slots=True)
class RequiredUnits:
    """The units in both arms at which an experiment detects a `difference` with power 0.8."""

    difference: float
    always_valid: int


def required_units(
    arm: Sample, control: Sample, wanted: float, ratio: float, alpha: float
) -> RequiredUnits | None:
    """Return the sample size for a difference of `wanted`; `ratio`: arm's units by control's."""
    if min(arm.count, control.count) < 2 or not wanted > 0:
        return None
    share = ratio / (1 + ratio)
    variance = arm.variance / share + control.variance / (1 - share)  # per unit of both arms
    # The estimate is this far from 0 in eight of ten experiments; earlier looks add chances.
    further = NormalDist().inv_cdf(POWER)

    def enough(count: int) -> bool:
        seen = boundary(_informative(share, 1 - share) * count, alpha)
        return sqrt(variance / count) * (seen + further) <= wanted

    return RequiredUnits(wanted, 4 + bisect_left(range(4, 10**9), True, key=enough))
