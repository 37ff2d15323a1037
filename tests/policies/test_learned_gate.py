"""The learned gate: as a dialogue (the test plays both workers), and on the embedded pair."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.errors import ContextLengthExceeded, Unsupported, WorkerUnavailable
from orchestrator.loop.actions import Accept, Action, Generate, Reject, Verify, Write
from orchestrator.types import (
    Finish,
    Generation,
    Message,
    Segment,
    StopCriteria,
    Transcript,
    Verification,
)
from policies.gate import DraftSignal, Gate, LogisticModel, ReadingSignal
from policies.learned_gate import LearnedGate
from policies.steps import REST
from tests.policies import plays
from tests.policies.plays import GONE

START = Transcript((Message("user", "2+2+2?"),))
STEP = StopCriteria(512, until=("\n\n",))
GATE = Gate(  # the worst token alone decides: 0.1 before reading is 2 %, 3 nats are 50 %
    draft=LogisticModel[DraftSignal](bias=-4.0, weights={"worst": 4 / 3}),
    reading=LogisticModel[ReadingSignal](bias=-6.0, weights={"read_worst": 2.0}),
)


def step(text: str, worst: float = 0.1, finish: Finish = "until") -> Segment:
    """Three tokens, the second of which is the least likely."""
    return Segment("small", text, (1, 2, 3), (0.0, -worst, 0.0), "words", finish)


SURE, OTHER = step("a b c\n\n"), step("d e f\n\n")
DOUBTFUL, LAST = step("g h i\n\n", worst=3.0), step("j k l", finish="think_end")


def reading(*nlls: float, finish: Finish = "until", choice: int = 9) -> Verification:
    """Of three tokens a step; where a token is unlikely the choice is another one."""
    tokens = [1, 2, 3] * (len(nlls) // 3)
    own = [choice if nll > 1 else token for nll, token in zip(nlls, tokens, strict=True)]
    options = tuple(Segment("large", f"<{one}>", (one,), (0.0,), "words") for one in own)
    end = Segment("large", "", tokenizer="words", finish=finish)
    return Verification(
        nlls,
        (*own, 0),
        pieces=("x",) * len(nlls),
        options=(*options, end),
        ending=0.0 if finish == "think_end" else None,
    )


class Play(plays.Play):
    def __init__(self, **parameters: Any) -> None:
        super().__init__(LearnedGate(**{"gate": GATE, "risk": 0.1, **parameters}), START)


def drafted(play: Play, *steps: Segment) -> Action[Any]:
    question, transcript = play.first, START
    for one in steps:
        assert question == Generate("small", transcript, STEP)
        question = play(Generation(one))
        transcript = transcript.extend(one)
    return question


def accepted(action: Action[Any], segment: Segment) -> bool:
    return isinstance(action, Accept) and action.segment == segment


def test_a_chain_without_doubt_is_never_read() -> None:
    play = Play()
    assert accepted(drafted(play, SURE, LAST), SURE)
    after = START.extend(SURE)
    assert accepted(play(after), LAST)
    assert play(replace(after.extend(LAST), closed=True)).worker == "large"  # the answer


def test_a_doubtful_draft_is_read_with_those_that_wait() -> None:
    question = drafted(Play(), SURE, DOUBTFUL)
    assert isinstance(question, Verify)
    assert question.transcript == START
    assert question.segment.text == SURE.text + DOUBTFUL.text
    assert len(question.segment.tokens) == len(question.segment.logprobs) == 6


def test_doubts_add_up() -> None:
    play = Play(risk=0.05, read_above=0.05)
    assert isinstance(drafted(play, SURE, SURE, SURE), Verify)  # 2 % each


def test_small_doubts_wait_for_company_but_not_for_more_than_the_window() -> None:
    assert isinstance(drafted(Play(risk=0.01, read_above=0.9), SURE, OTHER, LAST), Verify)
    assert isinstance(drafted(Play(risk=0.01, read_above=0.9, window=2), SURE, OTHER), Verify)


def test_a_window_of_sure_drafts_is_kept_and_the_next_begins() -> None:
    play = Play(window=1)
    assert accepted(drafted(play, SURE), SURE)
    after = START.extend(SURE)
    assert play(after) == Generate("small", after, STEP)


def test_what_the_large_model_finds_likely_is_kept() -> None:
    play = Play()
    drafted(play, SURE, DOUBTFUL)
    assert accepted(play(reading(*[0.1] * 6)), SURE)
    after = START.extend(SURE)
    assert accepted(play(after), DOUBTFUL)
    after = after.extend(DOUBTFUL)
    assert play(after) == Generate("small", after, STEP)


def test_a_wrong_token_is_corrected_and_the_small_model_goes_on() -> None:
    play = Play(hopeless=1.0)
    drafted(play, SURE, DOUBTFUL)
    reject = play(reading(0.1, 0.1, 0.1, 0.1, 5.0, 0.1))
    assert accepted(reject, SURE)
    kept = START.extend(SURE)
    reject = play(kept)
    assert isinstance(reject, Reject)
    assert reject.segment.tokens == (2, 3)
    prefix = play(None)
    assert isinstance(prefix, Accept)
    assert (prefix.segment.author, prefix.segment.tokens) == ("small", (1,))
    kept = kept.extend(prefix.segment)
    own = play(kept)
    assert isinstance(own, Accept)
    assert (own.segment.author, own.segment.text) == ("large", "<9>")
    kept = kept.extend(own.segment)
    assert play(kept) == Generate("small", kept, STEP)  # in mid-step


def test_drafts_behind_a_correction_go_with_it() -> None:
    play = Play(risk=0.01, read_above=0.9)
    drafted(play, SURE, OTHER, LAST)
    reject = play(reading(0.1, 5.0, 0.1, *[0.1] * 6, finish="think_end"))
    assert isinstance(reject, Reject)
    prefix = play(None)
    assert isinstance(prefix, Accept)
    transcript = START.extend(prefix.segment)
    own = play(transcript)
    assert isinstance(own, Accept)
    transcript = transcript.extend(own.segment)
    write = play(transcript)  # 5 nats are 98 %: hopeless
    assert write == Write("large", transcript, STEP)
    after = transcript.extend(OTHER)
    assert play(after) == Reject(OTHER)
    assert play(None) == Reject(LAST)
    assert play(None) == Generate("small", after, STEP)


def test_after_so_many_corrections_the_large_model_writes_the_rest() -> None:
    play = Play(hopeless=1.0, patience=2)
    question, transcript = play.first, START
    for _ in range(2):
        assert question == Generate("small", transcript, STEP)
        play(Generation(DOUBTFUL))
        assert isinstance(play(reading(0.1, 5.0, 0.1)), Reject)
        prefix = play(None)
        assert isinstance(prefix, Accept)
        transcript = transcript.extend(prefix.segment)
        own = play(transcript)
        assert isinstance(own, Accept)
        transcript = transcript.extend(own.segment)
        question = play(transcript)
    assert question == Write("large", transcript, REST)


def test_the_first_of_the_unlikely_tokens_is_corrected() -> None:
    play = Play(hopeless=1.0)
    drafted(play, DOUBTFUL)
    reject = play(reading(1.5, 4.0, 6.0))  # the third follows from the second; the first is style
    assert isinstance(reject, Reject)
    assert reject.segment.tokens == (2, 3)


def test_a_draft_that_the_large_model_would_have_written_is_kept_whatever_the_gate_says() -> None:
    play = Play()
    drafted(play, DOUBTFUL)
    verification = replace(reading(0.1, 5.0, 0.1), choices=(1, 2, 3, 0))
    assert accepted(play(verification), DOUBTFUL)


def test_an_end_that_the_large_model_does_not_see_is_taken_back() -> None:
    play = Play(risk=0.0, correct_above=0.0, hopeless=1.0)
    drafted(play, LAST)
    going_on = Segment("large", " so", (5,), (0.0,), "words")
    verification = reading(0.1, 0.1, 0.1)
    verification = replace(verification, options=(*verification.options[:-1], going_on), ending=7.0)
    reject = play(verification)
    assert isinstance(reject, Reject)
    assert (reject.segment.tokens, reject.segment.finish) == ((), "think_end")
    prefix = play(None)
    assert isinstance(prefix, Accept)
    assert (prefix.segment.tokens, prefix.segment.finish) == ((1, 2, 3), "until")
    assert accepted(play(START.extend(prefix.segment)), going_on)


def test_a_choice_that_may_begin_a_marker_is_written_out() -> None:
    play = Play()
    drafted(play, DOUBTFUL)
    verification = reading(0.1, 5.0, 0.1)
    options = list(verification.options)
    options[1] = Segment("large", "", tokenizer="words", finish="doubt")
    play(replace(verification, options=tuple(options)))
    prefix = play(None)
    assert isinstance(prefix, Accept)
    transcript = START.extend(prefix.segment)
    assert play(transcript) == Write("large", transcript, STEP)


@pytest.mark.parametrize("error", [GONE, ContextLengthExceeded("full")])
def test_a_large_model_that_cannot_read_lets_nothing_through(error: Exception) -> None:
    play = Play()
    drafted(play, SURE, DOUBTFUL)
    assert play(error) == Reject(SURE)
    assert play(None) == Reject(DOUBTFUL)
    assert play(None) == Write("large", START, STEP)
    with pytest.raises(WorkerUnavailable):
        play(GONE)


@pytest.mark.parametrize(
    "last",
    [GONE, Generation(Segment("small", "", finish="think_end"))],
    ids=["failure", "an end without a word"],
)
def test_sure_drafts_that_nothing_follows_are_kept_unread(last: Any) -> None:
    play = Play()
    drafted(play, SURE)
    assert accepted(play(last), SURE)
    after = START.extend(SURE)
    assert play(after) == Generate("small", after, STEP)
    assert play(last) == Write("large", after, STEP)


def test_doubtful_drafts_that_nothing_follows_are_read() -> None:
    play = Play(risk=0.01, read_above=0.9)
    drafted(play, SURE)
    assert isinstance(play(GONE), Verify)


def test_a_blank_draft_is_left_to_the_large_model() -> None:
    blank = Segment("small", "\n\n", (1,), (0.0,), "words")
    play = Play()
    assert play(Generation(blank)) == Reject(blank)
    assert play(None) == Write("large", START, STEP)


def test_a_draft_that_a_stop_string_ended_is_corrected_where_it_is_wrong() -> None:
    play = Play(hopeless=1.0)
    stopped = step("g h i", worst=3.0, finish="stop")
    drafted(play, stopped)
    reject = play(replace(reading(0.1, 5.0, 0.1), ending=None))
    assert isinstance(reject, Reject)
    assert (reject.segment.tokens, reject.segment.finish) == ((2, 3), "stop")


def test_without_a_gate_every_draft_is_read_at_once() -> None:
    play = Play(gate=Gate())
    assert isinstance(drafted(play, SURE), Verify)


def test_it_needs_log_probabilities_and_choices_as_text() -> None:
    with pytest.raises(Unsupported, match="log-probabilities"):
        Play()(Generation(replace(SURE, logprobs=())))
    play = Play()
    drafted(play, DOUBTFUL)
    with pytest.raises(Unsupported, match="choices as text"):
        play(replace(reading(0.1, 5.0, 0.1), options=()))
