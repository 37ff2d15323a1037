"""The metrics that arms are compared by: a numerator and a denominator per request."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

from orchestrator.experiments.documents import MetricName
from orchestrator.experiments.outcome_log import Outcome, RequestRecord, TimeName
from orchestrator.types import TokenPrices

Observation = tuple[float, float] | None
"""A request's numerator and denominator; None if it has no value of the metric."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric: the ratio of two sums over requests.

    `bounded` metrics lie in [0, 1]. `of` takes the outcome of a request and the prices; a `reward`
    is in no outcome.
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
    "reward": Metric("reward", "higher", True, lambda *_: None),
    "error": Metric("share of errors", "lower", True, _error),
    "cancelled": Metric("share of cancelled requests", "lower", True, _cancelled),
}


def _observed(outcome: Outcome | None, metric: MetricName, prices: TokenPrices) -> Observation:
    return None if outcome is None else METRICS[metric].of(outcome, prices)


def observations(
    requests: Iterable[RequestRecord], metric: MetricName, prices: TokenPrices
) -> Iterator[tuple[RequestRecord, float, float]]:
    """Yield each request that has a value of the metric, with numerator and denominator."""
    for request in requests:
        observed = (
            _known(request.reward)
            if metric == "reward"
            else _observed(request.outcome, metric, prices)
        )
        if observed is not None:
            yield request, *observed


def paired_differences(
    requests: Iterable[RequestRecord], shadow: str, metric: MetricName, prices: TokenPrices
) -> Iterator[tuple[RequestRecord, float]]:
    """Yield each request that a shadow answered, with its value minus the served arm's.

    Agreement is a property of the pair: its own value, not a difference.
    """
    for request in requests:
        own = _observed(request.shadows.get(shadow), metric, prices)
        if own is None:
            continue
        if metric == "agreement":
            yield request, own[0]
            continue
        served = _observed(request.outcome, metric, prices)
        if served is not None:
            yield request, own[0] / own[1] - served[0] / served[1]
