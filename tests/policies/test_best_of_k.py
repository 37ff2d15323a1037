"""Several drafts and one choice, as a dialogue."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from orchestrator.errors import ContextLengthExceeded, Unsupported
from orchestrator.loop.actions import (
    Accept,
    Cancel,
    Classify,
    First,
    Generate,
    Reject,
    Verify,
    Write,
)
from orchestrator.types import Classification, Generation, StopCriteria, Verification
from policies.best_of_k import BestOfK
from tests.policies.plays import GONE, TRACE, Play, draft, law, step

A, B, C = (draft(f"{letter} it is.\n\n") for letter in "xyz")


def drafted(policy: BestOfK, *drafts: Generation) -> Play:
    """A play whose drafts have come in; `asked` is what follows."""
    play = Play(policy)
    _, jobs = play.begins()
    for job, made in zip(jobs, drafts, strict=True):
        play((job, made))
    return play


def test_the_first_draft_is_as_the_request_says_and_the_others_are_sampled() -> None:
    play = Play(BestOfK(k=3, temperature=0.5))
    begun, jobs = play.begins()
    criteria = StopCriteria(512, until=("\n\n",))
    assert begun == [
        Generate("small", TRACE, criteria),
        Generate("small", TRACE, criteria, 0.5),
        Generate("small", TRACE, criteria, 0.5),
    ]
    assert play.asked == First(tuple(jobs))


def test_the_large_model_chooses_by_one_letter() -> None:
    play = drafted(BestOfK(), A, B, C)
    question = play.asked
    assert isinstance(question, Classify)
    assert (question.worker, question.transcript) == ("large", TRACE)
    assert question.labels == ("A", "B", "C", "D")
    (turn,) = question.turns
    for shown in ("A: x it is.", "B: y it is.", "C: z it is.", "D: none of them"):
        assert shown in turn.content
    assert play(law(question.labels, "B")) == Reject(A.segment, 0.0)
    assert play(None) == Reject(C.segment, 0.0)
    assert play(None) == Accept(TRACE, B.segment, 9.0)


def test_none_of_them() -> None:
    play = drafted(BestOfK(k=2), A, B)
    play(law(("A", "B", "C"), "C"))
    assert play(None) == Reject(B.segment, 0.0)
    assert play(None) == Write("large", TRACE, StopCriteria(512, until=("\n\n",)))


@pytest.mark.parametrize(
    ("parameters", "answer", "score"),
    [
        ({"scoring": "greedy"}, Classification(("A", "B"), (0.6, 0.4)), 9.0),
        ({"scoring": "greedy"}, Classification(("A", "B"), (0.5, 0.5)), None),
        ({"scoring": "greedy"}, Classification(("A", "B"), (0.6, 0.4), 0.5), None),
        ({"scoring": "expected"}, Classification(("A", "B"), (0.6, 0.4)), 5.4),
        ({"scoring": "expected"}, Classification(("A", "B"), (1.0, 0.0), 0.6), None),
        ({"scoring": "expected"}, Classification(("A", "B"), (0.0, 0.0), 0.1), None),
        ({"scoring": "greedy", "threshold": 0}, Classification(("A", "B"), (0.0, 1.0)), 0.0),
        ({"scoring": "expected", "threshold": 9.1}, Classification(("A", "B"), (1.0, 0.0)), None),
    ],
)
def test_one_draft_or_none(parameters: dict[str, Any], answer: Any, score: float | None) -> None:
    play = drafted(BestOfK(k=1, **parameters), A)
    verdict = play(answer)
    if score is None:
        assert isinstance(verdict, Reject)
        assert isinstance(play(None), Write)
    else:
        assert isinstance(verdict, Accept)
        assert verdict.score == pytest.approx(score)


def test_a_share_is_taken_against_none_of_them_alone() -> None:
    """Two good drafts divide the mass between them; that is no reason to write a third."""
    play = drafted(BestOfK(k=2, scoring="expected", threshold=7), A, B)
    play(Classification(("A", "B", "C"), (0.46, 0.44, 0.1)))
    accept = play(None)
    assert isinstance(accept, Accept)
    assert (accept.segment, accept.score) == (A.segment, pytest.approx(9 * 0.46 / 0.56))


def test_by_likelihood_the_large_model_reads_each_draft() -> None:
    play = drafted(BestOfK(k=2, scoring="likelihood", likelihood=(0.0, 1.0), threshold=4), A, B)
    begun, jobs = play.begins()
    assert begun == [Verify("large", TRACE, A.segment), Verify("large", TRACE, B.segment)]
    play((jobs[1], Verification((0.0, 0.0, 0.0), (0, 0, 0, 0))))
    assert play((jobs[0], Verification((2.0, 0.0, 0.0), (0, 0, 0, 0)))) == Reject(
        A.segment, pytest.approx(1.0728, abs=1e-3)
    )
    assert play(None) == Accept(TRACE, B.segment, 4.5)


@pytest.mark.parametrize("sign", [1, -1])
def test_of_drafts_that_differ_in_the_last_digit_alone_the_first_is_kept(sign: int) -> None:
    play = drafted(BestOfK(k=2, scoring="likelihood", likelihood=(0.0, 1.0), threshold=4), A, B)
    _, jobs = play.begins()
    play((jobs[0], Verification((0.1 + sign * 1e-6, 0.0, 0.0), (0, 0, 0, 0))))
    assert play((jobs[1], Verification((0.1, 0.0, 0.0), (0, 0, 0, 0)))) == Reject(
        B.segment, pytest.approx(4.275, abs=1e-3)
    )
    accept = play(None)
    assert isinstance(accept, Accept)
    assert accept.segment == A.segment


def test_by_letters_the_likelier_draft_is_kept_however_little_that_tells_of_none() -> None:
    play = drafted(BestOfK(k=2, scoring="expected"), A, B)
    play(Classification(("A", "B", "C"), (0.2, 0.79999, 0.00001)))
    accept = play(None)
    assert isinstance(accept, Accept)
    assert accept.segment == B.segment


def test_a_tie_is_no_way_under_the_threshold() -> None:
    policy = BestOfK(k=2, scoring="likelihood", likelihood=(0.0, 1.0), threshold=4.5)
    play = drafted(policy, A, B)
    _, jobs = play.begins()
    play((jobs[0], Verification((1e-5, 0.0, 0.0), (0, 0, 0, 0))))
    play((jobs[1], Verification((0.0, 0.0, 0.0), (0, 0, 0, 0))))
    accept = play(None)
    assert isinstance(accept, Accept)
    assert accept.segment == B.segment


def test_the_same_draft_is_asked_about_once() -> None:
    play = drafted(BestOfK(k=3), A, draft("x it is. \n\n"), B)
    question = play.asked
    assert isinstance(question, Classify)
    assert question.labels == ("A", "B", "C")


def test_a_draft_that_ends_the_thought_says_so() -> None:
    ending = draft("x it is.", "think_end")
    play = drafted(BestOfK(k=3), A, ending, draft("", "think_end"))
    question = play.asked
    assert isinstance(question, Classify)
    assert "A: x it is.\n\nB: x it is. (with" in question.turns[0].content
    play(law(question.labels, "B"))
    play(None)
    assert play(None) == Accept(TRACE, ending.segment, 9.0)
    assert isinstance(play(replace(TRACE, closed=True)), Write)


def test_blank_drafts_leave_the_step_to_the_large_model() -> None:
    assert isinstance(drafted(BestOfK(k=2), draft(""), draft("\n\n")).asked, Write)


@pytest.mark.parametrize("error", [GONE, ContextLengthExceeded("full")])
def test_a_drafter_that_dies_takes_its_siblings_with_it(error: Exception) -> None:
    play = Play(BestOfK(k=3))
    _, jobs = play.begins()
    play((jobs[2], C))
    cancelled = [play(error)]
    while isinstance(play.asked, Cancel):
        cancelled.append(play(None))
    assert {c.job for c in cancelled if isinstance(c, Cancel)} == {jobs[0], jobs[1]}
    assert isinstance(play.asked, Write)


@pytest.mark.parametrize("scoring", ["greedy", "likelihood"])
def test_a_dead_judge_keeps_nothing(scoring: Any) -> None:
    play = drafted(BestOfK(k=1, scoring=scoring, threshold=0), A)
    play.begins()
    play(GONE)
    if isinstance(play.asked, Cancel):
        play(None)
    assert play.asked == Reject(A.segment, None)
    assert isinstance(play(None), Write)


def test_a_pair_that_cannot_judge_so_is_told() -> None:
    play = drafted(BestOfK(k=1, scoring="likelihood"), A)
    play.begins()
    assert isinstance(play(Unsupported("another vocabulary")), Cancel)
    with pytest.raises(Unsupported):
        play(None)


def test_the_large_model_sets_the_direction() -> None:
    play = Play(BestOfK(first_n=1))
    assert isinstance(play.asked, Write)
    play(TRACE.extend(step("large", "a\n\n")))
    assert len(play.begins()[0]) == 3


@pytest.mark.parametrize(
    ("name", "value"),
    [("k", 0), ("k", 17), ("temperature", 0), ("threshold", 11), ("scoring", "x"), ("first_n", -1)],
)
def test_bad_parameters_are_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        BestOfK(**{name: value})
    assert caught.value.errors()[0]["loc"] == (name,)
