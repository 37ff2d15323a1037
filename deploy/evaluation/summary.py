"""Makes from results the rows that people and scripts read.

Every row is one policy at one budget; counts are means per problem. *Speedup* is the summed wall
time of `large-only` over the policy's, at the same budget and with the same speculation in the
large worker, on the same problems.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from deploy.evaluation.candidates import BASELINE, Candidate
from deploy.evaluation.evaluate import EvaluatedAnswer, Turn
from deploy.evaluation.intervals import mean, paired, quantile, ratio_of_sums, wilson

Row = dict[str, Any]
SMALL: Final = "small-only"
SERVICE: Final = "the service's"  # the speculation if the service decides about it
COUNTS: Final = (
    "small_tokens",
    "large_tokens",
    "discarded_tokens",
    "judge_calls",
    "large_passes",
    "prefill_tokens",
)


def rows(
    candidates: Sequence[Candidate],
    turns: Sequence[Turn],
    *,
    speculation: str,
    transport: str,
) -> list[Row]:
    """Return one row per policy and budget.

    `accepted_steps` counts the small model's thinking steps that were accepted; `large_share` is
    the large model's part of all generated tokens. `difference` is the accuracy minus the
    baseline's at the same budget, or minus its first run's if no baseline has that budget. `ms` has
    a problem's mean time by worker; `rest` is time in which no worker was waited for, `overlap`
    time in which workers ran side by side.
    """
    columns = [[turn[i] for turn in turns] for i in range(len(candidates))]
    table = dict(zip(((c.label, c.budget) for c in candidates), columns, strict=True))
    usual = next(own for c, own in zip(candidates, columns, strict=True) if c.label == BASELINE)
    return [
        {
            "policy": candidate.label,
            **figures(own, table.get((BASELINE, candidate.budget), usual)),
            **_means(own),
            "budget": candidate.budget,
            "speculation": speculation,
            "transport": transport,
            "errors": sum(result.error is not None for result in own),
        }
        for candidate, own in zip(candidates, columns, strict=True)
    ]


def figures(own: Sequence[EvaluatedAnswer], base: Sequence[EvaluatedAnswer]) -> Row:
    """Return accuracy and latency, alone and against the baseline on the same problems."""
    right, times = [result.correct for result in own], [result.ms for result in own]
    low, high = wilson(sum(right), len(right))
    difference, least, most = paired(right, [result.correct for result in base])
    slow, fast = ratio_of_sums([result.ms for result in base], times)
    small, large = (
        sum(getattr(result.metrics, f"{name}_tokens") for result in own)
        for name in ("small", "large")
    )
    return {
        "n": len(own),
        "accuracy": mean(right),
        "accuracy_low": low,
        "accuracy_high": high,
        "difference": difference,
        "difference_low": least,
        "difference_high": most,
        "p50_ms": quantile(times, 0.50),
        "p95_ms": quantile(times, 0.95),
        "mean_ms": mean(times),
        "total_ms": sum(times),
        "speedup": sum(result.ms for result in base) / sum(times) if sum(times) else 0.0,
        "speedup_low": slow,
        "speedup_high": fast,
        "large_share": large / (small + large) if small + large else 0.0,
    }


def _means(own: Sequence[EvaluatedAnswer]) -> Row:
    metrics = [result.metrics for result in own]
    times = {
        name: mean([one.ms.get(name, 0.0) for one in metrics])
        for name in ("small", "large", "classify")
    }
    rest = mean([result.ms for result in own]) - sum(times.values())
    return {
        **{name: mean([getattr(one, name) for one in metrics]) for name in COUNTS},
        "output_tokens": mean([result.output_tokens for result in own]),
        "accepted_steps": mean([result.kept("small") for result in own]),
        "steps": mean([result.kept() for result in own]),
        "ms": {**times, "rest": max(0.0, rest), "overlap": max(0.0, -rest)},
    }
