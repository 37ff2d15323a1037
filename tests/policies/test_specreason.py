"""SpecReason as a dialogue: the test plays both workers, with no event loop."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.errors import ContextLengthExceeded, Unsupported
from orchestrator.loop.actions import Accept, Classify, Generate, Reject, Verify, Write
from orchestrator.types import Finish, Verification
from policies.specreason import SpecReason
from tests.policies import plays
from tests.policies.plays import GONE, STEP, TRACE, digit, draft, step, writes


class Play(plays.Play):
    def __init__(self, **parameters: Any) -> None:
        super().__init__(SpecReason(**parameters))


def test_a_good_draft_is_kept() -> None:
    play = Play(threshold=7)
    assert play.first == Generate("small", TRACE, STEP)
    good = draft("2+2=4.\n\n")
    assert isinstance(play(good), Classify)
    assert play(digit(7)) == Accept(TRACE, good.segment, 7.0)  # inclusive, as in the paper
    after = TRACE.extend(good.segment)
    assert play(after) == Generate("small", after, STEP)


def test_a_poor_draft_is_rewritten_from_the_same_prefix() -> None:
    play = Play(threshold=7)
    bad = draft("2+2=5.\n\n")
    play(bad)
    assert play(digit(6)) == Reject(bad.segment, 6.0)
    assert writes(play(None), "large", TRACE)


def test_first_n_steps_are_the_large_models() -> None:
    play = Play(first_n=2)
    one = TRACE.extend(step("large", "a\n\n"))
    assert isinstance(play.first, Write)
    assert isinstance(play(one), Write)
    assert isinstance(play(one.extend(step("large", "b\n\n"))), Generate)


@pytest.mark.parametrize("scoring", ["expected", "greedy", "likelihood", "both"])
@pytest.mark.parametrize("error", [GONE, ContextLengthExceeded("full"), Unsupported("cannot")])
def test_a_dead_judge_never_lets_a_draft_through(scoring: str, error: Exception) -> None:
    play = Play(scoring=scoring, threshold=0)
    written = draft("2+2=4.\n\n")
    play(written)
    if isinstance(error, Unsupported):  # this pair never can: the request fails
        with pytest.raises(Unsupported):
            play(error)
        return
    assert play(error) == Reject(written.segment, None)
    assert isinstance(play(None), Write)


def test_scoring_by_likelihood() -> None:
    play = Play(scoring="likelihood", likelihood=(0.0, 1.0), threshold=4.5)
    written = draft("a b\n\n")
    assert play(written) == Verify("large", TRACE, written.segment)
    assert play(Verification((0.0, 0.0), (0, 0, 0))) == Accept(TRACE, written.segment, 4.5)


@pytest.mark.parametrize("text", ["", "\n\n", "   \n\n"])
def test_a_blank_draft_is_not_worth_a_question(text: str) -> None:
    play = Play(threshold=0)
    blank = draft(text)
    assert play(blank) == Reject(blank.segment, None)
    assert isinstance(play(None), Write)


@pytest.mark.parametrize("finish", ["think_end", "eos"])
@pytest.mark.parametrize("text", ["", "So 4."])
def test_the_judge_decides_whether_a_draft_may_close_the_thought(text: str, finish: Finish) -> None:
    play = Play()
    closing = draft(text, finish)
    assert isinstance(play(closing), Classify)
    assert play(digit(9)) == Accept(TRACE, closing.segment, 9.0)
    assert writes(play(replace(TRACE, closed=True)), "large")


def test_a_draft_cut_at_the_step_cap_is_a_step() -> None:
    play = Play(step_tokens=3)
    cut = draft("a b c", "length")
    assert isinstance(play(cut), Classify)
    assert isinstance(play(digit(9)), Accept)
    assert isinstance(play(TRACE.extend(cut.segment)), Generate)
