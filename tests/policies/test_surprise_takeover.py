"""Takeover by surprise: as a dialogue (the test plays both workers), and in the step loop."""

from __future__ import annotations

from dataclasses import replace
from math import exp, inf, log
from typing import Any

import pytest

from deploy.evaluation.builtin.problems import draw
from orchestrator.errors import ContextLengthExceeded, Unsupported, WorkerUnavailable
from orchestrator.loop.actions import Accept, Generate, Reject, Verify, Write
from orchestrator.types import Finish, Generation, Segment, StopCriteria, Verification
from orchestrator.worker import Worker
from policies.single import SmallOnly
from policies.surprise_takeover import SurpriseTakeover
from tests.policies import plays
from tests.policies.plays import GONE, STEP, TRACE, drafted, run, said
from tests.workers.scripted import Scripted, segment

ONE = segment("small", "2+2 is 4.\n\n")
TWO = segment("small", "and 2 is 7.\n\n")
LAST = segment("small", "so 7.", "think_end")


def surprises(*steps: tuple[Segment, float]) -> Verification:
    """A verification that is surprised so much at the last token of each step, and 0 elsewhere."""
    nats = [number for step, peak in steps for number in (*(0.0,) * (len(step.tokens) - 1), peak)]
    return Verification(tuple(nats), (0,) * (len(nats) + 1))


class Play(plays.Play):
    def __init__(self, **parameters: Any) -> None:
        super().__init__(SurpriseTakeover(**parameters))


def test_a_window_of_steps_is_read_in_one_pass() -> None:
    question = drafted(Play(), ONE, TWO, LAST)
    assert isinstance(question, Verify)
    assert (question.worker, question.transcript) == ("large", TRACE)
    joined = question.segment
    assert joined.text == "2+2 is 4.\n\nand 2 is 7.\n\nso 7."
    assert joined.tokens == ONE.tokens + TWO.tokens + LAST.tokens
    assert len(joined.logprobs) == len(joined.tokens)
    assert (joined.author, joined.tokenizer, joined.finish) == ("small", "words", "think_end")
    assert isinstance(drafted(Play(window=2), ONE, TWO), Verify)  # although the thought continues


def test_steps_before_the_surprise_stay_and_the_large_model_writes_on_from_there() -> None:
    play = Play(surprise=3, takeover=9)
    drafted(play, ONE, TWO, LAST)
    verification = surprises((ONE, 3.0), (TWO, 3.1), (LAST, 0.0))
    assert play(verification) == Accept(TRACE, ONE, 9 * exp(-3.0))  # up to the threshold
    kept = TRACE.extend(ONE)
    assert play(kept) == Reject(TWO, 9 * exp(-3.1))
    assert play(None) == Reject(LAST, 9.0)  # built on it
    assert play(None) == Write("large", kept, StopCriteria(9))
    after = kept.extend(segment("large", "and 2 more is", "length"))
    assert play(after) == Generate("small", after, STEP)  # the pen comes back in mid-sentence


def test_a_window_without_surprise_is_followed_by_the_next() -> None:
    play = Play(window=1)
    drafted(play, ONE)
    play(surprises((ONE, 0.1)))
    after = TRACE.extend(ONE)
    assert play(after) == Generate("small", after, STEP)


@pytest.mark.parametrize(("surprise", "nats"), [(50, inf), (5, 9.0)])
@pytest.mark.parametrize("finish", ["think_end", "eos"])
def test_an_end_inside_what_is_dropped_ends_nothing(
    finish: Finish, surprise: float, nats: float
) -> None:
    play = Play(surprise=surprise)
    last = replace(LAST, finish=finish)
    drafted(play, last)
    assert play(surprises((last, nats))) == Reject(last, 9 * exp(-nats))
    assert isinstance(play(None), Write)


@pytest.mark.parametrize("error", [GONE, ContextLengthExceeded("full")])
def test_a_large_model_that_dies_between_draft_and_reading_lets_nothing_through(
    error: Exception,
) -> None:
    play = Play(surprise=50)
    drafted(play, ONE, LAST)
    assert play(error) == Reject(ONE, None)
    assert play(None) == Reject(LAST, None)
    assert play(None) == Write("large", TRACE, StopCriteria(125))
    with pytest.raises(WorkerUnavailable):
        play(GONE)


def test_drafts_before_the_small_models_failure_are_read() -> None:
    play = Play()
    drafted(play, ONE)
    assert play(GONE) == Verify("large", TRACE, ONE)
    with pytest.raises(Unsupported):
        play(Unsupported("another vocabulary"))


