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

from collections.abc import Mapping
from dataclasses import dataclass
from math import exp, lgamma, log, log1p, sqrt
from statistics import NormalDist
from typing import Any, Final

import numpy as np

from orchestrator.experiments.samples import Moments, Sample

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
_log_gamma: Final = np.vectorize(lgamma, otypes=[float])


@dataclass(frozen=True, slots=True)
class Interval:
    """A confidence interval around an estimate."""

    estimate: float
    low: float
    high: float

    def ends(self, sign: int) -> tuple[float, float]:
        """Return the ends, the better one last; `sign` is -1 if less is better."""
        return (self.low, self.high) if sign > 0 else (-self.high, -self.low)


def boundary(count: Any, alpha: float, tuned_for: float) -> Any:
    """Return the half-width of the confidence sequence at `count` units, in standard errors.

    `count` is a number or an array. The mixture's width is chosen so that the sequence is tightest
    at `tuned_for` units (there, appendix B.2); its coverage holds only if that is fixed in advance.
    """
    seen = np.asarray(count, dtype=float) * _best_width(alpha) / tuned_for  # t rho^2 of the paper
    with np.errstate(divide="ignore", invalid="ignore"):
        wide = np.sqrt(2 * (seen + 1) / seen * np.log(np.sqrt(seen + 1) / alpha))
    return np.where(seen > 0, wide, np.inf) if wide.ndim else (float(wide) if seen > 0 else np.inf)


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


def mean_bounds(sample: Moments, alpha: float, tuned_for: float) -> tuple[Any, Any]:
    """Return the ends of the confidence sequence for a mean: numbers or arrays, as the moments."""
    skewness = sample.skewness / np.sqrt(np.maximum(sample.count, 1))
    normal = boundary(sample.count, alpha, tuned_for)
    return _bounds(sample.mean, sample.error, skewness, sample.count - 1, normal)


def difference_bounds(
    arm: Moments, control: Moments, alpha: float, tuned_for: float
) -> tuple[Any, Any]:
    """Return the ends of the confidence sequence for the arm's mean minus the control's.

    The larger of the two skewnesses counts for both arms. A small sample of skewed values mostly
    lacks the few large ones, so it looks symmetric while its mean is far off; the other arm has
    them.
    """
    errors, counts = np.stack([arm.error, control.error]), np.stack([arm.count, control.count])
    error = np.hypot(*errors)
    larger = np.abs(arm.skewness) > np.abs(control.skewness)
    skewness = np.where(larger, arm.skewness, control.skewness)
    with np.errstate(divide="ignore", invalid="ignore"):
        cubes = errors**3 / np.sqrt(np.maximum(counts, 1)) / error**3
        skewness = np.nan_to_num(skewness * (cubes[0] - cubes[1]))
        squares, less = np.square(errors), np.maximum(counts - 1, 1)
        freedom = squares.sum(axis=0) ** 2 / (squares**2 / less).sum(axis=0)  # Welch-Satterthwaite
    freedom = np.where(np.isnan(freedom), np.inf, freedom)  # without any error
    normal = boundary(_informative(*counts), alpha, tuned_for)
    return _bounds(arm.mean - control.mean, error, skewness, freedom, normal)


def _informative(arm: Any, control: Any) -> Any:
    """Return the number of units in two equal arms with the same information.

    It is the sequence's time: 100 units against 10,000 have about the information of 400 in two
    equal arms.
    """
    return 4 * arm * control / np.where(arm + control > 0, arm + control, 1)


