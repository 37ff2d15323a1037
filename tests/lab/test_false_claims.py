"""The simulation of false claims: its sums are those of requests, its claims those of reports."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.stats import binom

from orchestrator.experiments.documents import Experiment, initial_state
from orchestrator.experiments.guardrails import crossed_guardrails
from orchestrator.experiments.outcome_log import RequestRecord, comparable
from orchestrator.experiments.report import report
from orchestrator.experiments.samples import Sample, linearise, sample
from orchestrator.types import TokenPrices
from tests.lab import false_claims
from tests.lab.false_claims import (
    LAWS,
    Cell,
    Rate,
    cells,
    censored_moments,
    claims_of,
    quantile_over,
    ratio_moments,
    run,
    seen_moments,
    unit_sums,
)
from tests.orchestrator.experiments.records import request

ARMS = [{"name": "control", "policy": "coin"}, {"name": "arm", "policy": "coin"}]


def same(found: Any, expected: Any, place: Any = ...) -> None:
    for name in ("count", "mean", "variance", "skewness"):
        own = np.asarray(getattr(found, name))[place]
        assert own == pytest.approx(getattr(expected, name), rel=1e-6), name


@pytest.mark.parametrize("name", LAWS)
def test_moments_at_a_look_are_those_of_the_sample(name: str) -> None:
    law, random = LAWS[name], np.random.default_rng(1)
    values, mine = law.draw(random, (3, 400)), random.random((3, 400)) < 0.3
    found = seen_moments(values, mine, 50, law)
    for row in range(3):
        for look in (0, 3, 7):
            end = 50 * (look + 1)
            own = values[row, :end][mine[row, :end]]
            same(found, Sample(own, law.extremes).moments, (row, look))


@pytest.mark.parametrize("extremes", [None, (0.0, 1.0)])
def test_ratios_are_those_of_units(extremes: Any) -> None:
    random = np.random.default_rng(2)
    who, values = random.integers(0, 40, (2, 200)), random.random((2, 200))
    above = unit_sums(who, values, 40)
    below = unit_sums(who, np.ones(who.shape), 40)
    mine = random.random((2, 40)) < 0.5
    found, each = ratio_moments(above, below, mine, extremes)
    for row in range(2):
        seen = mine[row] & (below[row] > 0)
        own = linearise(np.stack([above[row][seen], below[row][seen]], 1), extremes is not None)
        same(found, own.moments, row)
        assert each[row][seen] == pytest.approx(own.values)


def test_cancelled_requests_have_the_worst_time_so_far() -> None:
    random = np.random.default_rng(3)
    times, patience = random.lognormal(0, 0.6, 100), random.lognormal(1, 0.5, 100)
    known, cancelled = np.minimum(times, patience), times > patience
    mine = random.random(100) < 0.5
    assert cancelled.any()
    worst = np.maximum.accumulate(known)[None, 49::50]
    found = censored_moments(known[None], cancelled[None], mine[None], worst, 50)
    for look, end in enumerate((50, 100)):
        by_arm: dict[str, list[RequestRecord]] = {"arm": [], "control": []}
        for n in range(end):
            status = "cancelled" if cancelled[n] else "finished"
            made = request("arm" if mine[n] else "control", n, ms=float(known[n]), status=status)
            by_arm[made.exposure.arm].append(made)
        own = sample(comparable(by_arm)["arm"], "ms", TokenPrices())
        same(found, own.moments, (0, look))


@pytest.mark.parametrize("apart", [1.0, 1.5])
def test_claims_are_those_of_the_report(apart: float) -> None:
    law, random = LAWS["lognormal, sigma 0.6"], np.random.default_rng(4)
    made = Experiment.parse({"name": "aa", "arms": ARMS, "goal": {"metric": "ms"}})
    values, mine = law.draw(random, (1, 800)), random.random((1, 800)) < 0.5
    values = np.where(mine, values / apart, values)
    above, below = claims_of(
        seen_moments(values, mine, 100, law), seen_moments(values, ~mine, 100, law), made.min_units
    )
    for look in range(8):
        records = [
            request("arm" if mine[0, n] else "control", n, ms=float(values[0, n]))
            for n in range(100 * (look + 1))
        ]
        verdict = report(made, initial_state(0.0), records).verdicts["arm"]
        assert (verdict == "worse") == above[0, look]
        assert (verdict == "better") == below[0, look]
    assert below.any() == (apart > 1)


@pytest.mark.parametrize("slow", [0.02, 0.5])
@pytest.mark.parametrize("each", [1, 5])
def test_quantiles_cross_where_the_guardrail_does(slow: float, each: int) -> None:
    random = np.random.default_rng(5)
    rail = {"metric": "ms", "at_most": 200, "quantile": 0.95}
    made = Experiment.parse({"name": "rail", "arms": ARMS, "guardrails": [rail]})
    late = random.random((60, each)) < slow
    records = [
        request("arm", 10 * unit + n, unit=f"u{unit}", ms=300.0 if late[unit, n] else 100.0)
        for unit in range(60)
        for n in range(each)
    ]
    crossed = crossed_guardrails(made, initial_state(0.0), {"control": [], "arm": records})
    over, count = quantile_over(late.sum(axis=1)[None] * 1.0, np.full((1, 60), float(each)), 0.05)
    assert bool(crossed) == bool(over[0]) == (slow > 0.05)
    assert count[0] == 60


@pytest.mark.parametrize("cell", cells(), ids=lambda cell: cell.name)
def test_few_enough_experiments_claim_anything(cell: Cell) -> None:
    """A short form of `python -m tests.lab.false_claims`: what chance alone would not do."""
    rate = run(cell, 60, seed=1)
    tail = binom.cdf(rate.claims, 60, cell.promise)
    assert (tail if cell.above else 1 - tail + binom.pmf(rate.claims, 60, cell.promise)) > 1e-4


def test_the_usual_test_would_be_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the simulation can fail: 1.96 standard errors at every look."""

    def usual(arm: Any, control: Any, alpha: float, tuned_for: float) -> Any:
        apart, half = arm.mean - control.mean, 1.96 * np.hypot(arm.error, control.error)
        return apart - half, apart + half

    (cell,) = [one for one in cells() if one.name == "lognormal, sigma 1, 50/50"]
    monkeypatch.setattr(false_claims, "difference_bounds", usual)
    rate = run(cell, 100)
    assert rate.kept == "no"


@pytest.mark.parametrize(
    ("claims", "above", "kept"),
    [(3, False, "yes"), (8, False, "cannot be told"), (20, False, "no"), (20, True, "yes")],
)
def test_what_the_table_says(claims: int, above: bool, kept: str) -> None:
    promise = 0.1 if above else 0.05
    assert Rate(Cell("two arms", "x", promise, lambda *_: 0, above), claims, 100).kept == kept
