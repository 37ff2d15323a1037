"""Events joined by request, and the metrics of a request."""

from __future__ import annotations

import itertools
import json
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import pytest

from orchestrator.experiments.metrics import METRICS, paired_values, sample, values
from orchestrator.experiments.outcome_log import (
    Exposure,
    Outcome,
    OutcomeLog,
    RequestRecord,
    Reward,
    comparable,
    served_by,
)
from orchestrator.types import TokenPrices
from tests.orchestrator.experiments.records import request

EXPOSED = Exposure(trace_id="t", at=1.0, arm="a", unit="u")
ENDED = Outcome(trace_id="t", at=2.0, arm="a", ms=90.0, large_tokens=4, small_tokens=12)
SHADOW = Outcome(trace_id="t", at=3.0, arm="s", shadow=True, ms=50.0, agreement=True)
JUDGED = Reward(trace_id="t", at=4.0, reward=0.5)


def dump(event: Exposure | Outcome | Reward) -> bytes:
    """An event as the outbox writes it."""
    return json.dumps(event.model_dump(), separators=(",", ":")).encode()


@pytest.mark.parametrize(
    "line",
    [b"", b"\xff", b"{}", b"[]", b'{"kind": "exposure"}', b'{"kind": "reward", "reward": 7}'],
)
def test_garbage_in_the_store_is_passed_over(line: bytes) -> None:
    outcomes = OutcomeLog()
    outcomes.add(line, 1.0)
    outcomes.add(dump(EXPOSED), 1.0)
    assert [one.exposure for one in outcomes.requests] == [EXPOSED]


@pytest.mark.parametrize("order", itertools.permutations([EXPOSED, ENDED, SHADOW, JUDGED]))
def test_events_come_in_any_order_and_more_than_once(
    order: tuple[Exposure | Outcome | Reward, ...],
) -> None:
    outcomes = OutcomeLog()
    for event in (*order, *order):
        outcomes.add(dump(event), event.at)
    (found,) = outcomes.requests
    assert (found.exposure, found.outcome, found.reward) == (EXPOSED, ENDED, 0.5)
    assert found.shadows == {"s": SHADOW}


def test_the_first_reward_of_each_key_counts() -> None:
    """Two replicas may take a reward each of one key; the mean is over keys."""
    outcomes = OutcomeLog()
    for event in (
        JUDGED.model_copy(update={"key": "one", "reward": 1.0}),  # before its exposure
        EXPOSED,
        JUDGED.model_copy(update={"key": "one", "reward": 0.0}),
    ):
        outcomes.add(dump(event), event.at)
    (found,) = outcomes.requests
    assert found.reward == 1.0
    for reward in (0.5, 0.0):
        outcomes.add(dump(JUDGED.model_copy(update={"key": "boss", "reward": reward})), 1.0)
    assert found.rewards == {"one": 1.0, "boss": 0.5}
    assert found.reward == 0.75


def test_rewards_count_of_those_who_are_trusted_to_judge() -> None:
    outcomes = OutcomeLog(lambda key: key == "boss")
    for key, reward in (("one", 0.0), (None, 0.0), ("boss", 1.0)):
        outcomes.add(dump(JUDGED.model_copy(update={"key": key, "reward": reward})), 1.0)
    outcomes.add(dump(EXPOSED), 1.0)
    assert [one.rewards for one in outcomes.requests] == [{"boss": 1.0}]


def test_to_forget_takes_no_longer_the_more_are_kept() -> None:
    passed = 0

    class Counted(OrderedDict[str, RequestRecord]):
        def __iter__(self) -> Iterator[str]:
            nonlocal passed
            for key in super().__iter__():
                passed += 1
                yield key

    outcomes = OutcomeLog()
    outcomes._requests = Counted()
    for n in range(300):
        outcomes.add_event(EXPOSED.model_copy(update={"trace_id": f"t{n}"}))
        outcomes.add_event(JUDGED.model_copy(update={"trace_id": f"unknown{n}"}))
        outcomes.forget(100)
    assert passed == 0
    assert (outcomes.count, len(outcomes._early)) == (100, 100)
    assert [one.exposure.trace_id for one in outcomes.requests] == [
        f"t{n}" for n in range(200, 300)
    ]


