"""The shipped dialogues through the real loop: every decision is the recorded one."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deploy.evaluation.candidates import lineup
from deploy.evaluation.evaluate import EvaluatedAnswer, EvaluationResult, Question
from deploy.evaluation.evaluation_log import EvaluationLog
from deploy.evaluation.recorded_answers import answered_calls
from deploy.lab.call_costs import load_costs
from deploy.lab.reenact import clock, rows
from deploy.lab.reenact.dialogues import (
    SHIPPED,
    Answers,
    CallMissing,
    Dialogue,
    recorded,
    shipped,
)
from orchestrator.errors import ConfigError
from orchestrator.loop.solve import solve

POLICIES = ("large-only", "small-only", "specreason", "learned-gate", "bild")


COSTS = load_costs("measured-1.5b-32b-h100")


def test_five_policies_answer_the_same_questions() -> None:
    assert Counter(one.policy for one in shipped()) == dict.fromkeys(POLICIES, 48)
    assert len({one.question for one in shipped()}) == 48
    assert SHIPPED.stat().st_size < 400_000


async def calls(one: Dialogue, answers: Answers) -> list[tuple[Any, Any]]:
    """The loop's calls with their answers."""
    pair = rows.virtual_pair(COSTS, {one.recording.request.request_id: answers})
    events = [event async for event in solve(one.build_policy(), one.request(), pair)]
    return [(call.action, call.answer) for call in answered_calls(events)]


@pytest.mark.parametrize("policy", POLICIES)
def test_every_call_is_the_recorded_one(policy: str) -> None:
    async def main() -> None:
        for one in (one for one in shipped() if one.policy == policy):
            recorded = answered_calls(one.recording.events)
            expected = [(call.action, call.answer) for call in recorded]
            assert await calls(one, Answers(one.recording)) == expected

    clock.run(main())


def test_a_call_that_is_not_on_record_is_named() -> None:
    """Of a policy with another threshold, and of one that asks twice."""
    one = next(one for one in shipped() if one.policy == "bild")
    request = one.recording.request
    other = replace(request, parameters={**request.parameters, "fallback": 0.95})
    other_policy = replace(one, recording=replace(one.recording, request=other))
    with pytest.raises(CallMissing, match=r"gsm_symbolic-0: bild made a call .* small, after"):
        clock.run(calls(other_policy, Answers(one.recording)))
    answers = Answers(one.recording)
    clock.run(calls(one, answers))
    with pytest.raises(CallMissing):
        clock.run(calls(one, answers))


def test_recordings_of_an_evaluation(tmp_path: Path) -> None:
    """The questions that every policy answered, in their order; the small one failed at one."""
    settings = {"speculation": "vanilla", "transport": "in-process"}
    plain, small = (
        [one for one in shipped() if one.policy == name][:3]
        for name in ("large-only", "small-only")
    )
    log = EvaluationLog(
        tmp_path / "rows.jsonl", settings, lineup(["small-only"], [None]), recordings=True
    )
    problems = [Question(str(number), "1") for number in range(3)]
    log.resume(problems)
    for number, problem in enumerate(problems):
        turn = [
            EvaluationResult(True, 9.0, EvaluatedAnswer("1", recording=one[number].recording))
            for one in (plain, small)
        ]
        if number == 1:
            turn[1] = EvaluationResult(False, 9.0, EvaluatedAnswer(""), "the worker is gone")
        log.add(number, problem, turn)
    log.close()
    found = recorded(tmp_path)
    assert [(one.policy, one.question) for one in found] == [
        ("large-only", 0), ("large-only", 2), ("small-only", 0), ("small-only", 2),
    ]  # fmt: skip
    assert found[1].recording == plain[2].recording
    rows_of = tmp_path / "rows.jsonl"
    text = rows_of.read_text()
    for old, new, said in (
        ('"speculation": "vanilla"', '"speculation": "chain"', "recorded with 'chain'"),
        ('"policy": "small-only"', '"policy": "plan"', None),  # of an earlier version
        ('"recording"', '"kept"', "no question that every policy answered"),
    ):
        rows_of.write_text(text.replace(old, new))
        if said is None:
            assert [one.question for one in recorded(tmp_path)] == [0, 1, 2]
        else:
            with pytest.raises(ConfigError, match=said):
                recorded(tmp_path)
