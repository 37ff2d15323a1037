"""A metric's values by unit: their mean or ratio, and its standard error.

A unit (a user, a session) may send many requests, which are correlated; so units are what is
counted.
The ratio of two sums over units is linearised (the delta method; Deng et al. 2018, "Applying the
Delta Method in Metric Analytics", arXiv 1803.06336), which for one request per unit is the plain
mean with its plain variance.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from orchestrator.experiments.documents import MetricName, Prices
from orchestrator.experiments.metrics import METRICS, observations, paired_differences
from orchestrator.experiments.outcome_log import RequestRecord

Vector = NDArray[np.float64]
EQUAL: Final = 1e-14  # of the mean square: a smaller variance is rounding


@dataclass(frozen=True, slots=True)
class Moments:
    """What an interval is made of: numbers, or arrays of one shape with an entry per sample.

    `variance` and `skewness` are of one unit's value.
    """

    count: Any
    mean: Any
    variance: Any
    skewness: Any

    @property
    def error(self) -> Any:
        """The standard error of the mean; infinite where the variance is."""
        return np.sqrt(self.variance / np.maximum(self.count, 1))


def moments(
    count: Any, sums: tuple[Any, Any, Any], extremes: tuple[float, float] | None = None
) -> Moments:
    """Moments from the number of units and the sums of their values, squares and cubes.

    Sums of values near 0 keep the most digits. The variance is infinite below two units; with
    `extremes` it counts one pseudo-unit at either (see `Sample`).
    """
    count = np.asarray(count, dtype=float)
    mean, number = sums[0] / np.maximum(count, 1), np.maximum(count, 1)
    if extremes is not None:
        number = count + 2
        sums = tuple(
            total + extremes[0] ** power + extremes[1] ** power
            for power, total in enumerate(sums, start=1)
        )
    first, second, third = (total / number for total in sums)
    spread = np.maximum(second - first**2, 0.0)
    cube = third - 3 * first * second + 2 * first**3
    known = spread > EQUAL * np.maximum(second, np.finfo(float).tiny)  # else it is rounding
    skewness = np.where(known, cube / np.where(known, spread, 1.0) ** 1.5, 0.0)
    if extremes is None:
        spread = np.where(count > 1, spread * number / np.maximum(number - 1, 1), np.inf)
    return Moments(count, mean, spread, skewness)


@dataclass(frozen=True, slots=True)
class Sample:
    """One arm's values of one metric: an array with a linearised value per unit.

    The mean of `values` is the metric. `extremes` are the smallest and the largest possible value
    of a bounded metric: one pseudo-unit at either keeps the variance above 0 where all units
    agree (Agresti and Caffo 2000, for proportions).
    """

    values: Vector
    extremes: tuple[float, float] | None = None

    @property
    def count(self) -> int:
        return len(self.values)

    @property
    def mean(self) -> float:
        return float(self.values.mean()) if self.count else 0.0

    @property
    def moments(self) -> Moments:
        """Of the values."""
        mean, ends = self.mean, self.extremes
        near = self.values - mean
        about = moments(
            self.count,
            (near.sum(), (near**2).sum(), (near**3).sum()),
            None if ends is None else (ends[0] - mean, ends[1] - mean),
        )
        return Moments(self.count, mean, float(about.variance), float(about.skewness))

    @property
    def variance(self) -> float:
        """Of one unit's value; infinite below two units."""
        return float(self.moments.variance)

    @property
    def error(self) -> float:
        """The standard error of the mean."""
        return float(self.moments.error) if self.count else float("inf")

    @property
    def binary(self) -> bool:
        """Whether every value is 0 or 1, so that tests for proportions apply."""
        return self.extremes == (0.0, 1.0) and bool(np.isin(self.values, (0, 1)).all())


@dataclass(frozen=True, slots=True)
class MetricValues:
    """A metric over an arm's requests that have it: one of `values` per request.

    `sums` has shape (units, 2): numerators and denominators, units in the order they were seen.
    """

    values: Vector
    sums: Vector


def metric_values(
    requests: Iterable[RequestRecord], metric: MetricName, prices: Prices
) -> MetricValues:
    """A metric of an arm's requests."""
    units: dict[str, int] = {}
    indices, numerators, denominators = [], [], []
    for request, numerator, denominator in observations(requests, metric, prices):
        indices.append(units.setdefault(request.exposure.unit, len(units)))
        numerators.append(numerator)
        denominators.append(denominator)
    unit = np.array(indices, dtype=np.intp)
    both = np.array([numerators, denominators], dtype=float)
    sums = np.array([np.bincount(unit, each, len(units)) for each in both], dtype=float)
    return MetricValues(both[0] / both[1], sums.T)


def sample(requests: Iterable[RequestRecord], metric: MetricName, prices: Prices) -> Sample:
    """A metric of an arm's requests, by unit."""
    return linearise(metric_values(requests, metric, prices).sums, METRICS[metric].bounded)


def linearise(sums: Vector, bounded: bool = False) -> Sample:
    """Values whose mean is the ratio of the sums; `sums` (units, 2): numerators, denominators."""
    extremes = (0.0, 1.0) if bounded else None
    numerators, denominators = sums[:, 0], sums[:, 1]
    if not len(sums) or (denominators == 1).all():
        return Sample(numerators.astype(float), extremes)
    ratio = numerators.sum() / denominators.sum()
    residuals = numerators - ratio * denominators
    return Sample(ratio + residuals / denominators.mean(), extremes)


def paired_sample(
    requests: Iterable[RequestRecord], shadow: str, metric: MetricName, prices: Prices
) -> Sample:
    """By unit, a shadow arm's value minus the served arm's, on the same requests."""
    sums: dict[str, list[float]] = {}
    for request, difference in paired_differences(requests, shadow, metric, prices):
        total = sums.setdefault(request.exposure.unit, [0.0, 0.0])
        total[0] += difference
        total[1] += 1
    differences = linearise(np.array(list(sums.values())).reshape(-1, 2))
    if not METRICS[metric].bounded:
        return differences
    return Sample(differences.values, (0.0, 1.0) if metric == "agreement" else (-1.0, 1.0))