def test_each_metric_of_a_request() -> None:
    one = request(
        "a",
        1,
        ms=250.0,
        first_step_ms=40.0,
        small_tokens=30,
        large_tokens=10,
        prompt_tokens=100,
        accepted=0.75,
        reward=1.0,
    )
    prices = TokenPrices(small=1.0, large=10.0, prompt=0.5)
    found = {name: values([one], name, prices) for name in METRICS}
    told = {name: float(own.above[0] / own.below[0]) for name, own in found.items() if len(own.at)}
    assert told == {
        "ms": 250.0,
        "first_step_ms": 40.0,
        "small_tokens": 30.0,
        "large_tokens": 10.0,
        "large_share": 0.25,
        "cost": pytest.approx((30 + 100 + 50) / 1e6),
        "accepted": 0.75,
        "reward": 1.0,
        "error": 0.0,
        "cancelled": 0.0,
    }


def test_what_failed_or_was_cancelled_says_little() -> None:
    def metrics(status: str, **more: Any) -> set[str]:
        one = request("a", 1, status=status, **more)
        prices = TokenPrices(large=1.0)
        return {name for name in METRICS if len(values([one], name, prices).at)}

    assert metrics("failed") == {"ms", "first_step_ms", "error", "cost", "cancelled"}
    assert metrics("failed", refused=True) == {"cost", "cancelled"}
    assert metrics("cancelled") == {"ms", "first_step_ms", "cost", "cancelled"}


@pytest.mark.parametrize(
    ("status", "waited", "shown"), [("cancelled", 700.0, 60.0), ("failed", 600_000.0, 10.0)]
)
def test_requests_without_an_answer_make_no_arm_look_fast(
    status: str, waited: float, shown: float
) -> None:
    """They have the worst of all times; one that can never be answered has none."""
    steady = [request("a", n, ms=1000.0, first_step_ms=50.0) for n in range(100)]
    hanging = [request("b", 100 + n, ms=900.0, first_step_ms=50.0) for n in range(85)]
    hanging += [request("b", 200 + n, ms=waited, status=status) for n in range(14)]
    hanging += [request("b", 300, ms=30_000.0, status=status, first_step_ms=shown)]
    hanging += [request("b", 400 + n, ms=9.0, status="failed", refused=True) for n in range(50)]
    seen = served_by(["a", "b", "c"], [*steady, *hanging, request("gone", 1)])
    found = comparable(seen)
    times = {arm: sample(own, "ms", TokenPrices()).mean for arm, own in found.items()}
    assert times == {"a": 1000.0, "c": 0.0, "b": (85 * 900 + 15 * max(waited, 30_000.0)) / 100}
    first = sample(found["b"], "first_step_ms", TokenPrices()).mean
    # Some had no step until their end: theirs came later than any that was seen.
    assert first == (85 * 50 + 14 * waited + shown) / 100
    assert [one.outcome.ms for one in seen["b"][85:87] if one.outcome] == [waited, waited]


def test_the_share_of_large_tokens_is_of_all_tokens() -> None:
    made = [
        request("a", 1, small_tokens=90, large_tokens=10),
        request("a", 2, small_tokens=0, large_tokens=10),
    ]
    assert sample(made, "large_share", TokenPrices()).mean == pytest.approx(20 / 110)


def test_a_unit_is_counted_once() -> None:
    made = [request("a", n, unit=f"u{n % 3}", ms=float(n)) for n in range(9)]
    found = sample(made, "ms", TokenPrices())
    assert (found.count, found.mean) == (3, 4.0)


def test_pairs_compare_a_shadow_with_what_was_served() -> None:
    made = [request("a", n, ms=100.0 + n, large_tokens=20) for n in range(4)]
    for n, one in enumerate(made[:3]):
        one.shadows["s"] = Outcome(
            trace_id=one.exposure.trace_id,
            at=0.0,
            arm="s",
            shadow=True,
            ms=60.0,
            small_tokens=10,
            large_tokens=0,
            agreement=n != 1,
        )
    prices = TokenPrices()
    assert paired_values(made, "s", "ms", prices).above.tolist() == [-40, -41, -42]
    for shadow, metric, mean in (
        ("s", "large_share", -2 / 3),
        ("s", "agreement", 2 / 3),
        ("s", "reward", 0),
        ("t", "ms", 0),
    ):
        found = paired_values(made, shadow, metric, prices).sample(None)
        assert found.mean == pytest.approx(mean)
