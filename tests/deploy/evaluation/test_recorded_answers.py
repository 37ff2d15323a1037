"""Recorded answers, found by their question."""

from __future__ import annotations

from deploy.evaluation.recorded_answers import RecordedAnswers
from orchestrator.errors import WorkerUnavailable
from orchestrator.loop.actions import Accept, Generate, Write
from orchestrator.loop.events import ActionCompleted
from orchestrator.types import Generation, Message, Segment, StopCriteria, Transcript

TRACE = Transcript((Message("user", "2+2?"),))
FOUR = Segment("small", "four", (4,), (-0.1,), "words")
DRAFT, OTHER = (Generate("small", TRACE, StopCriteria(count)) for count in (9, 8))


def test_each_answer_is_given_once_and_to_its_own_call() -> None:
    gone = WorkerUnavailable("gone")
    answers = (Generation(FOUR), gone)
    known = RecordedAnswers([ActionCompleted(DRAFT, answer, 7.0) for answer in answers])
    assert known.take(OTHER) is None
    assert known.take(Write("small", TRACE, StopCriteria(9))) is None
    for answer in answers:
        called = known.take(DRAFT)
        assert called is not None
        assert called.answer is answer
    assert known.take(DRAFT) is None


def test_only_calls_of_workers_are_answers() -> None:
    accepted = Accept(TRACE, FOUR)
    assert RecordedAnswers([ActionCompleted(accepted, None, 0.0)]).take(accepted) is None
