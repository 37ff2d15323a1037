"""Which segments of a chain are steps."""

from __future__ import annotations

import pytest

from orchestrator.loop.events import RequestCompleted
from orchestrator.loop.request import Request
from orchestrator.loop.solve import solve
from orchestrator.types import Message
from policies import POLICIES
from tests.workers.scripted import Scripted


@pytest.mark.parametrize(
    "name", [name for name, policy in POLICIES.items() if "first_n" in policy.model_fields]
)
async def test_a_text_that_is_gone_on_with_is_none_of_the_first_steps(name: str) -> None:
    begun = (Message("user", "2+2?"), Message("assistant", "It is"))
    both = Scripted(story=("", "It is four.\n\nSo four."), thinks=False)
    policy = POLICIES[name](first_n=1)  # type: ignore[call-arg]
    events = solve(policy, Request("r", begun), {"small": both, "large": both})
    *_, ended = [event async for event in events]
    assert isinstance(ended, RequestCompleted)
    assert (ended.steps[0].author, ended.steps[0].text) == ("large", " four.\n\n")
