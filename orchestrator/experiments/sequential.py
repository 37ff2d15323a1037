"""Sequential tests, valid at any number of looks, and the usual ones for a fixed horizon.

Intervals: the asymptotic confidence sequence of Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas
(arXiv 2103.06476, theorem 2.2), a normal mixture after Robbins: with probability 1 - alpha it
contains the mean at *every* sample size at once, asymptotically. For two arms it is applied to the
difference of means, whose influence function has the usual standard error (section 3 there). What
"asymptotically" hides in small arms with skewed values is mended by the skewness of the estimate
(Hall 1992). How often claims are false is simulated: `make experiments-calibration`.

Proportions against a limit: the beta mixture of binomial likelihoods (Robbins 1970), exact for any
number of units. Sample ratios: the Dirichlet mixture of multinomials (Lindon and Malek, arXiv
2011.03567), likewise exact. Tests for a fixed horizon are scipy's and statsmodels'.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from scipy.special import betaln, gammaln, lambertw
from scipy.stats import chi2_contingency, chisquare, norm, t, ttest_1samp
from statsmodels.stats.proportion import confint_proportions_2indep
from statsmodels.stats.weightstats import CompareMeans, DescrStatsW

from orchestrator.experiments.samples import Moments, Sample

POWER: Final = 0.8
CONCENTRATION: Final = 100.0
"""Of the Dirichlet prior of `sample_ratio` around the intended shares: it has most power against
shares that are off by about a tenth."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A confidence interval around an estimate."""

    estimate: float
    low: float
    high: float

    def ends(self, sign: int) -> tuple[float, float]:
        """Its ends, the better one last; `sign` is -1 where less is better."""
        return (self.low, self.high) if sign > 0 else (-self.high, -self.low)


@dataclass(frozen=True, slots=True)
class FixedHorizonTest:
    """A test for one look at a planned sample size: its name, interval and p value."""

    test: str
    low: float
    high: float
    p: float


def boundary(count: Any, alpha: float, tuned_for: float) -> Any:
    """The half-width of the confidence sequence at `count` units, in standard errors.

    `count` is a number or an array. The mixture's width is chosen so that the sequence is tightest
    at `tuned_for` units (there, appendix B.2); its coverage holds only if that is fixed in advance.
    """
    best = float(-lambertw(-(alpha**2) * np.exp(-1), -1).real - 1)
    seen = np.asarray(count, dtype=float) * best / tuned_for  # t rho^2 of the paper
    with np.errstate(divide="ignore", invalid="ignore"):
        wide = np.sqrt(2 * (seen + 1) / seen * np.log(np.sqrt(seen + 1) / alpha))
    return np.where(seen > 0, wide, np.inf) if wide.ndim else (float(wide) if seen > 0 else np.inf)


def mean_bounds(sample: Moments, alpha: float, tuned_for: float) -> tuple[Any, Any]:
    """The confidence sequence for a mean: its ends, numbers or arrays as the moments are."""
    skewness = sample.skewness / np.sqrt(np.maximum(sample.count, 1))
    return _bounds(
        sample.mean, sample.error, sample.count, sample.count - 1, skewness, alpha, tuned_for
    )


