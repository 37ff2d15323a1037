"""Statistics that stay valid however often one looks, and the usual ones for a fixed horizon.

Intervals: the asymptotic confidence sequence of Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas
(arXiv 2103.06476, theorem 2.2), a normal mixture after Robbins: at *every* sample size at once the
mean lies within them with probability 1 - alpha, asymptotically. For two arms it is applied to the
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
"""How close to the intended ratio the mixture of `sample_ratio` looks for others: it has most
power against shares that are off by about a tenth."""


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate and where the truth may lie."""

    estimate: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class FixedTest:
    """A test for one look that was planned beforehand: its name, interval and p value."""

    test: str
    low: float
    high: float
    p: float


def widening(count: Any, alpha: float, tuned_for: float) -> Any:
    """By how many standard errors the sequence at `count` units reaches to either side.

    `count` is a number or an array. The mixture's width is chosen so that the sequence is tightest
    at `tuned_for` units (there, appendix B.2). A number fixed in advance, or nothing is promised.
    """
    best = float(-lambertw(-(alpha**2) * np.exp(-1), -1).real - 1)
    seen = np.asarray(count, dtype=float) * best / tuned_for  # t rho^2 of the paper
    with np.errstate(divide="ignore", invalid="ignore"):
        wide = np.sqrt(2 * (seen + 1) / seen * np.log(np.sqrt(seen + 1) / alpha))
    return np.where(seen > 0, wide, np.inf) if wide.ndim else (float(wide) if seen > 0 else np.inf)


def reach(error: Any, count: Any, freedom: Any, alpha: float, tuned_for: float) -> Any:
    """How far the interval goes to either side; numbers or arrays.

    `error` is a standard error with so many degrees of freedom. The sequence is asymptotic; for a
    spread that is estimated from a few units it is widened from the normal to Student's law.
    """
    multiple = t.isf(norm.sf(widening(count, alpha, tuned_for)), np.maximum(freedom, 1))
    return np.where(np.isfinite(error) & np.isfinite(multiple), error * multiple, np.inf)


def freedom(errors: Any, counts: Any) -> Any:
    """The degrees of freedom of a difference (Welch and Satterthwaite); along the first axis."""
    squares, less = np.square(errors), np.maximum(np.asarray(counts) - 1, 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        found = squares.sum(axis=0) ** 2 / (squares**2 / less).sum(axis=0)
    return np.where(np.isfinite(found), found, 1.0)


def one_mean(sample: Sample, alpha: float, tuned_for: float) -> Interval:
    """An always-valid interval for a mean."""
    half = float(reach(sample.error, sample.count, sample.count - 1, alpha, tuned_for))
    return Interval(sample.mean, sample.mean - half, sample.mean + half)


def difference(arm: Sample, control: Sample, alpha: float, tuned_for: float) -> Interval:
    """An always-valid interval for the arm's mean minus the control's."""
    errors, counts = (arm.error, control.error), (arm.count, control.count)
    estimate, error = arm.mean - control.mean, float(np.hypot(*errors))
    half = float(reach(error, sum(counts), freedom(errors, counts), alpha, tuned_for))
    return Interval(estimate, estimate - half, estimate + half)


def exceeds(hits: int, count: int, limit: float, alpha: float) -> bool:
    """Whether a proportion is surely above `limit`, at whatever moment one asks.

    With probability 1 - alpha this is never said of one that is not.
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
class SampleRatio:
    """Whether arms got the units they should: a chi-square p, and one valid at every look."""

    counts: Mapping[str, int]
    expected: Mapping[str, float]
    p: float
    always_valid_p: float
    ok: bool


def sample_ratio(
    counts: Mapping[str, int], weights: Mapping[str, float], alpha: float = 0.001
) -> SampleRatio:
    """Compare counted units with intended shares; `ok` goes by the p that survives peeking."""
    total, whole = sum(counts.values()), sum(weights[name] for name in counts)
    shares = np.array([weights[name] / whole for name in counts])
    seen = np.array([counts[name] for name in counts], dtype=float)
    expected = dict(zip(counts, (float(value) for value in total * shares), strict=True))
    if total == 0 or len(seen) < 2:
        return SampleRatio(counts, expected, 1.0, 1.0, True)
    prior = CONCENTRATION * shares
    mixture = gammaln(CONCENTRATION) - gammaln(CONCENTRATION + total)
    mixture += (gammaln(prior + seen) - gammaln(prior)).sum()
    always = float(np.exp(min(0.0, (seen * np.log(shares)).sum() - mixture)))
    return SampleRatio(
        counts, expected, float(chisquare(seen, total * shares).pvalue), always, always >= alpha
    )


def fixed_difference(arm: Sample, control: Sample, alpha: float) -> FixedTest | None:
    """For one look at a planned end: Newcombe's interval and the chi-square test, or Welch's t."""
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
        return FixedTest("proportions: Newcombe, chi-square", float(low), float(high), p)
    if not (arm.values.std() or control.values.std()):
        return None
    with warnings.catch_warnings():  # an arm whose values are all alike is told as imprecise
        warnings.filterwarnings("ignore", "Precision loss", RuntimeWarning)
        tested = ttest_ind(arm.values, control.values, equal_var=False)
    low, high = tested.confidence_interval(1 - alpha)
    return FixedTest("Welch's t", float(low), float(high), float(tested.pvalue))


def fixed_paired(sample: Sample, alpha: float) -> FixedTest | None:
    """For one look at a planned end: Student's t on the differences of pairs."""
    if sample.count < 2 or not sample.values.std():
        return None
    tested = ttest_1samp(sample.values, 0.0)
    low, high = tested.confidence_interval(1 - alpha)
    return FixedTest("paired t", float(low), float(high), float(tested.pvalue))


@dataclass(frozen=True, slots=True)
class Needed:
    """Units in all arms compared that a wanted difference takes.

    `fixed` for a test at a planned end with power 0.8, `always_valid` until the always-valid
    interval is as narrow as the wanted difference.
    """

    difference: float
    fixed: int
    always_valid: int


def needed(
    arm: Sample, control: Sample, wanted: float, ratio: float, alpha: float, tuned_for: float
) -> Needed | None:
    """How many units it takes to see a difference of `wanted`; `ratio` is arm to control units."""
    if min(arm.count, control.count) < 2 or not wanted > 0:
        return None
    share = ratio / (1 + ratio)
    variance = arm.variance / share + control.variance / (1 - share)  # of one unit's part in both
    multiple = norm.isf(alpha / 2) + norm.ppf(POWER)
    fixed = max(4.0, variance * (multiple / wanted) ** 2)
    count = np.unique(np.geomspace(4, 1e9, 4000).astype(np.int64))
    widths = np.sqrt(variance / count) * widening(count, alpha, tuned_for)
    enough = count[widths <= wanted]
    return Needed(wanted, int(np.ceil(fixed)), int(enough[0]) if len(enough) else int(1e9))
