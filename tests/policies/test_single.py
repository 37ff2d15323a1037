"""The baselines, as dialogues without an event loop."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.errors import ContextLengthExceeded
from orchestrator.loop.policy import Policy
from policies import POLICIES
from policies.single import LargeOnly, SmallOnly
from policies.steps import write_out
from tests.policies.plays import GONE, TRACE, Play, ends, writes

CLOSED = replace(TRACE, closed=True)


@pytest.mark.parametrize(("policy", "name"), [(SmallOnly(), "small"), (LargeOnly(), "large")])
def test_one_worker_writes_everything(policy: Policy, name: str) -> None:
    assert policy.workers == {name}
    play = Play(policy)
    assert writes(play.first, name, TRACE)
    assert writes(play(CLOSED), name, CLOSED)
    assert ends(play, replace(CLOSED, done=True))


@pytest.mark.parametrize("error", [GONE, ContextLengthExceeded("full")])
def test_another_worker_takes_over_and_keeps_what_was_shown(error: Exception) -> None:
    policy: Any = SimpleNamespace(solve=lambda trace: write_out(trace, "small", "large"))
    play = Play(policy)
    assert writes(play.first, "small", TRACE)
    assert writes(play(CLOSED), "small", CLOSED)
    assert writes(play(error), "large", CLOSED)
    with pytest.raises(type(error)):
        play(error)


def test_the_catalogue() -> None:
    assert {"small-only", "large-only", "specreason"} <= POLICIES.keys()
    assert all(policy().budget is None for policy in POLICIES.values())
