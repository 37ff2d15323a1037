"""The shipped dialogues through the real loop: every decision is the recorded one."""

from __future__ import annotations

import lzma
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from deploy.evaluation.candidates import build_policy
from deploy.evaluation.recording import CallMissing, dumps
from deploy.lab.call_costs import load_costs
from deploy.lab.reenact import clock, dialogues, rows
from deploy.lab.reenact.dialogues import (
    SHIPPED,
    Answers,
    Dialogue,
    shipped,
)
from orchestrator.errors import ConfigError
from orchestrator.loop.events import RequestCompleted
from orchestrator.loop.policy import Policy
from orchestrator.loop.solve import solve
from orchestrator.types import Step
from orchestrator.worker import Delta

POLICIES = ("large-only", "small-only", "specreason", "learned-gate", "bild")


COSTS = load_costs("measured-1.5b-32b-h100")


def test_five_policies_answer_the_same_questions() -> None:
    assert Counter(one.policy for one in shipped()) == dict.fromkeys(POLICIES, 48)
    assert len({one.question for one in shipped()}) == 48
    assert SHIPPED.stat().st_size < 400_000


async def play(one: Dialogue, answers: Answers, policy: Policy) -> tuple[Step, ...]:
    """Return the steps of a dialogue through the loop."""
    pair = rows.virtual_pair(COSTS, {one.question: answers})
    *_, ended = [event async for event in solve(policy, one.request(), pair)]
    assert isinstance(ended, RequestCompleted)
    return tuple(replace(step, ms=0.0) for step in ended.steps)


@pytest.mark.parametrize("policy", POLICIES)
def test_every_call_is_on_record_and_every_step_the_recorded_one(policy: str) -> None:
    async def main() -> None:
        for one in (one for one in shipped() if one.policy == policy):
            answers = Answers(one.recording)
            steps = tuple(replace(step, ms=0.0) for step in one.recording.steps)
            assert await play(one, answers, one.build_policy()) == steps
            assert not any(answers._known.values())

    clock.run(main())


def test_a_text_that_was_broken_off_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = next(one for one in shipped() if one.policy == "bild").recording
    broken = replace(one.calls[-1], answer=Delta("So ", (1,), (-0.1,)))
    file = tmp_path / "dialogues.jsonl.xz"
    monkeypatch.setattr(dialogues, "SHIPPED", file)
    for calls, whole in ((one.calls, True), ((*one.calls, broken), False)):
        file.write_bytes(lzma.compress(dumps(replace(one, calls=calls)).encode()))
        if whole:
            assert len(shipped.__wrapped__()) == 1
        else:
            with pytest.raises(ConfigError, match="under bild has a text that was broken off"):
                shipped.__wrapped__()


def test_a_call_that_is_not_on_record_is_named() -> None:
    """One policy has another threshold, one asks twice."""
    one = next(one for one in shipped() if one.policy == "bild")
    other = build_policy("bild", {**one.recording.parameters, "fallback": 0.95})
    with pytest.raises(CallMissing, match=r"gsm_symbolic-0: bild made a call .* small, after"):
        clock.run(play(one, Answers(one.recording), other))
    answers = Answers(one.recording)
    clock.run(play(one, answers, one.build_policy()))
    with pytest.raises(CallMissing):
        clock.run(play(one, answers, one.build_policy()))
