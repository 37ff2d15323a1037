"""The metrics that arms are compared by, each read from a request: numerator and denominator."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

from orchestrator.experiments.documents import MetricName, Prices
from orchestrator.experiments.ledger import Outcome, Request

Part = tuple[float, float] | None
"""A request's numerator and denominator; None where it says nothing about the metric."""


@dataclass(frozen=True, slots=True)
class Metric:
    """Something to compare: sums over requests, one divided by the other.

    `bounded` metrics lie in [0, 1]. `of` takes an outcome (None while there is none), the reward
    and the prices.
    """

    title: str
    better: Literal["lower", "higher"]
    bounded: bool
    of: Callable[[Outcome | None, float | None, Prices], Part]

    @property
    def sign(self) -> int:
        """1 where more is better, -1 where less is."""
        return 1 if self.better == "higher" else -1


def _time(name: Literal["ms", "first_step_ms"]) -> Callable[..., Part]:
    def of(outcome: Outcome | None, reward: float | None, prices: Prices) -> Part:
        value = None if outcome is None or outcome.status != "finished" else getattr(outcome, name)
        return None if value is None else (value, 1.0)

    return of


def _tokens(name: Literal["small_tokens", "large_tokens"]) -> Callable[..., Part]:
    def of(outcome: Outcome | None, reward: float | None, prices: Prices) -> Part:
        done = outcome is not None and outcome.status == "finished"
        return (float(getattr(outcome, name)), 1.0) if done else None

    return of


def _large_share(outcome: Outcome | None, reward: float | None, prices: Prices) -> Part:
    if outcome is None or outcome.status != "finished":
        return None
    total = outcome.small_tokens + outcome.large_tokens
    return (outcome.large_tokens, total) if total else None


def _cost(outcome: Outcome | None, reward: float | None, prices: Prices) -> Part:
    # What was begun is paid for, however it ended.
    if outcome is None or not (prices.small or prices.large or prices.prompt):
        return None
    paid = (
        outcome.small_tokens * prices.small
        + outcome.large_tokens * prices.large
        + outcome.prompt_tokens * prices.prompt
    )
    return paid / 1e6, 1.0


def _accepted(outcome: Outcome | None, reward: float | None, prices: Prices) -> Part:
    return None if outcome is None or outcome.accepted is None else (outcome.accepted, 1.0)


def _agreement(outcome: Outcome | None, reward: float | None, prices: Prices) -> Part:
    told = None if outcome is None else outcome.agreement
    return None if told is None else (float(told), 1.0)


def _reward(outcome: Outcome | None, reward: float | None, prices: Prices) -> Part:
    return None if reward is None else (reward, 1.0)


def _error(outcome: Outcome | None, reward: float | None, prices: Prices) -> Part:
    # One that its client cancelled is neither a success nor a failure.
    if outcome is None or outcome.status == "cancelled":
        return None
    return float(outcome.status == "failed"), 1.0


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
}


def parts(
    requests: Iterable[Request], metric: MetricName, prices: Prices
) -> Iterator[tuple[Request, float, float]]:
    """Each request that says something about the metric, with numerator and denominator."""
    of = METRICS[metric].of
    for request in requests:
        found = of(request.outcome, request.reward, prices)
        if found is not None:
            yield request, *found


def pairs(
    requests: Iterable[Request], shadow: str, metric: MetricName, prices: Prices
) -> Iterator[tuple[Request, float]]:
    """Each request that a shadow repeated, with the shadow's value minus that of the served arm.

    Agreement is the pair's own; errors and what follows from them count on both sides.
    """
    of = METRICS[metric].of
    for request in requests:
        mine = of(request.shadows.get(shadow), None, prices)
        if mine is None or metric == "reward":
            continue
        if metric == "agreement":
            yield request, mine[0]
            continue
        theirs = of(request.outcome, None, prices)
        if theirs is not None:
            yield request, mine[0] / mine[1] - theirs[0] / theirs[1]
