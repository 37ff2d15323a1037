"""One decision before the first step, as a dialogue."""

from __future__ import annotations

from dataclasses import replace
from math import exp
from typing import Any

import pytest

from orchestrator.errors import ContextLengthExceeded
from orchestrator.loop.actions import Accept, Classify, Generate, Reject, Write
from orchestrator.types import Generation, StopCriteria
from policies.route import Route
from tests.policies.plays import GONE, TRACE, Play, digit, draft, writes


def begun(*logprobs: float) -> Generation:
    made = draft("a " * len(logprobs), "length")
    return replace(made, segment=replace(made.segment, logprobs=logprobs))


@pytest.mark.parametrize(("signal", "score"), [("mean", 9 * exp(-0.2)), ("minimum", 9 * exp(-0.3))])
def test_a_sure_beginning_is_kept(signal: Any, score: float) -> None:
    play = Play(Route(signal=signal, threshold=6, probe_tokens=2))
    assert play.asked == Generate("small", TRACE, StopCriteria(2))
    sure = begun(-0.1, -0.3)
    accept = play(sure)
    assert isinstance(accept, Accept)
    assert (accept.segment, accept.score) == (sure.segment, pytest.approx(score))
    after = TRACE.extend(sure.segment)
    assert writes(play(after), "small")
    assert writes(play(GONE), "large", after)


@pytest.mark.parametrize("signal", ["mean", "minimum"])
@pytest.mark.parametrize(("threshold", "logprobs"), [(8, (-0.1, -3.0)), (9.1, (0.0,))])
def test_an_unsure_beginning_is_dropped(
    signal: Any, threshold: float, logprobs: tuple[float, ...]
) -> None:
    play = Play(Route(signal=signal, threshold=threshold))
    assert isinstance(play(begun(*logprobs)), Reject)
    assert writes(play(None), "large", TRACE)


@pytest.mark.parametrize(("score", "worker"), [(9, "small"), (8, "small"), (7, "large")])
def test_the_large_model_may_be_asked_instead(score: int, worker: str) -> None:
    play = Play(Route(signal="difficulty", threshold=8))
    question = play.asked
    assert isinstance(question, Classify)
    assert (question.worker, question.transcript) == ("large", TRACE)
    assert writes(play(digit(score)), worker, TRACE)


@pytest.mark.parametrize("signal", ["mean", "minimum", "difficulty"])
@pytest.mark.parametrize("error", [GONE, ContextLengthExceeded("full")])
def test_without_a_signal_it_is_the_large_model(signal: Any, error: Exception) -> None:
    assert writes(Play(Route(signal=signal, threshold=0))(error), "large")


@pytest.mark.parametrize("text", ["", "\n\n"])
def test_a_beginning_that_says_nothing_is_no_signal(text: str) -> None:
    play = Play(Route(threshold=0))
    nothing = draft(text, "length")
    assert play(nothing) == Reject(nothing.segment, None)
    assert isinstance(play(None), Write)
