"""A plan by the large model: as a dialogue, and against scripted workers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from orchestrator.errors import ContextLengthExceeded, Unsupported
from orchestrator.loop.actions import Accept, Classify, Generate, Reject, Write
from orchestrator.types import Generation, Segment, StopCriteria, Transcript
from policies.plan import PlanFirst, confidence
from tests.policies import plays
from tests.policies.plays import GONE, TRACE, digit, draft, step
from workers.scripted import Say, Scripted

SURE, UNSURE = -0.01, -2.0
PIECE = StopCriteria(64, until=("\n\n",))
PLANNED = TRACE.extend(step("large", "Goal: a sum.\n\n"))


class Play(plays.Play):
    """The parameters given, without a lead-in unless they say so."""

    def __init__(self, **parameters: Any) -> None:
        super().__init__(PlanFirst(**{"lead_in": "", **parameters}))


def test_a_plan_that_suffices_is_carried_out() -> None:
    play = Play()
    assert play.asked == Write("large", TRACE, PIECE)
    assert play(PLANNED) == Generate("small", PLANNED, PlanFirst().criteria)
    first = draft("2+2=4.\n\n", logprob=SURE)
    assert play(first) == Accept(PLANNED, first.segment)
    after = PLANNED.extend(first.segment)
    assert isinstance(play(after), Generate)
    # Behind the plan nobody asks how sure the small model is.
    doubtful = draft("So 4.\n\n", logprob=UNSURE)
    assert play(doubtful) == Accept(after, doubtful.segment)


def test_the_plan_grows_until_the_small_model_is_sure_or_it_is_whole() -> None:
    play = Play(pieces=2)
    play(PLANNED)
    doubtful = draft("4?\n\n", logprob=UNSURE)
    assert play(doubtful) == Reject(doubtful.segment)
    assert play(None) == Write("large", PLANNED, PIECE)
    longer = PLANNED.extend(step("large", "Known: 2 and 2.\n\n"))
    assert isinstance(play(longer), Generate)
    assert play(doubtful) == Accept(longer, doubtful.segment)


@pytest.mark.parametrize(("sufficient", "kept"), [(0.0, True), (1.0, False)])
def test_the_ends_of_the_scale(sufficient: float, kept: bool) -> None:
    play = Play(sufficient=sufficient)
    play(PLANNED)
    assert isinstance(play(draft("4?\n\n", logprob=UNSURE)), Accept if kept else Reject)


def test_all_paragraphs_are_written_however_sure_the_small_model_is() -> None:
    play = Play(sufficient=1, pieces=2)
    play(PLANNED)
    certain = draft("2+2=4.\n\n", logprob=0.0)
    assert play(certain) == Reject(certain.segment)
    assert play(None) == Write("large", PLANNED, PIECE)


def test_an_end_alone_does_not_show_that_the_plan_suffices() -> None:
    play, ending = Play(pieces=2), draft("", "think_end")
    play(PLANNED)
    assert play(ending) == Reject(ending.segment)
    assert play(None) == Write("large", PLANNED, PIECE)
    # Behind the whole plan it ends the thought.
    longer = PLANNED.extend(step("large", "Known: 2 and 2.\n\n"))
    play(longer)
    assert play(ending) == Accept(longer, ending.segment)


@pytest.mark.parametrize(
    "transcript", [TRACE.without_thought(), TRACE.without_thought().extend(step("policy", "It"))]
)
def test_no_lead_in_in_an_answer(transcript: Transcript) -> None:
    play = plays.Play(PlanFirst(), transcript)
    assert play.first == Write("large", transcript, PIECE)


def test_the_lead_in_is_the_policys_own_and_visible() -> None:
    play = Play(lead_in="Plan:\n\n")
    assert play.asked == Accept(TRACE, Segment("policy", "Plan:\n\n"))
    begun = TRACE.extend(Segment("policy", "Plan:\n\n"))
    assert play(begun) == Write("large", begun, PIECE)


def test_a_judge_behind_the_plan_has_bad_steps_rewritten() -> None:
    play = Play(judged=True, threshold=7, sufficient=0)
    play(PLANNED)
    bad = draft("2+2=5.\n\n")
    assert isinstance(play(bad), Classify)
    assert play(digit(6)) == Reject(bad.segment, 6.0)
    assert play(None) == Write("large", PLANNED, PlanFirst().criteria)
    after = PLANNED.extend(step("large", "2+2=4.\n\n"))
    assert isinstance(play(after), Generate)
    good = draft("So 4.\n\n")
    assert isinstance(play(good), Classify)
    assert play(digit(7)) == Accept(after, good.segment, 7.0)


def test_a_judge_that_dies_keeps_nothing() -> None:
    play = Play(judged=True, threshold=0, sufficient=0)
    play(PLANNED)
    one = draft("2+2=4.\n\n")
    play(one)
    assert play(GONE) == Reject(one.segment, None)
    assert isinstance(play(None), Write)


@pytest.mark.parametrize("error", [GONE, ContextLengthExceeded("full")])
def test_a_dead_small_model_leaves_plan_and_steps_to_the_large(error: Exception) -> None:
    play = Play(pieces=2)
    play(PLANNED)
    assert play(error) == Write("large", PLANNED, PIECE)
    longer = PLANNED.extend(step("large", "Known: 2 and 2.\n\n"))
    play(longer)
    assert play(error) == Write("large", longer, PlanFirst().criteria)


def test_a_thought_that_the_planner_ends_is_over() -> None:
    play = Play(answer_by="active")
    answer = play(replace(PLANNED, closed=True))
    assert isinstance(answer, Write)
    assert answer.worker == "large"  # the author of the last step


def test_how_sure_a_draft_is() -> None:
    assert confidence(step("small", "a b c", logprob=0.0)) == 1.0
    assert confidence(step("small", "a b", logprob=-1.0)) == pytest.approx(0.3679, abs=1e-4)
    assert confidence(Segment("small", "", finish="think_end")) == 0.0
    assert confidence(Segment("small", "\n\n", (1,), (0.0,), finish="think_end")) == 0.0
    play = Play()
    play(PLANNED)
    with pytest.raises(Unsupported, match="log-probabilities"):
        play(Generation(Segment("small", "So 4.\n\n", (1, 2))))


def test_one_vocabulary_is_needed_by_the_judge_alone() -> None:
    assert not PlanFirst(scoring="likelihood").one_vocabulary
    assert PlanFirst(scoring="likelihood", judged=True).one_vocabulary


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("lead_in", (1, "x" * 2001)),
        ("pieces", (0, 65)),
        ("plan_tokens", (0, "x")),
        ("sufficient", (-0.1, 1.1, float("nan"))),
        ("judged", ("perhaps",)),
    ],
)
def test_bad_parameters_are_refused_by_name(name: str, values: tuple[Any, ...]) -> None:
    for value in values:
        with pytest.raises(ValidationError) as caught:
            PlanFirst(**{name: value})
        assert caught.value.errors()[0]["loc"][0] == name


@pytest.mark.asyncio
async def test_the_plan_is_part_of_the_thought() -> None:
    def small(transcript: Any, criteria: Any) -> Say:
        if transcript.closed:
            return Say("Four.")
        return {
            2: Say("Hm.\n\n", logprob=UNSURE),
            3: Say("2+2 is 4.\n\n", logprob=SURE),
            4: Say("It is 4.", "think_end", SURE),
        }[transcript.text.count("\n\n")]

    large = Scripted(["Goal: a sum.\n\n", "Add the numbers.\n\n"])
    ended = await plays.run(PlanFirst(lead_in="Plan:\n\n"), Scripted(small), large)
    assert plays.said(ended) == (
        "Plan:\n\nGoal: a sum.\n\nAdd the numbers.\n\n2+2 is 4.\n\nIt is 4.",
        "Four.",
    )
    kept = [(one.author, one.accepted) for one in ended.steps if one.phase == "thought"]
    assert kept == [
        ("policy", True),
        ("large", True),
        ("small", False),
        ("large", True),
        ("small", True),
        ("small", True),
    ]
    assert ended.metrics.discarded_tokens == 1
