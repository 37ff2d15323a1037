"""Where the end of a thought begins that a cap may cut."""

from __future__ import annotations

import pytest

from orchestrator.loop.budget import Budget
from orchestrator.types import Limits
from tests.orchestrator.loop.test_budget import QUESTION, said


@pytest.mark.parametrize(
    ("max_tokens", "own", "begins"),
    [
        (2048, None, 1984),
        (2048, 1900, 1900),  # it leaves enough for an answer anyway
        (2048, 2047, 1984),
        (100, 90, 50),
        (1, None, 1),
    ],
)
def test_the_end_of_a_thought_may_be_given_up(
    max_tokens: int, own: int | None, begins: int
) -> None:
    budget = Budget.of(Limits(max_tokens=max_tokens), own, reserve=64)
    assert budget.room.begins == begins
    near = QUESTION.extend(said(begins - 1))
    at = QUESTION.extend(said(begins))
    left = budget.thought - begins
    assert budget.room.certain(near, left + 1) == 1
    assert budget.room.certain(at, left) == 0
    assert budget.room.certain(budget.close(at), 5) == 5
    assert budget.room.holds(at) is (left > 0)
    assert not budget.room.holds(near)
    assert budget.room.overruns(at, left) is (left > 0)
    assert not budget.room.overruns(at, left - 1)
