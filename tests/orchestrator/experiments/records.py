"""Requests under an experiment, made up: for tests of what is read from them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from orchestrator.experiments.ledger import Exposure, Outcome, Request


def request(
    arm: str,
    number: int,
    *,
    unit: str | None = None,
    at: float | None = None,
    reward: float | None = None,
    forced: bool = False,
    probability: float = 0.5,
    **outcome: Any,
) -> Request:
    trace = f"trace-{number}"
    when = float(number) if at is None else at
    exposure = Exposure(
        trace_id=trace,
        at=when,
        arm=arm,
        unit=unit or trace,
        probability=probability,
        forced=forced,
    )
    told = {"ms": 100.0, "small_tokens": 10, "large_tokens": 10, **outcome}
    return Request(exposure, Outcome(trace_id=trace, at=when, arm=arm, **told), reward)


def with_times(times: dict[str, Iterable[float]], **more: Any) -> list[Request]:
    """Requests that took so long, the arms in turn."""
    made: list[Request] = []
    for arm, values in times.items():
        made += [request(arm, len(made) + n, ms=float(ms), **more) for n, ms in enumerate(values)]
    return made


def latencies(count: int, median: float, seed: int) -> Any:
    return np.random.default_rng(seed).lognormal(np.log(median), 0.6, count)
