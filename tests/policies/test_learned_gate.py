"""The learned gate as a dialogue: the test plays both workers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.errors import ContextLengthExceeded, Unsupported, WorkerUnavailable
from orchestrator.loop.actions import REST, Accept, Action, Generate, Reject, Verify, Write
from orchestrator.types import Finish, Generation, Segment, Transcript, Verification
from policies.gate import DraftSignal, Gate, LogisticModel, ReadingSignal
from policies.learned_gate import LearnedGate
from tests.policies import plays
from tests.policies.plays import GONE, STEP, TRACE, drafted

GATE = Gate(  # the worst token alone decides: 0.1 before reading is 2 %, 3 nats are 50 %
    draft=LogisticModel[DraftSignal](bias=-4.0, weights={"worst": 4 / 3}),
    reading=LogisticModel[ReadingSignal](bias=-6.0, weights={"read_worst": 2.0}),
)


def step(text: str, worst: float = 0.1, finish: Finish = "until") -> Segment:
    """Three tokens, the second of which is the least likely."""
    return Segment("small", text, (1, 2, 3), (0.0, -worst, 0.0), "words", finish)


SURE, OTHER = step("a b c\n\n"), step("d e f\n\n")
DOUBTFUL, LAST = step("g h i\n\n", worst=3.0), step("j k l", finish="think_end")
READ_ALL = {"risk": 0.01, "read_above": 0.9}


def reading(*nlls: float, finish: Finish = "until") -> Verification:
    """A reading of three tokens a step; if a token is unlikely the choice is another one."""
    tokens = [1, 2, 3] * (len(nlls) // 3)
    own = [9 if nll > 1 else token for nll, token in zip(nlls, tokens, strict=True)]
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
        super().__init__(LearnedGate(**{"gate": GATE, "risk": 0.1, **parameters}))

    def corrected(self, transcript: Transcript, dropped: tuple[int, ...]) -> Transcript:
        """Answer a correction: a rejected end, the draft's kept beginning, and large's choice."""
        assert isinstance(self.asked, Reject)
        assert self.asked.segment.tokens == dropped
        for author in ("small", "large"):
            kept = self(None if author == "small" else transcript)
            assert isinstance(kept, Accept)
            assert kept.segment.author == author
            transcript = transcript.extend(kept.segment)
        return transcript


def accepted(action: Action[Any], segment: Segment) -> bool:
    return isinstance(action, Accept) and action.segment == segment


def test_a_chain_without_doubt_is_never_read() -> None:
    play = Play()
    assert accepted(drafted(play, SURE, LAST), SURE)
    after = TRACE.extend(SURE)
    assert accepted(play(after), LAST)
    assert play(replace(after.extend(LAST), closed=True)).worker == "large"  # the answer


@pytest.mark.parametrize(
    ("parameters", "drafts"),
    [
        ({}, (SURE, DOUBTFUL)),
        ({"risk": 0.05, "read_above": 0.05}, (SURE, SURE, SURE)),  # 2 % each add up
        (READ_ALL, (SURE, OTHER, LAST)),  # small doubts wait for others
        ({**READ_ALL, "window": 2}, (SURE, OTHER)),  # but not for more than the window
        ({"gate": Gate()}, (SURE,)),  # without a model every draft is read at once
    ],
)
def test_doubtful_drafts_are_read_with_those_that_wait(
    parameters: dict[str, Any], drafts: tuple[Segment, ...]
) -> None:
    question = drafted(Play(**parameters), *drafts)
    assert isinstance(question, Verify)
    assert question.transcript == TRACE
    assert question.segment.text == "".join(one.text for one in drafts)
    assert len(question.segment.tokens) == len(question.segment.logprobs) == 3 * len(drafts)


def test_a_window_of_sure_drafts_is_kept_and_the_next_begins() -> None:
    play = Play(window=1)
    assert accepted(drafted(play, SURE), SURE)
    after = TRACE.extend(SURE)
    assert play(after) == Generate("small", after, STEP)


def test_drafts_that_the_large_model_finds_likely_are_kept() -> None:
    play = Play()
    drafted(play, SURE, DOUBTFUL)
    assert accepted(play(reading(*[0.1] * 6)), SURE)
    after = TRACE.extend(SURE)
    assert accepted(play(after), DOUBTFUL)
    after = after.extend(DOUBTFUL)
    assert play(after) == Generate("small", after, STEP)


def test_a_wrong_token_is_corrected_and_the_small_model_continues() -> None:
    play = Play(hopeless=1.0)
    drafted(play, SURE, DOUBTFUL)
    assert accepted(play(reading(0.1, 0.1, 0.1, 0.1, 5.0, 0.1)), SURE)
    kept = TRACE.extend(SURE)
    play(kept)
    kept = play.corrected(kept, dropped=(2, 3))
    assert (kept.chain[-2].tokens, kept.chain[-1].text) == ((1,), "<9>")
    assert play(kept) == Generate("small", kept, STEP)  # in mid-step


def test_drafts_after_a_correction_go_with_it() -> None:
    play = Play(**READ_ALL)
    drafted(play, SURE, OTHER, LAST)
    play(reading(0.1, 5.0, 0.1, *[0.1] * 6, finish="think_end"))
    transcript = play.corrected(TRACE, dropped=(2, 3))
    assert play(transcript) == Write("large", transcript, STEP)  # 5 nats are 98 %: hopeless
    after = transcript.extend(OTHER)
    assert play(after) == Reject(OTHER)
    assert play(None) == Reject(LAST)
    assert play(None) == Generate("small", after, STEP)


def test_after_this_many_corrections_the_large_model_writes_the_rest() -> None:
    play, transcript = Play(hopeless=1.0, patience=2), TRACE
    for _ in range(2):
        assert play.asked == Generate("small", transcript, STEP)
        play(Generation(DOUBTFUL))
        play(reading(0.1, 5.0, 0.1))
        transcript = play.corrected(transcript, dropped=(2, 3))
        play(transcript)
    assert play.asked == Write("large", transcript, REST)


def test_the_first_of_the_unlikely_tokens_is_corrected() -> None:
    play = Play(hopeless=1.0)
    drafted(play, DOUBTFUL)
    play(reading(1.5, 4.0, 6.0))  # the third follows from the second; the first is style
    play.corrected(TRACE, dropped=(2, 3))


def test_a_draft_that_the_large_model_would_have_written_is_kept_whatever_the_gate_says() -> None:
    play = Play()
    drafted(play, DOUBTFUL)
    verification = replace(reading(0.1, 5.0, 0.1), choices=(1, 2, 3, 0))
    assert accepted(play(verification), DOUBTFUL)


def test_an_end_that_the_large_model_does_not_see_is_taken_back() -> None:
    play = Play(risk=0.0, correct_above=0.0, hopeless=1.0)
    drafted(play, LAST)
    more = Segment("large", " so", (5,), (0.0,), "words")
    verification = reading(0.1, 0.1, 0.1)
    reject = play(replace(verification, options=(*verification.options[:-1], more), ending=7.0))
    assert reject.segment.finish == "think_end"
    after = play.corrected(TRACE, dropped=())
    assert (after.chain[-2].tokens, after.chain[-2].finish) == ((1, 2, 3), "until")
    assert after.chain[-1] == more


def test_a_choice_that_may_begin_a_marker_is_written_out() -> None:
    play = Play()
    drafted(play, DOUBTFUL)
    verification = reading(0.1, 5.0, 0.1)
    options = list(verification.options)
    options[1] = Segment("large", "", tokenizer="words", finish="doubt")
    play(replace(verification, options=tuple(options)))
    transcript = TRACE.extend(play(None).segment)
    assert play(transcript) == Write("large", transcript, STEP)


@pytest.mark.parametrize("error", [GONE, ContextLengthExceeded("full")])
def test_a_large_model_that_cannot_read_lets_nothing_through(error: Exception) -> None:
    play = Play()
    drafted(play, SURE, DOUBTFUL)
    assert play(error) == Reject(SURE)
    assert play(None) == Reject(DOUBTFUL)
    assert play(None) == Write("large", TRACE, STEP)
    with pytest.raises(WorkerUnavailable):
        play(GONE)


@pytest.mark.parametrize(
    "last",
    [GONE, Generation(Segment("small", "", finish="think_end"))],
    ids=["failure", "an end without a word"],
)
def test_drafts_that_nothing_follows_are_kept_if_sure_and_else_read(last: Any) -> None:
    play = Play()
    drafted(play, SURE)
    assert accepted(play(last), SURE)
    after = TRACE.extend(SURE)
    assert play(after) == Generate("small", after, STEP)
    assert play(last) == Write("large", after, STEP)
    play = Play(**READ_ALL)
    drafted(play, SURE)
    assert isinstance(play(last), Verify)


def test_a_blank_draft_is_left_to_the_large_model() -> None:
    blank = Segment("small", "\n\n", (1,), (0.0,), "words")
    play = Play()
    assert play(Generation(blank)) == Reject(blank)
    assert play(None) == Write("large", TRACE, STEP)


def test_a_draft_that_a_stop_string_ended_is_corrected_where_it_is_wrong() -> None:
    play = Play(hopeless=1.0)
    drafted(play, step("g h i", worst=3.0, finish="stop"))
    reject = play(replace(reading(0.1, 5.0, 0.1), ending=None))
    assert isinstance(reject, Reject)
    assert (reject.segment.tokens, reject.segment.finish) == ((2, 3), "stop")


def test_it_needs_log_probabilities_and_choices_as_text() -> None:
    with pytest.raises(Unsupported, match="log-probabilities"):
        Play()(Generation(replace(SURE, logprobs=())))
    play = Play()
    drafted(play, DOUBTFUL)
    with pytest.raises(Unsupported, match="choices as text"):
        play(replace(reading(0.1, 5.0, 0.1), options=()))
