"""The readout: the verdict that the data deserve, in the order of the reasoning."""

from __future__ import annotations

import json
from dataclasses import astuple
from typing import Any

import numpy as np
import pytest

from orchestrator.experiments.documents import Experiment, StoppedArm, initial_state
from orchestrator.experiments.metrics import METRICS
from orchestrator.experiments.outcome_log import Outcome, RequestRecord
from orchestrator.experiments.report import ExperimentReport, report
from tests.orchestrator.experiments.records import latencies, request, with_times


def experiment(**more: Any) -> Experiment:
    arms = [{"name": "large", "policy": "large-only"}, {"name": "shared", "policy": "specreason"}]
    return Experiment.parse({"name": "trial", "arms": arms, "goal": {"metric": "ms"}, **more})


def read(made: Experiment, requests: list[RequestRecord], **state: Any) -> ExperimentReport:
    return report(made, initial_state(0.0).model_copy(update=state), requests)


def times(count: int, seed: int, *, faster: float = 1.0) -> list[RequestRecord]:
    return with_times(
        {"large": latencies(count, 140, seed), "shared": latencies(count, 140 / faster, seed + 1)}
    )


def test_a_difference_that_is_there_is_told() -> None:
    found = read(experiment(), times(500, 1, faster=1.6))
    assert found.verdicts == {"shared": "better"}
    assert "shared is better than large" in found.sentence
    (one,) = [c for c in found.comparisons if c.metric == "ms"]
    assert one.always_valid.low < one.always_valid.estimate < one.always_valid.high < 0
    usual = found.arms["large"]["ms"].mean
    assert one.always_valid.estimate / usual == pytest.approx(1 / 1.6 - 1, abs=0.06)
    worse = read(experiment(control="shared"), times(500, 1, faster=1.6))
    assert worse.verdicts == {"large": "worse"}


def test_too_early_says_how_many_more() -> None:
    found = read(experiment(), times(120, 3))
    assert found.verdicts == {"shared": "too_early"}
    assert "too early" in found.sentence
    (one,) = [c for c in found.comparisons if c.metric == "ms"]
    assert one.needed is not None
    assert one.needed.difference == pytest.approx(0.05 * found.arms["large"]["ms"].mean)
    assert str(one.needed.always_valid) in found.sentence


def test_two_shares_differ_by_at_most_one() -> None:
    failed = [request("large", n, status="failed") for n in range(16)]
    found = read(experiment(), [*failed, *(request("shared", n) for n in range(16, 32))])
    ends = [
        (one.always_valid.low, one.always_valid.high)
        for one in found.comparisons
        if METRICS[one.metric].bounded
    ]
    assert min(low for low, _ in ends) == -1
    assert all(-1 <= low <= high <= 1 for low, high in ends)


def test_the_readouts_over_time_are_those_of_each_time() -> None:
    made = times(500, 1, faster=1.6)
    arms = [
        *experiment().model_dump(include={"arms"}, exclude_defaults=True)["arms"],
        {"name": "ghost", "policy": "bild", "shadow": True},
    ]
    for one in made:
        assert one.outcome is not None
        one.shadows["ghost"] = one.outcome.model_copy(update={"shadow": True})
    whole = experiment(arms=arms)
    found = read(whole, made)
    assert [one["at"] for one in found.readouts] == sorted({one["at"] for one in found.readouts})
    assert 30 < len(found.readouts) <= 50
    for at in (10, -1):  # the other arm's requests come last
        until = [one for one in made if one.exposure.at <= found.readouts[at]["at"] + 1e-3]
        then = [one for one in read(whole, until).comparisons if one.metric == "ms"]
        assert found.readouts[at]["intervals"] == {
            one.arm: pytest.approx(astuple(one.always_valid)) for one in then
        }
    assert found.readouts[-1]["intervals"].keys() == {"shared", "ghost"}
    assert read(experiment(), []).readouts == []


def test_a_handful_of_units_concludes_nothing_however_far_apart() -> None:
    found = read(experiment(), times(99, 1, faster=10))
    assert found.verdicts == {"shared": "too_early"}
    assert "100 units" in found.sentence
    assert read(experiment(), []).verdicts == {"shared": "too_early"}


def test_arms_that_are_alike_are_said_to_be_in_the_end() -> None:
    found = read(experiment(goal={"metric": "ms", "detect": 0.2}), times(2000, 5))
    assert found.verdicts == {"shared": "no_difference"}


def test_the_sample_ratio_goes_first() -> None:
    made = times(1000, 1, faster=1.6)
    lost = [one for n, one in enumerate(made) if one.exposure.arm == "large" or n % 5]
    found = read(experiment(), lost)
    assert found.sample_ratio is not None
    assert not found.sample_ratio.ok
    assert found.verdicts == {"shared": "sample_ratio_mismatch"}
    assert found.sentence.startswith("Do not trust")


def rewarded(count: int, large: float, shared: float, seed: int = 9) -> list[RequestRecord]:
    random = np.random.default_rng(seed)
    made = times(count, 1, faster=1.6)
    for one in made:
        right = large if one.exposure.arm == "large" else shared
        one.rewards[None] = float(random.random() < right)
    return made


BOUNDED = {"metric": "ms", "within": [{"metric": "reward", "by": 0.05}]}


