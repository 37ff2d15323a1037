"""A metric's values by unit: their mean or ratio, and its standard error.

A unit (a user, a session) may send many requests, which are correlated; so units are counted. The
ratio of two sums over units is linearised (the delta method; Deng et al. 2018, "Applying the Delta
Method in Metric Analytics", arXiv 1803.06336), which for one request per unit is the plain mean
with its plain variance.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from orchestrator.experiments.documents import MetricName
from orchestrator.experiments.metrics import METRICS, observations, paired_differences
from orchestrator.experiments.outcome_log import RequestRecord
from orchestrator.types import TokenPrices

Vector = NDArray[np.float64]
EQUAL: Final = 1e-14  # of the mean square: a smaller variance is rounding


@dataclass(frozen=True, slots=True)
class Moments:
    """The moments of a sample: numbers, or arrays of one shape with an entry per sample.

    `variance` and `skewness` are of one unit's value.
    """

    count: Any
    mean: Any
    variance: Any
    skewness: Any

    @property
    def error(self) -> Any:
        """The standard error of the mean; infinite if the variance is."""
        return np.sqrt(self.variance / np.maximum(self.count, 1))


@dataclass(frozen=True, slots=True)
class Sample:
    """One arm's values of one metric: an array with a linearised value per unit.

    The mean of `values` is the metric. `extremes` are the smallest and the largest possible value
    of a bounded metric: one pseudo-unit at each keeps the variance above 0 if all units agree
    (Agresti and Caffo 2000, for proportions).
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
        """The moments of the values; the variance is infinite below two units."""
        ends = self.extremes
        values = self.values if ends is None else np.append(self.values, ends)
        if len(values) < 2:
            return Moments(self.count, self.mean, np.inf, 0.0)
        near = values - values.mean()
        variance, cube = (near**2).mean(), (near**3).mean()
        known = variance > EQUAL * (values**2).mean()  # else it is rounding
        skewness = float(cube / variance**1.5) if known else 0.0
        if ends is None:
            variance *= len(values) / (len(values) - 1)
        return Moments(self.count, self.mean, float(variance), skewness)

    @property
    def variance(self) -> float:
        return float(self.moments.variance)

    @property
    def error(self) -> float:
        return float(self.moments.error) if self.count else float("inf")

    @property
    def binary(self) -> bool:
        """Whether every value is 0 or 1, so that tests for proportions apply."""
        return self.extremes == (0.0, 1.0) and bool(np.isin(self.values, (0, 1)).all())


def unit_sums(rows: Iterable[tuple[RequestRecord, float, float]]) -> Vector:
    """Return sums of numerators and denominators by unit, shape (units, 2)."""
    sums: dict[str, list[float]] = {}
    for request, numerator, denominator in rows:
        total = sums.setdefault(request.exposure.unit, [0.0, 0.0])
        total[0] += numerator
        total[1] += denominator
    return np.array(list(sums.values()), dtype=float).reshape(-1, 2)


@dataclass(frozen=True, slots=True)
class MetricValues:
    """A metric over an arm's requests that have it: `values` by request, `sums` by unit."""

    values: Vector
    sums: Vector


def metric_values(
    requests: Iterable[RequestRecord], metric: MetricName, prices: TokenPrices
) -> MetricValues:
    rows = list(observations(requests, metric, prices))
    return MetricValues(np.array([above / below for _, above, below in rows]), unit_sums(rows))


def sample(requests: Iterable[RequestRecord], metric: MetricName, prices: TokenPrices) -> Sample:
    """Return a metric of an arm's requests, by unit."""
    return linearise(unit_sums(observations(requests, metric, prices)), METRICS[metric].bounded)


def linearise(sums: Vector, bounded: bool = False) -> Sample:
    """Return a sample whose mean is the ratio of the sums, which have the shape of `unit_sums`."""
    extremes = (0.0, 1.0) if bounded else None
    numerators, denominators = sums[:, 0], sums[:, 1]
    if not len(sums) or (denominators == 1).all():
        return Sample(numerators.astype(float), extremes)
    ratio = numerators.sum() / denominators.sum()
    residuals = numerators - ratio * denominators
    return Sample(ratio + residuals / denominators.mean(), extremes)


def paired_sample(
    requests: Iterable[RequestRecord], shadow: str, metric: MetricName, prices: TokenPrices
) -> Sample:
    """Return, by unit, a shadow arm's value minus the served arm's, on the same requests."""
    pairs = paired_differences(requests, shadow, metric, prices)
    differences = linearise(unit_sums((request, value, 1.0) for request, value in pairs))
    if not METRICS[metric].bounded:
        return differences
    return Sample(differences.values, (0.0, 1.0) if metric == "agreement" else (-1.0, 1.0))
