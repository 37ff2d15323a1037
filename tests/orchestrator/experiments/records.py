"""Made-up requests under an experiment."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from orchestrator.experiments.outcome_log import Exposure, Outcome, RequestRecord


def request(
    arm: str,
    number: int,
    *,
    unit: str | None = None,
    at: float | None = None,
    reward: float | None = None,
    **outcome: Any,
) -> RequestRecord:
    trace = f"trace-{number}"
    when = float(number) if at is None else at
    exposure = Exposure(trace_id=trace, at=when, arm=arm, unit=unit or trace)
    fields = {"ms": 100.0, "small_tokens": 10, "large_tokens": 10, **outcome}
    rewards = {} if reward is None else {None: reward}
    return RequestRecord(exposure, Outcome(trace_id=trace, at=when, arm=arm, **fields), rewards)


def with_times(times: dict[str, Iterable[float]], **more: Any) -> list[RequestRecord]:
    """Requests that took so long, the arms in turn."""
    made: list[RequestRecord] = []
    for arm, values in times.items():
        made += [request(arm, len(made) + n, ms=float(ms), **more) for n, ms in enumerate(values)]
    return made


def latencies(count: int, median: float, seed: int) -> Any:
    return np.random.default_rng(seed).lognormal(np.log(median), 0.6, count)
