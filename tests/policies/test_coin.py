"""The coin: who writes a step hangs on nothing but the conversation, the step and the seed."""

from __future__ import annotations

from itertools import pairwise

import pytest

from orchestrator.loop.actions import Write
from orchestrator.types import Message
from policies.coin import Coin, toss
from tests.policies.plays import TRACE, Play, step

QUESTION = TRACE.messages


def authors(policy: Coin, steps: int) -> str:
    play, transcript, written = Play(policy), TRACE, ""
    for number in range(steps):
        asked = play.asked
        assert isinstance(asked, Write)
        assert asked.transcript == transcript
        assert asked.criteria == policy.criteria
        written += asked.worker[0]
        transcript = transcript.extend(step(asked.worker, f"step {number}\n\n"))
        play(transcript)
    return written


def test_throws_are_even_and_independent() -> None:
    thrown = [
        toss(seed, (Message("user", f"{number} + 1?"),), place)
        for seed in range(4)
        for number in range(50)
        for place in range(1, 11)
    ]
    assert all(0 <= one < 1 for one in thrown)
    assert len(set(thrown)) == len(thrown)
    for share in (0.1, 0.5, 0.9):
        below = sum(one < share for one in thrown) / len(thrown)
        assert below == pytest.approx(share, abs=0.04)  # 4 standard deviations
    both = sum(a < 0.5 and b < 0.5 for a, b in pairwise(thrown)) / len(thrown)
    assert both == pytest.approx(0.25, abs=0.04)


def test_the_same_request_is_thrown_alike_and_another_seed_is_not() -> None:
    assert authors(Coin(), 12) == authors(Coin(), 12)
    assert {"s", "l"} == set(authors(Coin(), 12))
    assert len({authors(Coin(seed=seed), 12) for seed in range(8)}) > 1
    assert authors(Coin(large_probability=1), 6) == "llllll"
    assert authors(Coin(large_probability=0), 6) == "ssssss"