@pytest.mark.parametrize(
    ("count", "shared", "verdict"),
    [(3000, 0.95, "better"), (3000, 0.70, "breaks_bounds"), (120, 0.95, "too_early")],
)
def test_better_means_within_the_bounds(count: int, shared: float, verdict: str) -> None:
    found = read(experiment(goal=BOUNDED), rewarded(count, 0.95, shared))
    assert found.verdicts == {"shared": verdict}
    (bound,) = found.bounds
    assert (bound.surely, bound.broken) == (verdict == "better", verdict == "breaks_bounds")


def test_more_arms_share_the_rate_of_false_claims() -> None:
    arms = [{"name": name, "policy": "x"} for name in ("large", "shared", "third")]
    made = times(500, 1)
    third = [
        request("third", 5000 + n, ms=float(ms)) for n, ms in enumerate(latencies(500, 140, 8))
    ]
    two, three = read(experiment(), made), read(experiment(arms=arms), made + third)
    widths = [
        found.comparisons[0].always_valid.high - found.comparisons[0].always_valid.low
        for found in (two, three)
    ]
    assert widths[1] > 1.05 * widths[0]
    assert three.verdicts["third"] == "too_early"


def test_a_stopped_arm_is_compared_until_it_stopped() -> None:
    slow = with_times({"large": [100.0 + n % 7 for n in range(150)]}, at=1.0)
    slow += [request("shared", 1000 + n, ms=300.0 + n % 7, at=1.0) for n in range(150)]
    later = [request("large", 5000 + n, ms=900.0 + n % 7, at=50.0) for n in range(2000)]
    stopped = {"shared": StoppedArm(at=10.0, why="p95 of ms at most 200")}
    found = read(experiment(), slow + later, stopped=stopped)
    assert found.sample_ratio is not None
    assert found.sample_ratio.ok
    assert found.verdicts == {"shared": "worse"}
    assert "was stopped (p95 of ms at most 200)" in found.sentence


def test_shadows_are_compared_pair_by_pair() -> None:
    arms = [
        {"name": "large", "policy": "large-only"},
        {"name": "ghost", "policy": "specreason", "shadow": True},
    ]
    made = with_times({"large": latencies(200, 140, 1)})
    for n, one in enumerate(made):
        assert one.outcome is not None
        assert one.outcome.ms is not None
        one.shadows["ghost"] = Outcome(
            trace_id=one.exposure.trace_id,
            at=0.0,
            arm="ghost",
            shadow=True,
            ms=one.outcome.ms - 20 + n % 3,
            agreement=n % 10 > 0,
        )
    found = read(experiment(arms=arms), made)
    told = {one.metric: one for one in found.comparisons}
    assert all(one.paired for one in told.values())
    assert told["ms"].always_valid.high < -18  # the noise that both share is gone
    assert told["agreement"].always_valid.estimate == pytest.approx(0.9)
    assert told["agreement"].always_valid.low < 0.9 < told["agreement"].always_valid.high
    assert found.verdicts == {}


def test_a_report_is_json_also_when_nothing_is_known() -> None:
    for made in ([], times(1, 1), times(50, 1)):
        told = json.loads(json.dumps(read(experiment(), made).json(), allow_nan=False))
        assert told["sentence"].endswith(".")
    assert told["comparisons"][0]["always_valid"]["low"] < 0


def test_reports_of_aa_experiments_seldom_claim_anything() -> None:
    """The whole readout, looked at three times; 0.2 of 10 experiments claim wrongly on average."""
    claimed = 0
    for seed in range(10):
        made = times(300, 1000 + 2 * seed)
        turns = [one for pair in zip(made[:300], made[300:], strict=True) for one in pair]
        verdicts = {
            read(experiment(), turns[:count]).verdicts["shared"] for count in range(200, 601, 200)
        }
        claimed += bool(verdicts & {"better", "worse"})
    assert claimed <= 1


def test_where_requests_are_forgotten_nothing_is_claimed() -> None:
    arms = [
        *experiment().model_dump(include={"arms"}, exclude_defaults=True)["arms"],
        {"name": "ghost", "policy": "bild", "shadow": True},
    ]
    made = experiment(arms=arms, goal=BOUNDED)
    requests = rewarded(500, 0.95, 0.5)
    for one in requests:
        assert one.outcome is not None
        one.shadows["ghost"] = one.outcome.model_copy(update={"shadow": True, "agreement": True})
    stopped = {"shared": StoppedArm(at=1e9, why="it was slow")}
    state = initial_state(0.0).model_copy(update={"stopped": stopped})
    found = report(made, state, requests, since=86_400.0)
    assert found.since == 86_400.0
    assert found.verdicts == {"shared": "forgotten"}
    assert found.sample_ratio is None
    assert "before 1970-01-02 00:00 UTC are no longer kept" in found.sentence
    assert found.sentence.endswith("shared was stopped (it was slow).")
    intervals = [one.always_valid for one in (*found.comparisons, *found.bounds)]
    assert len(intervals) > 5
    assert all(np.isinf(one.low) and np.isinf(one.high) for one in intervals)
    assert not any(one.surely or one.broken for one in found.bounds)
    assert found.readouts == []
    assert found.arms["shared"]["ms"].units == 500
