"""Policies in turns, and going on after a run that was broken off."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

import pytest

from deploy.evaluation.candidates import Candidate, lineup
from deploy.evaluation.evaluate import (
    EvaluatedAnswer,
    Question,
    RunOptions,
    Turn,
    run,
)
from orchestrator.answers.equality import compare
from orchestrator.errors import BatonError, DeadlineExceeded, InvalidRequest, Unsupported

PROBLEMS = [Question(str(number), str(number)) for number in range(6)]
OLD = EvaluatedAnswer("old", correct=True, ms=7.0)


async def same(text: str, problem: Question) -> bool:
    return bool(compare(text, problem.answer))


class Asked(list[tuple[str, str]]):
    """Answers a question by itself, and lists the questions with who was asked."""

    async def __call__(self, question: str, candidate: Candidate) -> EvaluatedAnswer:
        self.append((question, candidate.label))
        return EvaluatedAnswer(question)


def keeping(kept: list[int], **more: Any) -> RunOptions:
    async def keep(at: int, turn: Turn) -> None:
        kept.append(at)

    return RunOptions(keep=keep, **more)


def test_a_contender_with_parameters() -> None:
    one = Candidate.parse("specreason:threshold=5:judge=short")
    assert (one.policy, one.params) == ("specreason", {"threshold": 5, "judge": "short"})
    for text in ("specreason:5", "specreason:short:threshold=5"):
        with pytest.raises(InvalidRequest, match="NAME:KEY=VALUE"):
            Candidate.parse(text)
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


async def test_policies_take_turns_and_the_order_rotates() -> None:
    asked = Asked()
    outcomes = await run(PROBLEMS[:3], lineup(["a", "b"], [None]), asked, same)
    warm, measured = asked[:3], asked[3:]
    assert [question for question, _ in warm] == ["0"] * 3
    assert [question for question, _ in measured] == ["0"] * 3 + ["1"] * 3 + ["2"] * 3
    assert [measured[turn * 3][1] for turn in range(3)] == ["large-only", "a", "b"]
    assert [len(turn) for turn in outcomes] == [3, 3, 3]
    assert all(result.correct for turn in outcomes for result in turn)


@pytest.mark.parametrize(
    ("failure", "passes"),
    [(DeadlineExceeded("no answer within 1 s"), True), (Unsupported("two tokenizers"), False)],
)
async def test_a_failure_is_a_wrong_answer_with_a_reason(failure: BatonError, passes: bool) -> None:
    async def ask(question: str, candidate: Candidate) -> EvaluatedAnswer:
        raise failure

    turns = await run(PROBLEMS, lineup([], [None]), ask, same)
    assert [turn[0].error for turn in turns] == [str(failure)] * 6
    assert [turn[0].transient for turn in turns] == [passes] * 6
    assert not any(turn[0].correct for turn in turns)


async def test_recordings_are_let_go_once_they_are_kept() -> None:
    async def ask(question: str, candidate: Candidate) -> EvaluatedAnswer:
        return EvaluatedAnswer(question, recording=lambda: pytest.fail("made"))

    async def keep(at: int, turn: Turn) -> None:
        kept.extend(one.recording is not None for one in turn)

    kept: list[bool] = []
    turns = await run(PROBLEMS, lineup([], [None]), ask, same, RunOptions(keep=keep))
    assert kept == [True] * 6
    assert [one.recording for (one,) in turns] == [None] * 6


async def test_a_policy_that_does_not_exist_ends_the_run() -> None:
    async def ask(question: str, candidate: Candidate) -> EvaluatedAnswer:
        raise InvalidRequest("threshold: too large", param="policy.threshold")

    with pytest.raises(InvalidRequest):
        await run(PROBLEMS, lineup([], [None]), ask, same)


async def test_what_another_run_knows_is_not_asked_for() -> None:
    candidates, asked, kept = lineup(["a"], [None]), Asked(), list[int]()
    known = {number: [OLD, OLD] for number in (0, 2)}
    turns = await run(PROBLEMS[:4], candidates, asked, same, keeping(kept, known=known))
    assert [turn.count(OLD) for turn in turns] == [2, 0, 2, 0]
    assert [turn[1].correct for turn in turns] == [True] * 4
    assert kept == [1, 3]
    assert Counter(asked) == {  # each once unmeasured first
        ("1", "a"): 2, ("1", "large-only"): 2, ("3", "a"): 1, ("3", "large-only"): 1,
    }  # fmt: skip


@pytest.mark.parametrize("count", [1, 6])
async def test_many_at_once_are_as_many_as_may_be(count: int) -> None:
    candidates, asked, live, most = lineup(["a", "b", "c", "d"], [None]), Asked(), 0, 0

    async def ask(question: str, candidate: Candidate) -> EvaluatedAnswer:
        nonlocal live, most
        live += 1
        most = max(most, live)
        await asyncio.sleep(0.001)
        live -= 1
        return await asked(question, candidate)

    turns = await run(PROBLEMS[:count], candidates, ask, same, RunOptions(concurrency=4))
    assert most == 4
    assert Counter(label for _, label in asked) == dict.fromkeys(
        [one.label for one in candidates], count
    )
    assert [len(turn) for turn in turns] == [5] * count


async def test_many_at_once_are_kept_as_soon_as_they_are_answered() -> None:
    gates = {problem.question: asyncio.Event() for problem in PROBLEMS}
    kept: list[int] = []

    async def ask(question: str, candidate: Candidate) -> EvaluatedAnswer:
        await gates[question].wait()
        return EvaluatedAnswer(f"{question} {candidate.label}")

    candidates = lineup(["a"], [None])
    known = {0: [OLD, OLD]}
    options = keeping(kept, concurrency=8, known=known)
    task = asyncio.create_task(run(PROBLEMS, candidates, ask, same, options))
    for count, number in enumerate("134", 1):
        gates[number].set()
        async with asyncio.timeout(60):
            while len(kept) < count:
                await asyncio.sleep(0.001)
    assert kept == [1, 3, 4]  # 2 may hang: what was answered behind it is not lost with it
    for number in "25":
        gates[number].set()
    turns = await task
    assert sorted(kept) == [1, 2, 3, 4, 5]
    assert turns[0] == [OLD, OLD]
    assert [[one.text for one in turn] for turn in turns[1:]] == [
        [f"{n} large-only", f"{n} a"] for n in range(1, 6)
    ]
