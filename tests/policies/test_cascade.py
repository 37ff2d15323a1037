"""ConfSpec as a dialogue: who judges depends on how sure the small model is."""

from __future__ import annotations

from dataclasses import replace
from math import exp, log
from typing import Any

import pytest
from pydantic import ValidationError

from orchestrator.errors import ContextLengthExceeded, Unsupported
from orchestrator.loop.actions import Accept, Classify, Generate, Reject, Verify, Write
from orchestrator.types import Generation, Verification
from policies.cascade import Cascade
from tests.policies.plays import GONE, TRACE, Play, digit, draft


def told(probability: float, text: str = "a b\n\n") -> Generation:
    """A draft whose least likely token has this probability."""
    made = draft(text)
    return replace(made, segment=replace(made.segment, logprobs=(-0.001, log(probability))))


def test_a_sure_draft_is_kept_without_the_large_model() -> None:
    play = Play(Cascade(accept_at=8))
    assert isinstance(play.asked, Generate)
    sure = told(0.9)
    accept = play(sure)
    assert isinstance(accept, Accept)
    assert accept.segment == sure.segment
    assert accept.score == pytest.approx(8.1)


def test_a_hopeless_draft_is_dropped_without_the_large_model() -> None:
    play = Play(Cascade(accept_at=8, reject_below=2))
    hopeless = told(0.1)
    reject = play(hopeless)
    assert isinstance(reject, Reject)
    assert reject.score == pytest.approx(0.9)
    assert isinstance(play(None), Write)


@pytest.mark.parametrize(("score", "kept"), [(7, True), (6, False)])
def test_what_lies_between_is_the_large_models_to_judge(score: int, kept: bool) -> None:
    play = Play(Cascade(accept_at=8, reject_below=2, threshold=7))
    doubtful = told(0.5)
    question = play(doubtful)
    assert isinstance(question, Classify)
    assert (question.worker, question.transcript) == ("large", TRACE.extend(doubtful.segment))
    verdict = play(digit(score))
    expected = Accept(TRACE, doubtful.segment, 7.0) if kept else Reject(doubtful.segment, 6.0)
    assert verdict == expected


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


def test_a_pair_that_cannot_judge_so_is_told() -> None:
    play = Play(Cascade())
    play(told(0.5))
    with pytest.raises(Unsupported):
        play(Unsupported("another vocabulary"))


def test_without_logprobs_the_large_model_judges() -> None:
    play = Play(Cascade(accept_at=0))
    closing = draft("", "think_end")
    question = play(closing)
    assert isinstance(question, Classify)
    assert question.worker == "large"


@pytest.mark.parametrize("text", ["", "\n\n"])
def test_a_blank_draft_is_nobodys_to_judge(text: str) -> None:
    play = Play(Cascade(accept_at=0, threshold=0))
    blank = draft(text)
    assert play(blank) == Reject(blank.segment, None)


@pytest.mark.parametrize(
    ("parameters", "probability", "then"),
    [
        ({"accept_at": 0}, 1e-9, Accept),
        ({"accept_at": 9.1}, 1.0, Classify),  # nothing is ever so sure: SpecReason
        ({"accept_at": 10, "reject_below": 10}, 1.0, Reject),  # the large model alone
    ],
)
def test_the_ends_of_the_scale(parameters: dict[str, Any], probability: float, then: type) -> None:
    assert isinstance(Play(Cascade(**parameters))(told(probability)), then)


@pytest.mark.parametrize(
    ("parameters", "name"),
    [
        ({"accept_at": 10.1}, "accept_at"),
        ({"accept_at": -1}, "accept_at"),
        ({"reject_below": 11}, "reject_below"),
        ({"accept_at": 3, "reject_below": 4}, "reject_below"),
        ({"signal": "vibes"}, "signal"),
        ({"threshold": 11}, "threshold"),
    ],
)
def test_bad_parameters_are_refused_by_name(parameters: dict[str, Any], name: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Cascade(**parameters)
    assert caught.value.errors()[0]["loc"] == (name,)


def test_the_score_is_nine_times_the_probability() -> None:
    accept = Play(Cascade(accept_at=1))(draft("a\n\n", logprob=-0.5))
    assert isinstance(accept, Accept)
    assert accept.score == pytest.approx(9 * exp(-0.5))