@pytest.mark.parametrize("finish", ["think_end", "eos", "length"])
def test_an_end_with_nothing_said_before_it_is_the_large_models(finish: Finish) -> None:
    nothing = Generation(segment("small", "", finish))
    assert Play()(nothing) == Write("large", TRACE, StopCriteria(125))


def test_nothing_is_added_to_a_thought_that_the_budget_closed() -> None:
    play = Play()
    drafted(play, ONE, LAST)
    assert isinstance(play(surprises((ONE, 0.0), (LAST, 0.0))), Accept)
    closed = replace(TRACE.extend(ONE), closed=True, forced=True)
    assert play(closed) == Reject(LAST, 9.0)
    assert isinstance(play(None), Write)


# --- in the step loop ----------------------------------------------------------------------------

SMALL = ("2+2 is 4.\n\nand 2 more is 7.\n\nso it is 7.", "It is seven.")
LARGE = ("2+2 is 4.\n\nand 2 more is 6.\n\nso it is 6.", "It is six.")


@pytest.mark.parametrize(("nats", "story"), [(0.0, SMALL), (9.0, LARGE)])
async def test_the_threshold_decides_who_writes(nats: float, story: tuple[str, str]) -> None:
    large = Scripted(story=LARGE, scores=[nats])
    ended = await run(SurpriseTakeover(takeover=2), Scripted(story=SMALL), large)
    assert said(ended) == story
    assert ended.metrics.acceptance_rate == (nats == 0)
    if nats == 0:  # the price is one pass
        assert (ended.metrics.judge_calls, len(large.calls)) == (1, 1)


async def test_the_surprising_step_and_all_after_it_are_dropped() -> None:
    small = Scripted(
        ["2+2 is 4.\n\n", "and 2 more is 7.\n\n", "so it is 7.", "is 6.\n\n", "so it is 6.", "Six."]
    )
    drafts = [*(log(2),) * 3, *(0.0, 0.0, 0.0, 0.0, 6.0), *(0.0,) * 4]
    verdicts = [Verification(tuple(drafts), (0,) * 13), 0.0]
    large = Scripted(["and 2 more is 6."], scores=verdicts)
    ended = await run(SurpriseTakeover(takeover=3), small, large)
    assert said(ended) == ("2+2 is 4.\n\nand 2 more is 6.\n\nso it is 6.", "Six.")
    assert [(step.author, step.accepted, step.score) for step in ended.steps[:4]] == [
        ("small", True, pytest.approx(4.5)),
        ("small", False, 9 * exp(-6.0)),
        ("small", False, 9.0),
        ("large", True, None),
    ]
    assert (ended.metrics.discarded_tokens, ended.metrics.judge_calls) == (9, 2)


@pytest.mark.parametrize("budget", range(1, 14))
@pytest.mark.parametrize("nats", [0.0, 9.0])
async def test_no_budget_is_overdrawn(budget: int, nats: float) -> None:
    small, large = Scripted(story=SMALL), Scripted(story=LARGE, scores=[nats])
    ended = await run(SurpriseTakeover(budget=budget, takeover=4), small, large)
    assert ended.transcript.thought.tokens == min(budget, 12)
    assert said(ended)[1] in ("It is seven.", "It is six.")


# --- on the embedded pair ----------------------------------------------------------------------


@pytest.mark.parametrize("surprise", [0.0, 0.5, 50])
async def test_a_model_that_helps_itself_says_what_it_says_alone(
    embedded: Worker, surprise: float
) -> None:
    policy = SurpriseTakeover(surprise=surprise, window=3, takeover=7)
    for problem in draw("dev", 7, 3):
        alone = await run(SmallOnly(), embedded, embedded, problem.question)
        ended = await run(policy, embedded, embedded, problem.question)
        assert said(ended) == said(alone)
        assert ended.metrics.judge_calls > 0


async def test_each_step_gets_its_share_of_the_pass(embedded: Worker) -> None:
    """The score of a step in a window is the one that reading it alone gives."""
    for problem in draw("dev", 7, 2):
        question = problem.question
        together = await run(SurpriseTakeover(surprise=50), embedded, embedded, question)
        alone = await run(SurpriseTakeover(surprise=50, window=1), embedded, embedded, question)
        assert together.metrics.judge_calls < alone.metrics.judge_calls
        scores = [[step.score for step in ended.steps[:-1]] for ended in (together, alone)]
        assert scores[0] == pytest.approx(scores[1], abs=1e-4)
