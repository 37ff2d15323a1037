"""Answers compared by value, statistics against known numbers, policies in turns."""

from __future__ import annotations

import asyncio
from fractions import Fraction

import pytest

from orchestrator.errors import DeadlineExceeded, InvalidRequest
from orchestrator.evaluate import (
    Answered,
    Contender,
    Outcome,
    Question,
    extract,
    lineup,
    paired,
    quantile,
    rows,
    run,
    same,
    wilson,
)
from orchestrator.types import Step


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("so 3+4=7.\n\nThe answer is \\boxed{7}.", 7),
        ("\\boxed{1} no, \\boxed{-12}", -12),
        ("\\boxed{\\frac{1}{2}}", Fraction(1, 2)),
        ("\\boxed{-\\dfrac{3}{4}}", Fraction(-3, 4)),
        ("\\boxed{1,234}", 1234),
        ("\\boxed{1{,}234}", 1234),
        ("\\boxed{x = 5}", 5),
        ("it costs $1,234.50 in all", Fraction(2469, 2)),
        ("first 12, then 34", 34),
        ("12 apples", 12),
        ("1/3", Fraction(1, 3)),
        ("it is .5", Fraction(1, 2)),
        ("\N{MINUS SIGN}8", -8),
        ("5.", 5),
        ("between 3 and 4.", 4),
        ("\\boxed{4", 4),
        ("1/0", "1/0"),
        ("blue", "blue"),
        ("", ""),
        ("9" * 2000, "9" * 2000),
    ],
)
def test_extract(text: str, value: Fraction | int | str) -> None:
    assert extract(text) == value


@pytest.mark.parametrize(
    ("text", "answer", "equal"),
    [
        ("\\boxed{0.50}", "1/2", True),
        ("7.0", "7", True),
        ("007", "7", True),
        ("71", "7", False),
        ("", "7", False),
        ("Blue", "blue", True),
        ("blue", "7", False),
    ],
)
def test_same(text: str, answer: str, equal: bool) -> None:
    assert same(text, answer) is equal


def test_wilson_is_the_textbook_interval() -> None:
    assert wilson(8, 10) == pytest.approx((0.4901625, 0.9433178), abs=1e-6)
    assert wilson(0, 10)[0] == 0.0
    assert wilson(10, 10)[1] == pytest.approx(1.0)
    assert wilson(0, 0) == (0.0, 1.0)


def test_the_paired_difference() -> None:
    ours = [True] * 70 + [True] * 12 + [False] * 4 + [False] * 14
    theirs = [True] * 70 + [False] * 12 + [True] * 4 + [False] * 14
    gain, low, high = paired(ours, theirs)
    assert gain == pytest.approx(0.08)
    # by hand: up 13/102, down 5/102, half 1.96 * sqrt((18/102 - (8/102)**2) / 102)
    assert (low, high) == pytest.approx((-0.00166, 0.15852), abs=1e-5)
    assert paired([True] * 50, [True] * 50)[0] == 0.0
    assert paired([], []) == (0.0, -1.0, 1.0)


def test_quantiles() -> None:
    assert quantile([3, 1, 2], 0.5) == 2
    assert quantile([0, 10], 0.95) == pytest.approx(9.5)
    assert quantile([], 0.5) == 0.0


def test_a_contender_with_parameters() -> None:
    one = Contender.parse("specreason:threshold=5:judge=short")
    assert (one.policy, one.params) == ("specreason", {"threshold": 5, "judge": "short"})
    with pytest.raises(InvalidRequest):
        Contender.parse("specreason:5")


def test_the_baseline_always_runs_and_nothing_twice() -> None:
    found = lineup(["specreason", "specreason"], [None])
    assert [one.label for one in found] == ["large-only", "specreason"]
    found = lineup(["large-only:budget=9", "large-only"], [10, 20])
    assert [(one.label, one.budget) for one in found] == [
        ("large-only:budget=9", 9),  # a budget of its own is kept
        ("large-only", 10),
        ("large-only", 20),
    ]


