"""What a metric's values amount to, unit by unit: a mean or a ratio, and how sure it is.

A unit (a user, a session) may ask often, and its requests are alike; so units are what is counted.
The ratio of two sums over units is linearised (the delta method; Deng et al. 2018, "Applying the
Delta Method in Metric Analytics", arXiv 1803.06336), which for one request per unit is the plain
mean with its plain variance.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from orchestrator.experiments.documents import MetricName, Prices
from orchestrator.experiments.ledger import Request
from orchestrator.experiments.measures import METRICS, pairs, parts

Vector = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Sample:
    """One arm's values of one metric: an array with a linearised value per unit.

    `values` have the metric as their mean. `extremes` are the ends of where values can lie, for a
    bounded metric: one imagined unit at either end keeps the variance honest where all units
    agree, as Agresti and Caffo (2000) do for proportions.
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
    def variance(self) -> float:
        """Of one unit's value; infinite while nothing is known."""
        if self.extremes is not None:
            return float(np.var(np.append(self.values, self.extremes)))
        return float(np.var(self.values, ddof=1)) if self.count > 1 else float("inf")

    @property
    def error(self) -> float:
        """The standard error of the mean."""
        return float(np.sqrt(self.variance / self.count)) if self.count else float("inf")

    @property
    def binary(self) -> bool:
        """Whether every value is 0 or 1, so that tests for proportions apply."""
        return self.extremes == (0.0, 1.0) and bool(np.isin(self.values, (0, 1)).all())


@dataclass(frozen=True, slots=True)
class Gathered:
    """An arm's requests that say something of a metric: one `values` entry each.

    `sums` has shape (units, 2): numerators and denominators, units in the order they were seen.
    """

    values: Vector
    sums: Vector


def gather(requests: Iterable[Request], metric: MetricName, prices: Prices) -> Gathered:
    """Read a metric from an arm's requests, once."""
    units: dict[str, int] = {}
    places, above, below = [], [], []
    for request, one, other in parts(requests, metric, prices):
        places.append(units.setdefault(request.exposure.unit, len(units)))
        above.append(one)
        below.append(other)
    where = np.array(places, dtype=np.intp)
    both = np.array([above, below], dtype=float)
    sums = np.array([np.bincount(where, each, len(units)) for each in both], dtype=float)
    return Gathered(both[0] / both[1], sums.T)


def sample(requests: Iterable[Request], metric: MetricName, prices: Prices) -> Sample:
    """An arm's values of a metric, by unit."""
    return linearised(gather(requests, metric, prices).sums, METRICS[metric].bounded)


def linearised(sums: Vector, bounded: bool = False) -> Sample:
    """From (units, 2) numerators and denominators to values whose mean is the ratio of the sums."""
    extremes = (0.0, 1.0) if bounded else None
    above, below = sums[:, 0], sums[:, 1]
    if not len(sums) or (below == 1).all():
        return Sample(above.astype(float), extremes)
    ratio = above.sum() / below.sum()
    return Sample(ratio + (above - ratio * below) / below.mean(), extremes)


def paired(requests: Iterable[Request], shadow: str, metric: MetricName, prices: Prices) -> Sample:
    """What a shadow arm does differently on the same requests: its value minus the served one's."""
    sums: dict[str, list[float]] = {}
    for request, difference in pairs(requests, shadow, metric, prices):
        told = sums.setdefault(request.exposure.unit, [0.0, 0.0])
        told[0] += difference
        told[1] += 1
    found = linearised(np.array(list(sums.values())).reshape(-1, 2))
    if not METRICS[metric].bounded:
        return found
    return Sample(found.values, (0.0, 1.0) if metric == "agreement" else (-1.0, 1.0))
