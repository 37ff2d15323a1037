"""Policies in turns, and going on after a run that was broken off."""

from __future__ import annotations

import asyncio
import json
from collections import Counter

import pytest

from deploy.evaluation.candidates import Candidate, lineup
from deploy.evaluation.evaluate import (
    EvaluatedAnswer,
    EvaluationResult,
    Problem,
    Question,
    RunOptions,
    Turn,
    run,
)
from orchestrator.answers.equality import compare
from orchestrator.errors import DeadlineExceeded, InvalidRequest


async def same(text: str, problem: Problem) -> bool:
    return bool(compare(text, problem.answer))


def test_a_contender_with_parameters() -> None:
    one = Candidate.parse("specreason:threshold=5:judge=short")
    assert (one.policy, one.params) == ("specreason", {"threshold": 5, "judge": "short"})
    for text in ("specreason:5", "specreason:short:threshold=5"):
        with pytest.raises(InvalidRequest, match="NAME:KEY=VALUE"):
            Candidate.parse(text)


def test_colons_inside_a_value_are_its_own() -> None:
    question = {"instruction": "Good? Say: 0=no", "lead_in": "Score:"}
    text = f"specreason:judge={json.dumps(question)}:threshold=5:answer_by=small"
    assert Candidate.parse(text).params == {"judge": question, "threshold": 5, "answer_by": "small"}


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


async def test_policies_take_turns_and_the_order_rotates() -> None:
    asked: list[tuple[str, str]] = []

    async def ask(question: str, candidate: Candidate) -> EvaluatedAnswer:
        asked.append((question, candidate.label))
        return EvaluatedAnswer(question)

    candidates = lineup(["a", "b"], [None])
    outcomes = await run(PROBLEMS[:3], candidates, ask, same)
    warm, measured = asked[:3], asked[3:]
    assert [question for question, _ in warm] == ["0"] * 3
    assert [question for question, _ in measured] == ["0"] * 3 + ["1"] * 3 + ["2"] * 3
    assert [measured[turn * 3][1] for turn in range(3)] == ["large-only", "a", "b"]
    assert [len(turn) for turn in outcomes] == [3, 3, 3]
    assert all(result.correct for turn in outcomes for result in turn)


async def test_a_run_goes_on_where_another_stopped() -> None:
    asked: list[str] = []
    kept: list[int] = []

    async def ask(question: str, candidate: Candidate) -> EvaluatedAnswer:
        asked.append(question)
        return EvaluatedAnswer(question)

    candidates = lineup(["a"], [None])
    done: list[Turn] = [[EvaluationResult(False, 1.0, EvaluatedAnswer("?"))] * 2] * 2
    turns = await run(
        PROBLEMS[:4],
        candidates,
        ask,
        same,
        RunOptions(done=done, keep=lambda index, _: kept.append(index)),
    )
    assert kept == [2, 3]
    assert asked == ["2"] * 4 + ["3"] * 2  # the first two unmeasured
    assert turns[:2] == done
    assert [turn[0].correct for turn in turns] == [False, False, True, True]
    asked.clear()
    assert await run(PROBLEMS[:2], candidates, ask, same, RunOptions(done=turns)) == done
    assert asked == []


async def test_a_failure_is_a_wrong_answer_with_a_reason() -> None:
    async def ask(question: str, candidate: Candidate) -> EvaluatedAnswer:
        raise DeadlineExceeded("no answer within 1 s")

    candidates = lineup([], [None])
    turns = await run(PROBLEMS, candidates, ask, same)
    assert [turn[0].error for turn in turns] == ["no answer within 1 s"] * 6
    assert not any(turn[0].correct for turn in turns)


async def test_a_policy_that_does_not_exist_ends_the_run() -> None:
    async def ask(question: str, candidate: Candidate) -> EvaluatedAnswer:
        raise InvalidRequest("threshold: too large", param="policy.threshold")

    with pytest.raises(InvalidRequest):
        await run(PROBLEMS, lineup([], [None]), ask, same)


async def test_many_at_once() -> None:
    live = most = 0

    async def ask(question: str, candidate: Candidate) -> EvaluatedAnswer:
        nonlocal live, most
        live += 1
        most = max(most, live)
        await asyncio.sleep(0.001)
        live -= 1
        return EvaluatedAnswer(question)

    outcomes = await run(PROBLEMS, lineup(["a"], [None]), ask, same, RunOptions(concurrency=4))
    assert most == 4
    assert [len(turn) for turn in outcomes] == [2] * 6


async def test_what_another_run_knows_is_not_asked_for() -> None:
    candidates, asked = lineup(["a"], [None]), list[str]()

    async def ask(question: str, candidate: Candidate) -> EvaluatedAnswer:
        asked.append(candidate.label)
        return EvaluatedAnswer(question)

    old = EvaluationResult(True, 7.0, EvaluatedAnswer("old"))
    known = {(number, candidates[0]): old for number in range(4)}
    turns = await run(PROBLEMS, candidates, ask, same, RunOptions(concurrency=4, known=known))
    assert Counter(asked) == {"large-only": 2, "a": 6}
    assert [turn[0] == old for turn in turns] == [True] * 4 + [False] * 2


async def test_one_at_a_time_all_answers_to_a_problem_are_known_or_none() -> None:
    candidates, asked = lineup(["a"], [None]), list[tuple[str, str]]()

    async def ask(question: str, candidate: Candidate) -> EvaluatedAnswer:
        asked.append((question, candidate.label))
        return EvaluatedAnswer(question)

    old = EvaluationResult(True, 7.0, EvaluatedAnswer("old"))
    known = {(number, one): old for number in (0, 2, 3) for one in candidates}
    del known[3, candidates[0]]
    kept: list[int] = []
    turns = await run(
        PROBLEMS[:4],
        candidates,
        ask,
        same,
        RunOptions(known=known, keep=lambda at, _: kept.append(at)),
    )
    assert [turn.count(old) for turn in turns] == [2, 0, 2, 0]
    assert kept == [0, 1, 2, 3]
    one, three = PROBLEMS[1].question, PROBLEMS[3].question
    assert Counter(asked) == {  # each once unmeasured first
        (one, "a"): 2, (one, "large-only"): 2, (three, "a"): 1, (three, "large-only"): 1,
    }  # fmt: skip


async def test_many_at_once_are_kept_as_soon_as_they_are_answered() -> None:
    gates = {problem.question: asyncio.Event() for problem in PROBLEMS}
    kept: list[int] = []

    async def ask(question: str, candidate: Candidate) -> EvaluatedAnswer:
        await gates[question].wait()
        return EvaluatedAnswer(f"{question} {candidate.label}")

    async def until(n: int) -> None:
        async with asyncio.timeout(60):
            while len(kept) < n:
                await asyncio.sleep(0.001)

    done: list[Turn] = [[EvaluationResult(True, 1.0, EvaluatedAnswer("?"))] * 2]
    task = asyncio.create_task(
        run(
            PROBLEMS,
            lineup(["a"], [None]),
            ask,
            same,
            RunOptions(concurrency=8, done=done, keep=lambda index, _: kept.append(index)),
        )
    )
    for count, number in enumerate("134", 1):
        gates[number].set()
        await until(count)
    assert kept == [1, 3, 4]  # 2 may hang: what was answered behind it is not lost with it
    for number in "25":
        gates[number].set()
    turns = await task
    assert sorted(kept) == [1, 2, 3, 4, 5]
    assert turns[0] == done[0]
    assert [[one.answer.text for one in turn] for turn in turns[1:]] == [
        [f"{n} large-only", f"{n} a"] for n in range(1, 6)
    ]
