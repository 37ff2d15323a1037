"""Recorded answers, found by their question: gates of first tokens above all."""

from __future__ import annotations

from typing import Any

import pytest

from deploy.evaluation.recorded_answers import RecordedAnswers
from orchestrator.errors import WorkerUnavailable
from orchestrator.loop.actions import Generate
from orchestrator.loop.events import ActionCompleted
from orchestrator.types import Generation, Message, Segment, StopCriteria, Transcript, Usage

TRACE = Transcript((Message("user", "2+2?"),))
WRITTEN = Segment("small", "four", (4,), (-0.1,), "words")
WITHHELD = Segment("small", "", tokenizer="words", finish="doubt")


def gated(gate: float | None) -> Generate:
    return Generate("small", TRACE, StopCriteria(9, max_entropy=gate))


def made(segment: Segment, entropy: float | None) -> Generation:
    return Generation(segment, Usage(5, 2, len(segment.tokens), 3), 7.0, entropy)


def answers(gate: float | None, answer: Any) -> RecordedAnswers:
    return RecordedAnswers((ActionCompleted(gated(gate), answer, 7.0),))


@pytest.mark.parametrize(
    ("recorded", "segment", "entropy", "asked", "finish"),
    [
        (1.0, WRITTEN, 0.5, 1.0, "until"),
        (1.0, WRITTEN, 0.5, 0.5, "until"),
        (1.0, WRITTEN, 0.5, 9.0, "until"),
        (1.0, WRITTEN, 0.5, 0.4, "doubt"),
        (1.0, WRITTEN, 0.5, None, None),  # another question
        (1.0, WITHHELD, 1.5, 1.0, "doubt"),
        (1.0, WITHHELD, 1.5, 0.1, "doubt"),
        (1.0, WITHHELD, 1.5, 1.5, None),  # it would have been written, and nobody knows what
        (1.0, WRITTEN, None, 1.0, "until"),
        (1.0, WRITTEN, None, 0.9, None),  # resumed: its entropy is not known
        (None, WRITTEN, None, None, "until"),
        (None, WRITTEN, None, 1.0, None),
    ],
)
def test_what_another_gate_would_have_let_through(
    recorded: float | None,
    segment: Segment,
    entropy: float | None,
    asked: float | None,
    finish: str | None,
) -> None:
    called = answers(recorded, made(segment, entropy)).take(gated(asked))
    if finish is None:
        assert called is None
        return
    assert called is not None
    assert called.action == gated(asked)
    assert called.answer.segment.finish == finish
    assert called.answer.entropy == entropy
    if finish == "doubt" and segment is WRITTEN:
        assert called.answer.segment == WITHHELD
        assert called.answer.usage == Usage(5, 2, 0, 1)


def test_each_answer_is_given_once() -> None:
    known = answers(1.0, made(WRITTEN, 0.5))
    assert known.take(gated(0.1)) is not None
    assert known.take(gated(1.0)) is None


def test_an_answer_that_does_not_fit_is_left_for_a_question_that_it_fits() -> None:
    events = [
        ActionCompleted(gated(1.0), made(s, e), 0.0) for s, e in ((WITHHELD, 1.5), (WRITTEN, 0.5))
    ]
    known = RecordedAnswers(events)
    first, second = known.take(gated(2.0)), known.take(gated(0.2))
    assert first is not None
    assert second is not None
    assert first.answer.segment == WRITTEN
    assert second.answer.entropy == 1.5


def test_failures_are_answers_under_any_gate() -> None:
    gone = WorkerUnavailable("gone")
    called = answers(1.0, gone).take(gated(0.2))
    assert called is not None
    assert called.answer is gone
