"""ConfSpec as a dialogue: who judges depends on how sure the small model is."""

from __future__ import annotations

from dataclasses import replace
from math import exp, log
from typing import Any

import pytest

from orchestrator.errors import ContextLengthExceeded, Unsupported
from orchestrator.loop.actions import Accept, Classify, Reject, Verify, Write
from orchestrator.types import Generation, Verification
from policies.cascade import Cascade
from tests.policies.plays import GONE, TRACE, Play, digit, draft


def sure(probability: float) -> Generation:
    """A draft whose least likely token has this probability."""
    made = draft("a b\n\n")
    return replace(made, segment=replace(made.segment, logprobs=(-0.001, log(probability))))


@pytest.mark.parametrize(
    ("parameters", "probability", "then"),
    [
        ({}, 0.9, Accept),  # without the large model
        ({"reject_below": 2}, 0.1, Reject),
        ({"accept_at": 0}, 1e-9, Accept),
        ({"accept_at": 9.1}, 1.0, Classify),  # nothing is ever so sure: SpecReason
        ({"accept_at": 10, "reject_below": 10}, 1.0, Reject),  # the large model alone
    ],
)
def test_a_sure_verdict_needs_no_judge(
    parameters: dict[str, Any], probability: float, then: type
) -> None:
    play = Play(Cascade(**parameters))
    verdict = play(sure(probability))
    assert isinstance(verdict, then)
    if isinstance(verdict, Accept | Reject):
        assert verdict.score == pytest.approx(9 * min(exp(-0.001), probability))
    if isinstance(verdict, Reject):
        assert isinstance(play(None), Write)


@pytest.mark.parametrize(("score", "kept"), [(7, True), (6, False)])
def test_what_lies_between_is_the_large_models_to_judge(score: int, kept: bool) -> None:
    play = Play(Cascade(accept_at=8, reject_below=2, threshold=7))
    doubtful = sure(0.5)
    question = play(doubtful)
    assert isinstance(question, Classify)
    assert (question.worker, question.transcript) == ("large", TRACE.extend(doubtful.segment))
    expected = Accept(TRACE, doubtful.segment, 7.0) if kept else Reject(doubtful.segment, 6.0)
    assert play(digit(score)) == expected


def test_a_pair_that_cannot_judge_so_is_told() -> None:
    play = Play(Cascade())
    play(sure(0.5))
    with pytest.raises(Unsupported):
        play(Unsupported("another vocabulary"))


@pytest.mark.parametrize(
    ("own", "then"), [(9, Accept), (8, Accept), (5, Classify), (2, Classify), (1, Reject)]
)
def test_the_small_models_own_digit(own: int, then: type) -> None:
    play = Play(Cascade(signal="digit", accept_at=8, reject_below=2))
    written = draft("a\n\n")
    question = play(written)
    assert isinstance(question, Classify)
    assert (question.worker, question.transcript) == ("small", TRACE.extend(written.segment))
    verdict = play(digit(own))
    assert isinstance(verdict, then)
    if isinstance(verdict, Classify):
        assert verdict.worker == "large"


def test_a_small_judge_is_asked_for_a_digit_whatever_the_large_one_is_asked_for() -> None:
    play = Play(Cascade(signal="digit", scoring="likelihood", likelihood=(0.0, 1.0), threshold=4.5))
    written = draft("a b\n\n")
    assert isinstance(play(written), Classify)
    assert play(digit(5)) == Verify("large", TRACE, written.segment)
    assert isinstance(play(Verification((0.0, 0.0), (0, 0, 0))), Accept)


@pytest.mark.parametrize("error", [GONE, ContextLengthExceeded("full")])
def test_a_failed_small_judge_leaves_it_to_the_large_one(error: Exception) -> None:
    play = Play(Cascade(signal="digit"))
    play(draft("a\n\n"))
    question = play(error)
    assert isinstance(question, Classify)
    assert question.worker == "large"
    assert isinstance(play(error), Reject)  # and no judge at all keeps nothing
    assert isinstance(play(None), Write)


def test_drafts_without_tokens_or_text() -> None:
    question = Play(Cascade(accept_at=0))(draft("", "think_end"))
    assert isinstance(question, Classify)
    assert question.worker == "large"
    for text in ("", "\n\n"):  # not worth a question
        blank = draft(text)
        assert Play(Cascade(accept_at=0, threshold=0))(blank) == Reject(blank.segment, None)
