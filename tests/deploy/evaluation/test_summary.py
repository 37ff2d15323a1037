"""Rows from outcomes that were made by hand."""

from __future__ import annotations

import pytest

from deploy.evaluation.candidates import lineup
from deploy.evaluation.evaluate import EvaluatedAnswer, Turn
from deploy.evaluation.summary import rows
from orchestrator.loop.events import Metrics
from orchestrator.types import Step

STEPS = (
    Step("small", "a", True, 1, 1.0, 9.0),
    Step("small", "b", False, 1, 1.0, 1.0),
    Step("large", "c", True, 1, 1.0),
    Step("small", "d", True, 1, 1.0, phase="answer"),
)


def result(correct: bool, ms: float, small: int, large: int) -> EvaluatedAnswer:
    spent = {"small": 2.0, "large": 3.0, "classify": 1.0, "total": ms}
    metrics = Metrics(small, large, 2, 4, 5, ms=spent)
    return EvaluatedAnswer("", 7, metrics, STEPS, correct, ms)


def test_rows() -> None:
    candidates = lineup(["specreason"], [None])
    turns: list[Turn] = [
        [result(True, 20.0, 0, 9), result(bool(number % 2), 5.0, 6, 3)] for number in range(6)
    ]
    base, ours = rows(candidates, turns, speculation="vanilla", transport="in-process")
    assert (base["policy"], base["accuracy"], base["speedup"]) == ("large-only", 1.0, 1.0)
    assert (ours["n"], ours["accuracy"], ours["difference"]) == (6, 0.5, -0.5)
    assert (ours["speedup"], ours["p50_ms"], ours["mean_ms"]) == (4.0, 5.0, 5.0)
    assert (ours["small_tokens"], ours["large_tokens"], ours["output_tokens"]) == (6, 3, 7)
    assert (ours["large_share"], base["large_share"]) == (pytest.approx(1 / 3), 1.0)
    assert (ours["discarded_tokens"], ours["judge_calls"], ours["large_passes"]) == (2, 4, 5)
    assert (ours["accepted_steps"], ours["steps"]) == (1, 2)
    assert (ours["budget"], ours["speculation"]) == (None, "vanilla")
    assert base["ms"] == {"small": 2, "large": 3, "classify": 1, "rest": 14, "overlap": 0}
    assert (ours["ms"]["rest"], ours["ms"]["overlap"]) == (0, 1)  # 6 ms of work in 5 ms


def test_a_budget_of_ones_own_is_compared_with_the_usual_baseline() -> None:
    candidates = lineup(["specreason:budget=50", "large-only"], [None])
    assert [one.budget for one in candidates] == [50, None]
    turns: list[Turn] = [[result(True, ms, 1, 1) for ms in (1.0, 4.0)]]
    ours, base = rows(candidates, turns, speculation="vanilla", transport="in-process")
    assert (ours["speedup"], base["speedup"]) == (4.0, 1.0)
