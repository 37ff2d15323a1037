"""The metrics that arms are compared by: a numerator and a denominator per request."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

from orchestrator.experiments.documents import MetricName, Prices
from orchestrator.experiments.outcome_log import Outcome, RequestRecord, TimeName

Observation = tuple[float, float] | None
"""A request's numerator and denominator; None where the metric is not known of it."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric: the ratio of two sums over requests.

    `bounded` metrics lie in [0, 1]. `of` takes an outcome (None while there is none), the reward
    and the prices.
    """

    title: str
    better: Literal["lower", "higher"]
    bounded: bool
    of: Callable[[Outcome | None, float | None, Prices], Observation]

    @property
    def sign(self) -> int:
        """1 where more is better, -1 where less is."""
        return 1 if self.better == "higher" else -1


def _time(name: TimeName) -> Callable[..., Observation]:
    def of(outcome: Outcome | None, reward: float | None, prices: Prices) -> Observation:
        value = None if outcome is None else outcome.time(name)
        return None if value is None else (value, 1.0)

    return of


def _tokens(name: Literal["small_tokens", "large_tokens"]) -> Callable[..., Observation]:
    def of(outcome: Outcome | None, reward: float | None, prices: Prices) -> Observation:
        done = outcome is not None and outcome.status == "finished"
        return (float(getattr(outcome, name)), 1.0) if done else None

    return of


def _large_share(outcome: Outcome | None, reward: float | None, prices: Prices) -> Observation:
    if outcome is None or outcome.status != "finished":
        return None
    total = outcome.small_tokens + outcome.large_tokens
    return (outcome.large_tokens, total) if total else None


def _cost(outcome: Outcome | None, reward: float | None, prices: Prices) -> Observation:
    # Counted however the request ended.
    if outcome is None or not (prices.small or prices.large or prices.prompt):
        return None
    paid = (
        outcome.small_tokens * prices.small
        + outcome.large_tokens * prices.large
        + outcome.prompt_tokens * prices.prompt
    )
    return paid / 1e6, 1.0


def _accepted(outcome: Outcome | None, reward: float | None, prices: Prices) -> Observation:
    return None if outcome is None or outcome.accepted is None else (outcome.accepted, 1.0)


def _agreement(outcome: Outcome | None, reward: float | None, prices: Prices) -> Observation:
    agrees = None if outcome is None else outcome.agreement
    return None if agrees is None else (float(agrees), 1.0)


def _reward(outcome: Outcome | None, reward: float | None, prices: Prices) -> Observation:
    return None if reward is None else (reward, 1.0)


def _error(outcome: Outcome | None, reward: float | None, prices: Prices) -> Observation:
    # A request that its client cancelled is neither a success nor a failure; see `_cancelled`.
    if outcome is None or outcome.status == "cancelled":
        return None
    return float(outcome.status == "failed"), 1.0


def _cancelled(outcome: Outcome | None, reward: float | None, prices: Prices) -> Observation:
    return None if outcome is None else (float(outcome.status == "cancelled"), 1.0)


METRICS: Final[dict[MetricName, Metric]] = {
    "ms": Metric("latency, ms", "lower", False, _time("ms")),
    "first_step_ms": Metric("time to the first step, ms", "lower", False, _time("first_step_ms")),
    "small_tokens": Metric("tokens by small", "lower", False, _tokens("small_tokens")),
    "large_tokens": Metric("tokens by large", "lower", False, _tokens("large_tokens")),
    "large_share": Metric("share of large tokens", "lower", True, _large_share),
    "cost": Metric("cost of a request", "lower", False, _cost),
    "accepted": Metric("accepted share of drafts", "higher", True, _accepted),
    "agreement": Metric("answers that agree", "higher", True, _agreement),
    "reward": Metric("reward", "higher", True, _reward),
    "error": Metric("share of errors", "lower", True, _error),
    "cancelled": Metric("share of cancelled requests", "lower", True, _cancelled),
}


def observations(
    requests: Iterable[RequestRecord], metric: MetricName, prices: Prices
) -> Iterator[tuple[RequestRecord, float, float]]:
    """Each request of which the metric is known, with numerator and denominator."""
    of = METRICS[metric].of
    for request in requests:
        observed = of(request.outcome, request.reward, prices)
        if observed is not None:
            yield request, *observed


def paired_differences(
    requests: Iterable[RequestRecord], shadow: str, metric: MetricName, prices: Prices
) -> Iterator[tuple[RequestRecord, float]]:
    """Each request that a shadow answered, with its value minus the served arm's.

    Agreement is a property of the pair: its own value, not a difference.
    """
    of = METRICS[metric].of
    for request in requests:
        own = of(request.shadows.get(shadow), None, prices)
        if own is None or metric == "reward":
            continue
        if metric == "agreement":
            yield request, own[0]
            continue
        served = of(request.outcome, None, prices)
        if served is not None:
            yield request, own[0] / own[1] - served[0] / served[1]