def difference_bounds(
    arm: Moments, control: Moments, alpha: float, tuned_for: float
) -> tuple[Any, Any]:
    """The confidence sequence for the arm's mean minus the control's, likewise.

    Of the two skewnesses the larger counts for both arms. A small sample of skewed values mostly
    lacks the few large ones, so it looks even just where its mean is far off; the other arm has
    seen them.
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
    freedom = np.where(np.isfinite(freedom), freedom, 1.0)
    count = _informative(counts[0], counts[1])
    return _bounds(arm.mean - control.mean, error, count, freedom, skewness, alpha, tuned_for)


def _informative(arm: Any, control: Any) -> Any:
    """The number of units of two equal arms whose difference is known as well: the sequence's time.

    A hundred units beside ten thousand tell as much as four hundred in equal parts.
    """
    return 4 * arm * control / np.where(arm + control > 0, arm + control, 1)


def _bounds(
    estimate: Any,
    error: Any,
    count: Any,
    degrees_of_freedom: Any,
    skewness: Any,
    alpha: float,
    tuned_for: float,
) -> tuple[Any, Any]:
    """The ends of an interval around an estimate with a standard error and a skewness of its own.

    The sequence is asymptotic. Since the variance is estimated, its normal quantile is replaced by
    that of Student's t; since the estimate is skewed, by Hall's transformation of that quantile
    where this is wider.
    """
    freedom = np.maximum(degrees_of_freedom, 1)
    quantile = t.isf(norm.sf(boundary(count, alpha, tuned_for)), freedom)
    known = np.isfinite(error) & np.isfinite(quantile)
    quantile = np.where(known, quantile, 0.0)
    below = np.maximum(quantile, hall(quantile, skewness))
    above = np.maximum(quantile, -hall(-quantile, skewness))
    error = np.where(known, error, np.inf)
    with np.errstate(invalid="ignore"):
        low, high = estimate - error * below, estimate + error * above
    return np.where(known, low, -np.inf), np.where(known, high, np.inf)


def hall(quantile: Any, skewness: Any) -> Any:
    """The quantile of a studentised mean whose estimate has this skewness, from the normal one.

    The inverse of Hall's cubic transformation (Hall 1992, "On the removal of skewness by
    transformation", J. R. Statist. Soc. B 54), which is monotone and right to second order.
    """
    skewness = np.where(np.abs(skewness) < 1e-9, 1e-9, skewness)
    return 3 / skewness * (np.cbrt(1 + skewness * (quantile - skewness / 6)) - 1)


def mean_interval(sample: Sample, alpha: float, tuned_for: float) -> Interval:
    """The confidence sequence for a mean."""
    low, high = mean_bounds(sample.moments, alpha, tuned_for)
    return Interval(sample.mean, float(low), float(high))


def difference_interval(arm: Sample, control: Sample, alpha: float, tuned_for: float) -> Interval:
    """The confidence sequence for the arm's mean minus the control's."""
    low, high = difference_bounds(arm.moments, control.moments, alpha, tuned_for)
    return Interval(arm.mean - control.mean, float(low), float(high))


def proportion_exceeds(hits: Any, count: Any, limit: float, alpha: float) -> Any:
    """Whether a proportion is above `limit`: a one-sided sequential test at level `alpha`.

    Numbers or arrays. For a proportion that is not, the probability that this is ever True is at
    most `alpha`, also where `hits` is a sum of values between 0 and 1 whose mean is the proportion:
    a likelihood ratio is convex in the value, so none is larger on average than of 0s and 1s.
    """
    hits, misses = np.asarray(hits), np.asarray(count) - np.asarray(hits)
    above = hits > limit * count
    if limit <= 0 or limit >= 1:
        return above
    mixture = betaln(hits + 1, misses + 1)
    limited = hits * np.log(limit) + misses * np.log1p(-limit)
    return above & (mixture - limited >= -np.log(alpha))


@dataclass(frozen=True, slots=True)
class SampleRatioTest:
    """Tests for a sample ratio mismatch: a chi-square p value, and one valid at every look."""

    counts: Mapping[str, int]
    expected: Mapping[str, float]
    p: float
    always_valid_p: float
    ok: bool


def sample_ratio(
    counts: Mapping[str, int], weights: Mapping[str, float], alpha: float = 0.001
) -> SampleRatioTest:
    """Compare counted units with intended shares; `ok` goes by the always-valid p value."""
    total, whole = sum(counts.values()), sum(weights[name] for name in counts)
    shares = np.array([weights[name] / whole for name in counts])
    seen = np.array([counts[name] for name in counts], dtype=float)
    expected = dict(zip(counts, (float(value) for value in total * shares), strict=True))
    if total == 0 or len(seen) < 2:
        return SampleRatioTest(counts, expected, 1.0, 1.0, True)
    prior = CONCENTRATION * shares
    mixture = gammaln(CONCENTRATION) - gammaln(CONCENTRATION + total)
    mixture += (gammaln(prior + seen) - gammaln(prior)).sum()
    always = float(np.exp(min(0.0, (seen * np.log(shares)).sum() - mixture)))
    return SampleRatioTest(
        counts, expected, float(chisquare(seen, total * shares).pvalue), always, always >= alpha
    )


def fixed_difference_test(arm: Sample, control: Sample, alpha: float) -> FixedHorizonTest | None:
    """For one look at a planned size: Newcombe's interval and the chi-square test, or Welch's t."""
    if min(arm.count, control.count) < 2:
        return None
    if arm.binary and control.binary:
        table = (int(arm.values.sum()), arm.count, int(control.values.sum()), control.count)
        if table[0] + table[2] in (0, arm.count + control.count):
            p = 1.0
        else:
            cells = [[one.values.sum(), one.count - one.values.sum()] for one in (arm, control)]
            p = float(chi2_contingency(cells, correction=False).pvalue)
        low, high = confint_proportions_2indep(*table, method="newcomb", alpha=alpha)
        return FixedHorizonTest("proportions: Newcombe, chi-square", float(low), float(high), p)
    if not (arm.values.std() or control.values.std()):
        return None
    # Not scipy's: it warns of an arm with equal values, and reports are made in several threads.
    compared = CompareMeans(DescrStatsW(arm.values), DescrStatsW(control.values))
    _, p, _ = compared.ttest_ind(usevar="unequal")
    low, high = compared.tconfint_diff(alpha, usevar="unequal")
    return FixedHorizonTest("Welch's t", float(low), float(high), float(p))


def fixed_paired_test(sample: Sample, alpha: float) -> FixedHorizonTest | None:
    """For one look at a planned size: Student's t on the differences of pairs."""
    if sample.count < 2 or not sample.values.std():
        return None
    tested = ttest_1samp(sample.values, 0.0)
    low, high = tested.confidence_interval(1 - alpha)
    return FixedHorizonTest("paired t", float(low), float(high), float(tested.pvalue))


@dataclass(frozen=True, slots=True)
class RequiredUnits:
    """The sample size, in units of both arms, at which a `difference` is detected.

    Both with power 0.8, `fixed` by a fixed-horizon test and `always_valid` by the confidence
    sequence, looked at all the time.
    """

    difference: float
    fixed: int
    always_valid: int


def required_units(
    arm: Sample, control: Sample, wanted: float, ratio: float, alpha: float, tuned_for: float
) -> RequiredUnits | None:
    """The sample size for a difference of `wanted`; `ratio`: units of the arm by the control's."""
    if min(arm.count, control.count) < 2 or not wanted > 0:
        return None
    share = ratio / (1 + ratio)
    variance = arm.variance / share + control.variance / (1 - share)  # per unit of both arms
    multiple = norm.isf(alpha / 2) + norm.ppf(POWER)
    fixed = max(4.0, variance * (multiple / wanted) ** 2)
    count = np.unique(np.geomspace(4, 1e9, 4000).astype(np.int64))
    # The estimate is this far from 0 in eight of ten experiments; a look before is a chance more.
    seen = boundary(_informative(share, 1 - share) * count, alpha, tuned_for) + norm.ppf(POWER)
    enough = count[np.sqrt(variance / count) * seen <= wanted]
    return RequiredUnits(wanted, int(np.ceil(fixed)), int(enough[0]) if len(enough) else int(1e9))
