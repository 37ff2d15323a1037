"""TrigReason as a dialogue, and against scripted workers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from orchestrator.errors import ContextLengthExceeded, Unsupported
from orchestrator.loop.actions import Accept, Close, Generate, Reject, Write
from orchestrator.types import Generation, Segment
from policies.triggers import Triggers, begins_with, computes
from tests.policies import plays
from tests.policies.plays import GONE, TRACE, draft, step
from workers.scripted import Say, Scripted

CRITERIA = Triggers().criteria


class Play(plays.Play):
    """The parameters given, without the plan by the large model unless they say so."""

    def __init__(self, **parameters: Any) -> None:
        super().__init__(Triggers(**{"first_n": 0, **parameters}))


def test_the_large_model_begins_and_the_small_one_goes_on() -> None:
    play = Play(first_n=2)
    one = TRACE.extend(step("large", "First add.\n\n"))
    two = one.extend(step("large", "Then double.\n\n"))
    assert play.asked == Write("large", TRACE, CRITERIA)
    assert play(one) == Write("large", one, CRITERIA)
    assert play(two) == Generate("small", two, CRITERIA)
    ordinary = draft("2+2=4.\n\n", logprob=-0.3)
    assert play(ordinary) == Accept(two, ordinary.segment)


@pytest.mark.parametrize(("logprob", "kept"), [(-0.01, False), (-0.05, True), (-3.0, True)])
def test_a_step_too_sure_is_the_large_models(logprob: float, kept: bool) -> None:
    play = Play(overconfidence=0.05)
    one = draft("2+2=5.\n\n", logprob=logprob)
    if kept:
        assert play(one) == Accept(TRACE, one.segment)
    else:
        assert play(one) == Reject(one.segment)
        assert play(None) == Write("large", TRACE, CRITERIA)


def test_only_steps_that_compute_may_count_as_hard() -> None:
    """2 stands in the question; 4 does not."""
    copied, made = draft("So 2+2.\n\n", logprob=0.0), draft("So 4.\n\n", logprob=0.0)
    assert Play(hard="computes")(copied) == Accept(TRACE, copied.segment)
    assert Play(hard="computes")(made) == Reject(made.segment)
    assert Play(hard="any")(copied) == Reject(copied.segment)
    after = TRACE.extend(step("large", "It is 4.\n\n"))
    assert not computes(after, made.segment)
    assert computes(after, step("small", "It is 1.4 or 44."))


def test_over_confidence_that_is_never_asked_for_needs_no_log_probabilities() -> None:
    mute = Generation(Segment("small", "So 4.\n\n", (1, 2)))
    assert Play(overconfidence=0)(mute) == Accept(TRACE, mute.segment)
    with pytest.raises(Unsupported, match="log-probabilities"):
        Play()(mute)


def test_a_draft_that_repeats_is_not_kept_and_a_large_model_that_repeats_is_stopped() -> None:
    play = Play(overconfidence=0)
    one = TRACE.extend(step("small", "Wait.\n\n"))
    play(draft("Wait.\n\n"))
    play(one)
    again = draft("Wait.\n\n")
    assert play(again) == Reject(again.segment)
    assert play(None) == Write("large", one, CRITERIA)
    two = one.extend(step("large", "Wait.\n\n"))
    assert play(two) == Close(two, forced=True)


def test_hesitation_in_a_row_calls_the_large_model() -> None:
    play = Play(overconfidence=0, patience=2)
    transcript = TRACE
    for text in ("Hmm, 4?\n\n", "So 4.\n\n", " WAIT, 5?\n\n", "Alternatively 6.\n\n"):
        assert isinstance(play.asked, Generate), text
        play(draft(text))
        transcript = transcript.extend(step("small", text))
        play(transcript)
    assert play.asked == Write("large", transcript, CRITERIA)
    after = transcript.extend(step("large", "Wait, it is 4.\n\n"))
    assert isinstance(play(after), Generate)  # the large model's hesitation is not the small one's


@pytest.mark.parametrize(
    ("text", "hesitates"),
    [
        ("Waiters carry 2 plates.", False),
        ("Waiting takes 4 minutes.", False),
        ("wait", True),
        ("\n Wait, 4?", True),
        ("WAIT\n", True),
        ("But wait: 4?", True),
        ("等等我再算一次", True),
        ("", False),
    ],
)
def test_a_hesitating_step_begins_with_the_word_not_with_its_letters(
    text: str, hesitates: bool
) -> None:
    assert begins_with(text, ("wait", "but wait", "hmm", "等等")) is hesitates


def test_steps_that_begin_like_a_hesitation_call_nobody() -> None:
    play = Play(overconfidence=0, patience=1)
    play(draft("Waiters carry 4.\n\n"))
    assert isinstance(play(TRACE.extend(step("small", "Waiters carry 4.\n\n"))), Generate)


def test_no_patience_no_trigger() -> None:
    play, transcript = Play(overconfidence=0, patience=None), TRACE
    for number in range(6):
        play(draft(f"Wait {number}.\n\n"))
        transcript = transcript.extend(step("small", f"Wait {number}.\n\n"))
        assert isinstance(play(transcript), Generate)


@pytest.mark.parametrize("error", [GONE, ContextLengthExceeded("full")])
def test_a_dead_small_model_leaves_the_step_to_the_large(error: Exception) -> None:
    play = Play()
    assert play(error) == Write("large", TRACE, CRITERIA)
    with pytest.raises(type(GONE)):
        play(GONE)


def test_a_blank_step_is_no_step() -> None:
    play, blank = Play(overconfidence=0), draft("\n\n")
    assert play(blank) == Reject(blank.segment)
    assert isinstance(play(None), Write)


def test_the_small_model_may_end_the_thought_without_a_word() -> None:
    play, closing = Play(answer_by="small"), draft("", "think_end")
    assert play(closing) == Accept(TRACE, closing.segment)
    answer = play(replace(TRACE, closed=True))
    assert isinstance(answer, Write)
    assert answer.worker == "small"


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("first_n", (-1, "x")),
        ("overconfidence", (-0.1, 5.1, float("nan"), "x")),
        ("hard", ("all", 1)),
        ("patience", (0, 65, "x")),
        ("hesitation", ((" ",), "wait", (1,))),
    ],
)
def test_bad_parameters_are_refused_by_name(name: str, values: tuple[Any, ...]) -> None:
    for value in values:
        with pytest.raises(ValidationError) as caught:
            Triggers(**{name: value})
        assert caught.value.errors()[0]["loc"][0] == name


@pytest.mark.asyncio
async def test_who_writes_what_and_nobody_judges() -> None:
    texts = ("Add first.\n\n", "2+2 is 4.\n\n", "4+2 is 7.\n\n", "It is 7.")
    sure = {1: -0.5, 2: -0.001, 3: -0.5}

    def small(transcript: Any, criteria: Any) -> Say:
        number = len(transcript.thought)
        return Say(texts[number], "think_end" if number == 3 else None, sure.get(number, -0.5))

    large = Scripted(story=("Add first.\n\n2+2 is 4.\n\n4+2 is 6.\n\nIt is 6.", "Six."))
    ended = await plays.run(Triggers(), Scripted(small), large)
    assert [part.author for part in ended.transcript.thought] == [
        "large",
        "small",
        "large",
        "small",
    ]
    assert plays.said(ended) == ("Add first.\n\n2+2 is 4.\n\n4+2 is 6.\n\nIt is 7.", "Six.")
    assert {call.operation for call in large.calls} == {"generate"}
    assert ended.metrics.judge_calls == 0
