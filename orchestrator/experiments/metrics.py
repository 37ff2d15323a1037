"""The metrics that arms are compared by, and their values over requests and units.

A unit (a user, a session) may send many requests, which are correlated; so units are counted. The
ratio of two sums over units is linearised (the delta method; Deng et al. 2018, "Applying the Delta
Method in Metric Analytics", arXiv 1803.06336), which for one request per unit is the plain mean
with its plain variance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from orchestrator.experiments.documents import MetricName
from orchestrator.experiments.outcome_log import Outcome, RequestRecord, TimeName
from orchestrator.types import TokenPrices

Vector = NDArray[np.float64]
Observation = tuple[float, float] | None
"""A request's numerator and denominator; None if it has no value of the metric."""
EQUAL: Final = 1e-14  # of the mean square: a smaller variance is rounding


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric: the ratio of two sums over requests, by their outcomes and the prices.

    `bounded` metrics lie in [0, 1].
    """

    title: str
    better: Literal["lower", "higher"]
    bounded: bool
    of: Callable[[Outcome, TokenPrices], Observation]

    @property
    def sign(self) -> int:
        """1 if more is better, -1 if less is."""
        return 1 if self.better == "higher" else -1


def _known(value: float | None) -> Observation:
    return None if value is None else (float(value), 1.0)


def _time(name: TimeName) -> Callable[..., Observation]:
    return lambda one, _: _known(one.time(name))


def _tokens(name: Literal["small_tokens", "large_tokens"]) -> Callable[..., Observation]:
    return lambda one, _: _known(getattr(one, name) if one.status == "finished" else None)


def _large_share(outcome: Outcome, _: TokenPrices) -> Observation:
    total = outcome.small_tokens + outcome.large_tokens
    return (outcome.large_tokens, total) if total and outcome.status == "finished" else None


def _cost(outcome: Outcome, prices: TokenPrices) -> Observation:
    if prices.all_free:
        return None
    return prices.of(outcome.small_tokens, outcome.large_tokens, outcome.prompt_tokens), 1.0


def _cancelled(outcome: Outcome, _: TokenPrices) -> Observation:
    return _known(outcome.status == "cancelled")


def _error(outcome: Outcome, _: TokenPrices) -> Observation:
    # A request that was cancelled by its client or refused as invalid is neither a success nor a
    # failure of the arm.
    blameless = outcome.status == "cancelled" or outcome.refused
    return None if blameless else _known(outcome.status == "failed")


METRICS: Final[dict[MetricName, Metric]] = {
    "ms": Metric("latency, ms", "lower", False, _time("ms")),
    "first_step_ms": Metric("time to the first step, ms", "lower", False, _time("first_step_ms")),
    "small_tokens": Metric("tokens by small", "lower", False, _tokens("small_tokens")),
    "large_tokens": Metric("tokens by large", "lower", False, _tokens("large_tokens")),
    "large_share": Metric("share of large tokens", "lower", True, _large_share),
    "cost": Metric("cost of a request", "lower", False, _cost),
    "accepted": Metric(
        "accepted share of drafts", "higher", True, lambda one, _: _known(one.accepted)
    ),
    "agreement": Metric("answers that agree", "higher", True, lambda one, _: _known(one.agreement)),
    "reward": Metric("reward", "higher", True, lambda *_: None),  # it is in no outcome
    "error": Metric("share of errors", "lower", True, _error),
    "cancelled": Metric("share of cancelled requests", "lower", True, _cancelled),
}


def values(requests: Iterable[RequestRecord], metric: MetricName, prices: TokenPrices) -> Values:
    """Return a metric of the requests that have it."""

    def observed(request: RequestRecord) -> Observation:
        if metric == "reward":
            return _known(request.reward)
        return _observed(request.outcome, metric, prices)

    return _collected(requests, observed)


def paired_values(
    requests: Iterable[RequestRecord], shadow: str, metric: MetricName, prices: TokenPrices
) -> Values:
    """Return a shadow arm's values minus those of the served arm, on the same requests.

    Agreement is a property of the pair: its own value, not a difference.
    """

    def difference(request: RequestRecord) -> Observation:
        own = _observed(request.shadows.get(shadow), metric, prices)
        if own is None or metric == "agreement":
            return own
        served = _observed(request.outcome, metric, prices)
        return None if served is None else (own[0] / own[1] - served[0] / served[1], 1.0)

    return _collected(requests, difference)


def _observed(outcome: Outcome | None, metric: MetricName, prices: TokenPrices) -> Observation:
    return None if outcome is None else METRICS[metric].of(outcome, prices)


def _collected(
    requests: Iterable[RequestRecord], observe: Callable[[RequestRecord], Observation]
) -> Values:
    numbers: dict[str, int] = {}
    found = [
        (one.exposure.at, numbers.setdefault(one.exposure.unit, len(numbers)), *observed)
        for one in requests
        if (observed := observe(one)) is not None
    ]
    at, units, above, below = np.array(found, dtype=float).reshape(-1, 4).T
    return Values(at, units.astype(int), above, below)


@dataclass(frozen=True, slots=True)
class Values:
    """A metric over requests, one entry each: the time of the exposure, the number of the unit, the
    numerator `above` and the denominator `below`."""

    at: Vector
    units: NDArray[np.int64]
    above: Vector
    below: Vector

    def until(self, end: float) -> Values:
        """Return the values of the requests that were exposed by then."""
        kept = self.at <= end
        return Values(self.at[kept], self.units[kept], self.above[kept], self.below[kept])

    def beyond(self, limit: float) -> Values:
        """Return whether each value is above the limit, as values 0 and 1."""
        over = self.above > limit * self.below
        return replace(self, above=over.astype(float), below=np.ones_like(self.below))

    def sample(self, extremes: tuple[float, float] | None) -> Sample:
        """Return a sample with a value per unit, whose mean is the ratio of the sums."""
        present = np.bincount(self.units) > 0
        above, below = (
            np.bincount(self.units, sums)[present].astype(float)
            for sums in (self.above, self.below)
        )
        if not (below == 1).all():
            ratio = above.sum() / below.sum()
            above = ratio + (above - ratio * below) / below.mean()
        return Sample(above, extremes)


@dataclass(frozen=True)
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
    def variance(self) -> float:
        """The variance of a unit's value; infinite below two units."""
        return self._moments[0]

    @property
    def skewness(self) -> float:
        return self._moments[1]

    @property
    def error(self) -> float:
        """The standard error of the mean; infinite if the variance is."""
        return float(np.sqrt(self.variance / self.count)) if self.count else float("inf")

    @property
    def binary(self) -> bool:
        """Whether every value is 0 or 1, so that tests for proportions apply."""
        return self.extremes == (0.0, 1.0) and bool(np.isin(self.values, (0, 1)).all())

    @cached_property
    def _moments(self) -> tuple[float, float]:
        ends = self.extremes
        values = self.values if ends is None else np.append(self.values, ends)
        if len(values) < 2:
            return float("inf"), 0.0
        near = values - values.mean()
        variance, cube = float((near**2).mean()), float((near**3).mean())
        known = variance > EQUAL * (values**2).mean()  # else it is rounding
        skewness = cube / variance**1.5 if known else 0.0
        if ends is None:
            variance *= len(values) / (len(values) - 1)
        return variance, skewness


def sample(requests: Iterable[RequestRecord], metric: MetricName, prices: TokenPrices) -> Sample:
    """Return a metric of an arm's requests, by unit."""
    return values(requests, metric, prices).sample(extremes(metric))


def extremes(metric: MetricName, paired: bool = False) -> tuple[float, float] | None:
    """Return the ends of a metric's values, or of its paired differences; None if it has none."""
    if not METRICS[metric].bounded:
        return None
    return (-1.0, 1.0) if paired and metric != "agreement" else (0.0, 1.0)
