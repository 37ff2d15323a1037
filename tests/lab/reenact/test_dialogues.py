"""The shipped dialogues through the real loop: every decision is the recorded one."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from deploy.evaluation.recording import Recording
from deploy.lab.call_costs import load_costs
from deploy.lab.reenact import clock, rows
from deploy.lab.reenact.dialogues import (
    SHIPPED,
    Answers,
    CallMissing,
    Dialogue,
    shipped,
)
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
    return [
        (call.action, call.answer)
        for call in Recording(one.recording.request, tuple(events)).calls()
    ]


@pytest.mark.parametrize("policy", POLICIES)
def test_every_call_is_the_recorded_one(policy: str) -> None:
    async def main() -> None:
        for one in (one for one in shipped() if one.policy == policy):
            recorded = one.recording.calls()
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