PROBLEMS = [Question(str(number), str(number)) for number in range(6)]
STEPS = (
    Step("small", "a", True, 1, 1.0, 9.0),
    Step("small", "b", False, 1, 1.0, 1.0),
    Step("large", "c", True, 1, 1.0),
    Step("small", "d", True, 1, 1.0, phase="answer"),
)


async def test_policies_take_turns_and_the_order_rotates() -> None:
    asked: list[tuple[str, str]] = []

    async def ask(question: str, contender: Contender) -> Answered:
        asked.append((question, contender.label))
        return Answered(question)

    contenders = lineup(["a", "b"], [None])
    outcomes = await run(PROBLEMS[:3], contenders, ask)
    warm, measured = asked[:3], asked[3:]
    assert [question for question, _ in warm] == ["0"] * 3
    assert [question for question, _ in measured] == ["0"] * 3 + ["1"] * 3 + ["2"] * 3
    assert [measured[turn * 3][1] for turn in range(3)] == ["large-only", "a", "b"]
    assert [len(own) for own in outcomes] == [3, 3, 3]
    assert all(outcome.correct for own in outcomes for outcome in own)


async def test_rows() -> None:
    async def ask(question: str, contender: Contender) -> Answered:
        slow = contender.label == "large-only"
        await asyncio.sleep(0.02 if slow else 0.005)
        text = question if slow or int(question) % 2 else "100"
        return Answered(text, 3, 4, 5, STEPS)

    contenders = lineup(["specreason"], [None])
    outcomes = await run(PROBLEMS, contenders, ask)
    base, ours = rows(contenders, outcomes, speculation="vanilla", transport="in-process")
    assert (base["policy"], base["accuracy"], base["speedup"]) == ("large-only", 1.0, 1.0)
    assert (ours["n"], ours["accuracy"], ours["difference"]) == (6, 0.5, -0.5)
    spent = [sum(outcome.ms for outcome in own) for own in outcomes]
    assert ours["speedup"] == pytest.approx(spent[0] / spent[1])
    assert (ours["small_tokens"], ours["large_tokens"], ours["output_tokens"]) == (3, 4, 5)
    assert (ours["accepted_steps"], ours["steps"]) == (1, 2)
    assert (ours["budget"], ours["speculation"]) == (None, "vanilla")
    assert ours["p50_ms"] >= 5


def test_a_budget_of_ones_own_is_compared_with_the_usual_baseline() -> None:
    contenders = lineup(["specreason:budget=50", "large-only"], [None])
    assert [one.budget for one in contenders] == [50, None]
    outcomes = [[Outcome(True, ms, Answered("1"))] for ms in (1.0, 4.0)]
    ours, base = rows(contenders, outcomes, speculation="vanilla", transport="in-process")
    assert (ours["speedup"], base["speedup"]) == (4.0, 1.0)


async def test_a_failure_is_a_wrong_answer_with_a_reason() -> None:
    async def ask(question: str, contender: Contender) -> Answered:
        raise DeadlineExceeded("no answer within 1 s")

    contenders = lineup([], [None])
    outcomes = await run(PROBLEMS, contenders, ask)
    (row,) = rows(contenders, outcomes, speculation="vanilla", transport="http")
    assert (row["errors"], row["accuracy"]) == (6, 0.0)


async def test_a_policy_that_does_not_exist_ends_the_run() -> None:
    async def ask(question: str, contender: Contender) -> Answered:
        raise InvalidRequest("threshold: too large", param="policy.threshold")

    with pytest.raises(InvalidRequest):
        await run(PROBLEMS, lineup([], [None]), ask)


async def test_many_at_once() -> None:
    live = most = 0

    async def ask(question: str, contender: Contender) -> Answered:
        nonlocal live, most
        live += 1
        most = max(most, live)
        await asyncio.sleep(0.001)
        live -= 1
        return Answered(question)

    outcomes = await run(PROBLEMS, lineup(["a"], [None]), ask, concurrency=4)
    assert most == 4
    assert [len(own) for own in outcomes] == [6, 6]