def _bounds(value: Any, error: Any, skewness: Any, freedom: Any, normal: Any) -> tuple[Any, Any]:
    """Return the ends of the confidence sequence around an estimate.

    The sequence is asymptotic. Since the variance is estimated, Student's t replaces its normal
    quantile. Since the estimate is skewed, Hall's transformation of that is used if it is wider.
    """
    known = np.isfinite(error) & np.isfinite(normal)
    quantile = student_quantile(np.where(known, normal, 1.0), np.maximum(freedom, 1))
    known &= np.isfinite(quantile)
    quantile = np.where(known, quantile, 0.0)
    below = np.maximum(quantile, hall(quantile, skewness))
    above = np.maximum(quantile, -hall(-quantile, skewness))
    error = np.where(known, error, np.inf)
    with np.errstate(invalid="ignore"):
        low, high = value - error * below, value + error * above
    return np.where(known, low, -np.inf), np.where(known, high, np.inf)


def student_quantile(normal: Any, freedom: Any) -> Any:
    """Return the value that Student's t exceeds as often as a normal variable exceeds `normal`.

    Fisher and Cornish's expansion (1960). It is within 0.05 % if the degrees of freedom are at
    least the square of `normal`; below that the value is infinite, since no claim can be made.
    """
    z, freedom = np.asarray(normal, float), np.asarray(freedom, float)
    terms = (np.polyval(term, z) / freedom ** (i + 1) for i, term in enumerate(_EXPANSION))
    return np.where(freedom >= z**2, z * (1 + sum(terms)), np.inf)


def hall(quantile: Any, skewness: Any) -> Any:
    """Return the quantile of a studentised mean of this skewness, from the normal one.

    The inverse of Hall's cubic transformation (Hall 1992, "On the removal of skewness by
    transformation", J. R. Statist. Soc. B 54), which is monotone and right to second order.
    """
    skewness = np.where(np.abs(skewness) < 1e-9, 1e-9, skewness)
    return 3 / skewness * (np.cbrt(1 + skewness * (quantile - skewness / 6)) - 1)


def mean_interval(sample: Sample, alpha: float, tuned_for: float) -> Interval:
    """Return the confidence sequence for a mean."""
    low, high = mean_bounds(sample.moments, alpha, tuned_for)
    return Interval(sample.mean, float(low), float(high))


def difference_interval(arm: Sample, control: Sample, alpha: float, tuned_for: float) -> Interval:
    """Return the confidence sequence for the arm's mean minus the control's."""
    low, high = difference_bounds(arm.moments, control.moments, alpha, tuned_for)
    return Interval(arm.mean - control.mean, float(low), float(high))


def proportion_exceeds(hits: Any, count: Any, limit: float, alpha: float) -> Any:
    """Return whether a proportion is above `limit`, by a one-sided sequential test.

    Numbers or arrays. For a proportion within the limit, the probability that this is ever True is
    at most `alpha`. That also holds if `hits` is a sum of values between 0 and 1 whose mean is the
    proportion: a likelihood ratio is convex in the value, so values of 0 and 1 have the largest
    mean.
    """
    hits, misses = np.asarray(hits), np.asarray(count) - np.asarray(hits)
    above = hits > limit * count
    if limit <= 0 or limit >= 1:
        return above
    mixture = _log_gamma(hits + 1) + _log_gamma(misses + 1) - _log_gamma(hits + misses + 2)
    limited = hits * np.log(limit) + misses * np.log1p(-limit)
    return above & (mixture - limited >= -np.log(alpha))


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
    arm: Sample, control: Sample, wanted: float, ratio: float, alpha: float, tuned_for: float
) -> RequiredUnits | None:
    """Return the sample size for a difference of `wanted`; `ratio`: arm's units by control's."""
    if min(arm.count, control.count) < 2 or not wanted > 0:
        return None
    share = ratio / (1 + ratio)
    variance = arm.variance / share + control.variance / (1 - share)  # per unit of both arms
    count = np.unique(np.geomspace(4, 1e9, 4000).astype(np.int64))
    # The estimate is this far from 0 in eight of ten experiments; earlier looks add chances.
    seen = boundary(_informative(share, 1 - share) * count, alpha, tuned_for)
    enough = count[np.sqrt(variance / count) * (seen + NormalDist().inv_cdf(POWER)) <= wanted]
    return RequiredUnits(wanted, int(enough[0]) if len(enough) else int(1e9))
