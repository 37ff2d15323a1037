"""From outcomes to the rows that people and scripts read.

Every row stands for one policy at one budget; counts are means per problem. *Speedup* is the
summed wall time of `large-only` over the policy's, at the same budget and with the same
speculation in the large worker, on the same problems.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from deploy.evaluation.evaluate import BASELINE, Contender, Outcome, Problem, Turn
from deploy.evaluation.intervals import mean, paired, quantile, wilson

Row = dict[str, Any]
SERVICE: Final = "the service's"  # what stands for a large worker's method that nobody here chose
COUNTS: Final = (
    "small_tokens",
    "large_tokens",
    "discarded_tokens",
    "judge_calls",
    "large_passes",
    "prefill_tokens",
)


def rows(
    problems: Sequence[Problem],
    contenders: Sequence[Contender],
    turns: Sequence[Turn],
    *,
    speculation: str,
    transport: str,
) -> list[Row]:
    """One row per policy and budget.

    `accepted_steps` counts thinking steps of the small model that stayed, `large_share` is the
    large model's part of all tokens generated. `difference` is the accuracy minus the baseline's:
    at the same budget, or as it runs first where the budget is a parameter of the contender alone.
    `ms` says where a problem's mean time went; `rest` is what no worker was waited for (`overlap`
    what workers did side by side). `levels` holds the same by difficulty, where problems have one.
    """
    columns: list[list[Outcome]] = [[turn[i] for turn in turns] for i in range(len(contenders))]
    table = dict(zip(((c.label, c.budget) for c in contenders), columns, strict=True))
    usual = next(own for c, own in zip(contenders, columns, strict=True) if c.label == BASELINE)
    levels = [problem.level for problem in problems[: len(turns)]]
    made = []
    for contender, own in zip(contenders, columns, strict=True):
        base = table.get((BASELINE, contender.budget), usual)
        row: Row = {
            "policy": contender.label,
            **figures(own, base),
            **_means(own),
            "budget": contender.budget,
            "speculation": speculation,
            "transport": transport,
            "errors": sum(outcome.error is not None for outcome in own),
        }
        row["levels"] = {
            str(level): figures(*(_at(level, levels, column) for column in (own, base)))
            for level in sorted({one for one in levels if one is not None}, key=_order)
        }
        made.append(row)
    return made


def figures(own: Sequence[Outcome], base: Sequence[Outcome]) -> Row:
    """Accuracy and latency, alone and against the baseline on the same problems."""
    right, times = [outcome.correct for outcome in own], [outcome.ms for outcome in own]
    low, high = wilson(sum(right), len(right))
    against = paired(right, [outcome.correct for outcome in base])
    small, large = (
        sum(getattr(outcome.answered.metrics, f"{name}_tokens") for outcome in own)
        for name in ("small", "large")
    )
    return {
        "n": len(own),
        "accuracy": mean(right),
        "accuracy_low": low,
        "accuracy_high": high,
        "difference": against.difference,
        "difference_low": against.low,
        "difference_high": against.high,
        "won": against.won,
        "lost": against.lost,
        "mcnemar_p": against.p,
        "p50_ms": quantile(times, 0.50),
        "p95_ms": quantile(times, 0.95),
        "mean_ms": mean(times),
        "total_ms": sum(times),
        "speedup": sum(outcome.ms for outcome in base) / sum(times) if sum(times) else 0.0,
        "large_share": large / (small + large) if small + large else 0.0,
    }


def _means(own: Sequence[Outcome]) -> Row:
    metrics = [outcome.answered.metrics for outcome in own]
    spent = {
        name: mean([one.ms.get(name, 0.0) for one in metrics])
        for name in ("small", "large", "classify")
    }
    rest = mean([outcome.ms for outcome in own]) - sum(spent.values())
    return {
        **{name: mean([getattr(one, name) for one in metrics]) for name in COUNTS},
        "output_tokens": mean([outcome.answered.output_tokens for outcome in own]),
        "accepted_steps": mean([outcome.answered.kept("small") for outcome in own]),
        "steps": mean([outcome.answered.kept() for outcome in own]),
        "ms": {**spent, "rest": max(0.0, rest), "overlap": max(0.0, -rest)},
    }


def _at(level: object, levels: Sequence[object], column: Sequence[Outcome]) -> list[Outcome]:
    return [outcome for outcome, own in zip(column, levels, strict=True) if own == level]


def _order(level: int | str) -> tuple[int, int, str]:
    """Numbers by size, before words."""
    return (0, level, "") if isinstance(level, int) else (1, 0, level)
