"""Sequential tests, valid at any number of looks, and the usual ones for a fixed horizon.

Intervals: the asymptotic confidence sequence of Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas
(arXiv 2103.06476, theorem 2.2), a normal mixture after Robbins: with probability 1 - alpha it
contains the mean at *every* sample size at once, asymptotically. For two arms it is applied to the
difference of means, whose influence function has the usual standard error (section 3 there).

Proportions against a limit: the beta mixture of binomial likelihoods (Robbins 1970), exact for any
number of units. Sample ratios: the Dirichlet mixture of multinomials (Lindon and Malek, arXiv
2011.03567), likewise exact. Tests for a fixed horizon are scipy's and statsmodels'.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from scipy.special import betaln, gammaln, lambertw
from scipy.stats import chi2_contingency, chisquare, norm, t, ttest_1samp, ttest_ind
from statsmodels.stats.proportion import confint_proportions_2indep

from orchestrator.experiments.samples import Sample

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


def half_width(
    error: Any, count: Any, degrees_of_freedom: Any, alpha: float, tuned_for: float
) -> Any:
    """The half-width of the interval; numbers or arrays.

    `error` is a standard error with so many degrees of freedom. The sequence is asymptotic; since
    the variance is estimated, its normal quantile is replaced by that of Student's t.
    """
    multiple = t.isf(norm.sf(boundary(count, alpha, tuned_for)), np.maximum(degrees_of_freedom, 1))
    return np.where(np.isfinite(error) & np.isfinite(multiple), error * multiple, np.inf)


def degrees_of_freedom(errors: Any, counts: Any) -> Any:
    """The degrees of freedom of a difference (Welch-Satterthwaite), along the first axis."""
    squares, less = np.square(errors), np.maximum(np.asarray(counts) - 1, 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        welch = squares.sum(axis=0) ** 2 / (squares**2 / less).sum(axis=0)
    return np.where(np.isfinite(welch), welch, 1.0)


def mean_interval(sample: Sample, alpha: float, tuned_for: float) -> Interval:
    """The confidence sequence for a mean."""
    half = float(half_width(sample.error, sample.count, sample.count - 1, alpha, tuned_for))
    return Interval(sample.mean, sample.mean - half, sample.mean + half)


def difference_interval(arm: Sample, control: Sample, alpha: float, tuned_for: float) -> Interval:
    """The confidence sequence for the arm's mean minus the control's."""
    errors, counts = (arm.error, control.error), (arm.count, control.count)
    estimate, error = arm.mean - control.mean, float(np.hypot(*errors))
    half = float(
        half_width(error, sum(counts), degrees_of_freedom(errors, counts), alpha, tuned_for)
    )
    return Interval(estimate, estimate - half, estimate + half)


def proportion_exceeds(hits: int, count: int, limit: float, alpha: float) -> bool:
    """Whether a proportion is above `limit`: a one-sided sequential test at level `alpha`.

    For a proportion that is not, the probability that this is ever True is at most `alpha`.
    """
    if not count or hits / count <= limit:
        return False
    if limit <= 0:
        return hits > 0
    misses = count - hits
    mixture = betaln(hits + 1, misses + 1)
    limited = hits * np.log(limit) + (misses * np.log1p(-limit) if misses else 0.0)
    return bool(mixture - limited >= -np.log(alpha))


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
    with warnings.catch_warnings():  # scipy warns of an arm with equal values
        warnings.filterwarnings("ignore", "Precision loss", RuntimeWarning)
        tested = ttest_ind(arm.values, control.values, equal_var=False)
    low, high = tested.confidence_interval(1 - alpha)
    return FixedHorizonTest("Welch's t", float(low), float(high), float(tested.pvalue))


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

    `fixed`: by a fixed-horizon test with power 0.8; `always_valid`: when the half-width of the
    confidence sequence falls to the difference.
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
    widths = np.sqrt(variance / count) * boundary(count, alpha, tuned_for)
    enough = count[widths <= wanted]
    return RequiredUnits(wanted, int(np.ceil(fixed)), int(enough[0]) if len(enough) else int(1e9))
