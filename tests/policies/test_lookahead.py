"""Lookahead Reasoning: as a dialogue, and with everything really side by side."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from deploy.evaluation.recording import RecordedRequest, Recording, dumps, loads
from deploy.evaluation.replay import replay
from orchestrator.errors import ContextLengthExceeded, Spent, Unsupported, WorkerUnavailable
from orchestrator.loop.actions import (
    Accept,
    Cancel,
    Classify,
    First,
    Generate,
    Job,
    Reject,
    Start,
    Write,
)
from orchestrator.loop.events import ActionCompleted, Event, RequestCompleted, TextDelta
from orchestrator.loop.policy import Policy
from orchestrator.loop.solve import solve
from orchestrator.types import Classification, Limits, Message, Sampling, StopCriteria, Transcript
from policies.lookahead import LABELS, Lookahead
from policies.specreason import SpecReason
from tests.policies.plays import GONE, TRACE, Play, digit, draft, law, own, step
from workers.scripted import Say, Scripted

SPAN = StopCriteria(512, until=("\n\n",))
ONE, TWO, THREE = (draft(f"{word}.\n\n") for word in ("one", "two", "three"))
AFTER_ONE = TRACE.extend(ONE.segment)
AFTER_TWO = AFTER_ONE.extend(TWO.segment)


def begins(play: Play) -> tuple[Any, Any]:
    """The one action that is started now, and its job."""
    (action,), (job,) = play.begins()
    return action, job


def test_the_small_model_drafts_on_while_the_large_one_judges() -> None:
    play = Play(Lookahead(depth=2, threshold=7))
    action, first = begins(play)
    assert action == Generate("small", TRACE, SPAN)
    assert play.asked == First((first,))
    play((first, ONE))
    (judge, drafting), (verdict, second) = play.begins()
    assert isinstance(judge, Classify)
    assert judge.transcript == AFTER_ONE
    assert drafting == Generate("small", AFTER_ONE, SPAN)
    assert play.asked == First((verdict, second))
    assert play((verdict, digit(7))) == Accept(TRACE, ONE.segment, 7.0)
    # The second draft runs on: it stands on what was accepted.
    assert play(AFTER_ONE) == First((second,))
    play((second, TWO))
    (judge, drafting), _ = play.begins()
    assert judge.transcript == AFTER_TWO
    assert drafting == Generate("small", AFTER_TWO, SPAN)


def test_a_reject_cancels_what_was_built_on_it() -> None:
    play = Play(Lookahead(depth=3, threshold=7))
    _, first = begins(play)
    play((first, ONE))
    _, (verdict, second) = play.begins()
    play((second, TWO))
    _, (later, third) = play.begins()
    cancelled = [play((verdict, digit(6)))]
    cancelled.append(play(None))
    assert cancelled == [Cancel(third), Cancel(later)]
    assert play(None) == Reject(ONE.segment, 6.0)
    assert play(None) == Write("large", TRACE, SPAN)
    written = TRACE.extend(step("large", "own.\n\n"))
    assert play(written) == Start(Generate("small", written, SPAN))


def test_verdicts_may_come_in_any_order_but_steps_do_not() -> None:
    play = Play(Lookahead(depth=2))
    _, first = begins(play)
    play((first, ONE))
    _, (verdict, second) = play.begins()
    play((second, TWO))
    _, later = begins(play)
    assert play((later, digit(9))) == First((verdict,))
    assert play((verdict, digit(9))) == Accept(TRACE, ONE.segment, 9.0)
    play(AFTER_ONE)
    begun, _ = play.begins()
    assert begun == [Generate("small", AFTER_TWO, SPAN)]
    assert play.asked == Accept(AFTER_ONE, TWO.segment, 9.0)


def test_with_depth_one_nothing_runs_ahead() -> None:
    play = Play(Lookahead(depth=1))
    _, first = begins(play)
    play((first, ONE))
    judge, verdict = begins(play)
    assert isinstance(judge, Classify)
    assert play.asked == First((verdict,))


@pytest.mark.parametrize("finish", ["think_end", "eos"])
def test_nothing_is_drafted_beyond_the_end_of_the_thought(finish: Any) -> None:
    play = Play(Lookahead(depth=4))
    _, first = begins(play)
    closing = draft("so 4.", finish)
    play((first, closing))
    judge, verdict = begins(play)
    assert isinstance(judge, Classify)
    assert play((verdict, digit(9))) == Accept(TRACE, closing.segment, 9.0)
    assert isinstance(play(replace(TRACE, closed=True)), Write)


@pytest.mark.parametrize("text", ["", "\n\n"])
def test_a_blank_draft_is_not_worth_a_question(text: str) -> None:
    play = Play(Lookahead(depth=4, threshold=0))
    _, first = begins(play)
    blank = draft(text)
    assert play((first, blank)) == Reject(blank.segment, None)
    assert isinstance(play(None), Write)


@pytest.mark.parametrize("error", [GONE, ContextLengthExceeded("full")])
def test_a_worker_that_dies_among_the_jobs(error: Exception) -> None:
    play = Play(Lookahead(depth=3))
    _, first = begins(play)
    play((first, ONE))
    _, (verdict, second) = play.begins()
    assert play(error) == Cancel(second)
    assert play(None) == Cancel(verdict)
    assert play(None) == Write("large", TRACE, SPAN)


def test_a_dead_large_worker_ends_it() -> None:
    play = Play(Lookahead())
    begins(play)
    play(GONE)
    play(None)
    assert isinstance(play.asked, Write)
    with pytest.raises(WorkerUnavailable):
        play(GONE)


def test_a_pair_that_cannot_judge_so_is_told() -> None:
    play = Play(Lookahead())
    begins(play)
    with pytest.raises(Unsupported):
        play(Unsupported("another vocabulary"))


def equivalence(**parameters: Any) -> tuple[Play, list[Any]]:
    play = Play(Lookahead(verifier="equivalence", depth=1, **parameters))
    begun, (large, small) = play.begins()
    assert begun == [Generate("large", TRACE, SPAN), Generate("small", TRACE, SPAN)]
    return play, [small, large]


def test_equal_steps_need_no_judge() -> None:
    play, (small, large) = equivalence()
    play((small, draft("Two plus two\n\n")))
    accept = play((large, own("two  plus TWO\n\n")))
    assert accept == Accept(TRACE, step("small", "Two plus two\n\n"), 9.0)


@pytest.mark.parametrize("worker", ["large", "small"])
@pytest.mark.parametrize(("sure", "kept"), [("1", True), ("0", False)])
def test_the_judge_says_whether_two_steps_mean_the_same(worker: Any, sure: str, kept: bool) -> None:
    play, (small, large) = equivalence(compared_by=worker)
    other = own("two of two.\n\n")
    play((large, other))
    play((small, ONE))
    question, verdict = begins(play)
    assert isinstance(question, Classify)
    assert (question.worker, question.transcript, question.labels) == (worker, TRACE, LABELS)
    assert "First: one.\n\nSecond: two of two.\n\n" in question.turns[0].content
    answer = play((verdict, law(LABELS, sure)))
    if kept:
        assert answer == Accept(TRACE, ONE.segment, 9.0)
    else:
        assert answer == Reject(ONE.segment, 0.0)
        assert play(None) == Accept(TRACE, other.segment)  # at once: it has been written


@pytest.mark.parametrize(
    ("reply", "same_at", "kept"),
    [
        (Classification(LABELS, (0.5, 0.5)), 0.5, True),
        (Classification(LABELS, (0.51, 0.49)), 0.5, False),
        (Classification(LABELS, (0.0, 1.0), 0.6), 0.5, False),
        (Classification(LABELS, (1.0, 0.0)), 0.0, True),
    ],
)
def test_from_which_probability_on(reply: Any, same_at: float, kept: bool) -> None:
    play, (small, large) = equivalence(same_at=same_at)
    play((small, ONE))
    play((large, own("two.\n\n")))
    _, verdict = begins(play)
    assert isinstance(play((verdict, reply)), Accept if kept else Reject)


def test_steps_of_which_one_ends_the_thought_are_not_the_same() -> None:
    play, (small, large) = equivalence()
    ending = draft("one.\n\n", "think_end")
    play((small, ending))
    other = own("one.\n\n")
    assert play((large, other)) == Reject(ending.segment, None)
    assert play(None) == Accept(TRACE, other.segment)


def test_a_blank_step_of_the_large_models_own_is_written_anew() -> None:
    play, (small, large) = equivalence()
    play((small, ONE))
    assert play((large, own("\n\n"))) == Reject(ONE.segment, None)
    assert play(None) == Write("large", TRACE, SPAN)


def test_what_steps_ahead_may_take_delays_the_next_one() -> None:
    play = Play(Lookahead(verifier="equivalence"))
    _, (large, small) = play.begins()
    following = Start(Generate("large", AFTER_ONE, SPAN))
    assert play((small, ONE)) == following
    assert play(Spent("spent")) == First((large,))
    assert play((large, own("one.\n\n"))) == following  # which has left some
    assert play(Job(7)) == Start(Generate("small", AFTER_ONE, SPAN))
    assert play(Job(8)) == Accept(TRACE, ONE.segment, 9.0)


def test_once_all_is_spent_the_rest_is_written() -> None:
    play = Play(Lookahead(verifier="equivalence"))
    assert play.first == Start(Generate("large", TRACE, SPAN))
    assert play(Spent("spent")) == Write("large", TRACE, SPAN)


@pytest.mark.parametrize("verifier", ["judge", "equivalence"])
def test_its_width_is_how_many_calls_run_at_once(verifier: Any) -> None:
    policy = Lookahead(depth=3, verifier=verifier)
    play, drafts = Play(policy), iter((ONE, TWO, THREE))
    running: dict[Any, Any] = {}
    most = 0
    while True:
        begun, jobs = play.begins()
        running |= zip(jobs, begun, strict=True)
        most = max(most, len(running))
        drafting = [job for job, call in running.items() if call.worker == "small"]
        if not drafting:
            break
        del running[drafting[0]]
        play((drafting[0], next(drafts)))
    assert most == policy.width


@pytest.mark.parametrize(
    ("name", "value"),
    [("depth", 0), ("depth", 33), ("verifier", "x"), ("same_at", 1.1), ("compared_by", "me")],
)
def test_bad_parameters_are_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        Lookahead(**{name: value})
    assert caught.value.errors()[0]["loc"] == (name,)


# With everything really side by side ---------------------------------------------------------

QUESTION = (Message("user", "what is 2+2+2?"),)
SMALL = ("2+2 is 5.\n\nand 2 more is 7.\n\nso it is 7.", "It is seven.")
LARGE = ("2+2 is 4.\n\nand 2 more is 6.\n\nso it is 6.", "It is six.")
BOTH = ("2+2 is 4.\n\nand 2 more is 7.\n\nso it is 6.", "It is six.")
JUDGES: Any = {"judge": {}, "equivalence": {"verifier": "equivalence"}}


def start(policy: Policy, workers: Any, limits: Limits | None = None) -> Any:
    return solve(
        policy, QUESTION, workers, request="r", sampling=Sampling(), limits=limits or Limits()
    )


async def run(
    policy: Policy, small: Scripted, large: Scripted
) -> tuple[list[Event], RequestCompleted]:
    events = [event async for event in start(policy, {"small": small, "large": large})]
    ended = events[-1]
    assert isinstance(ended, RequestCompleted)
    assert (small.live, large.live) == (0, 0)
    return events, ended


def good(transcript: Transcript) -> float:
    return 9.0 if "5" not in transcript.text and "7" not in transcript.text else 1.0


def never_same(transcript: Transcript) -> Classification:
    return Classification(LABELS, (1.0, 0.0))


@pytest.mark.asyncio
@pytest.mark.parametrize("depth", [1, 2, 6])
async def test_it_comes_to_what_specreason_comes_to(depth: int) -> None:
    outcomes = []
    for policy in (SpecReason(), Lookahead(depth=depth)):
        small, large = Scripted(story=BOTH, delay=0.001), Scripted(story=LARGE, scores=good)
        _, ended = await run(policy, small, large)
        outcomes.append([(s.author, s.text) for s in ended.transcript.thought])
    assert outcomes[0] == outcomes[1]
    assert [author for author, _ in outcomes[0]] == ["small", "large", "small"]


@pytest.mark.asyncio
@pytest.mark.parametrize("same_pair", [True, False])
async def test_equivalence_says_what_the_large_model_says(same_pair: bool) -> None:
    small = Scripted(story=LARGE if same_pair else BOTH, delay=0.001)
    large = Scripted(story=LARGE, scores=never_same, delay=0.002)
    _, ended = await run(Lookahead(verifier="equivalence"), small, large)
    assert (ended.transcript.text, ended.transcript.answer[0].text) == LARGE
    authors = [segment.author for segment in ended.transcript.thought]
    assert authors == (["small"] * 3 if same_pair else ["small", "large", "small"])


@pytest.mark.asyncio
@pytest.mark.parametrize("threshold", [0.0, 9.5])
async def test_the_ends_of_the_scale(threshold: float) -> None:
    small, large = Scripted(story=SMALL), Scripted(story=LARGE, scores=(9,))
    _, ended = await run(Lookahead(threshold=threshold), small, large)
    assert ended.transcript.text == (SMALL if threshold == 0 else LARGE)[0]


@pytest.mark.asyncio
@pytest.mark.parametrize("verifier", list(JUDGES))
@pytest.mark.parametrize("number", range(6))
async def test_one_call_that_dies_costs_nobody_the_answer(verifier: str, number: int) -> None:
    before = len(asyncio.all_tasks())
    policy = Lookahead(depth=3, **JUDGES[verifier])
    for name in ("small", "large"):
        failures = {name: {"failures": {number: GONE}}}
        small = Scripted(story=BOTH, delay=0.001, **failures.get("small", {}))
        large = Scripted(story=LARGE, delay=0.001, scores=good, **failures.get("large", {}))
        try:
            _, ended = await run(policy, small, large)
            assert ended.transcript.done
        except WorkerUnavailable:
            assert name == "large"  # it was writing, and there is nobody to stand in
        assert (small.live, large.live) == (0, 0)
        assert len(asyncio.all_tasks()) == before


@pytest.mark.asyncio
async def test_hanging_up_leaves_nothing_running() -> None:
    before = len(asyncio.all_tasks())
    small = Scripted(story=LARGE, delay=0.001)
    large = Scripted(story=LARGE, delay=0.02)
    async with aclosing(start(Lookahead(), {"small": small, "large": large})) as events:
        async for event in events:
            if isinstance(event, TextDelta):
                break
    assert (small.live, large.live) == (0, 0)
    assert len(asyncio.all_tasks()) == before


@pytest.mark.asyncio
@pytest.mark.parametrize("verifier", list(JUDGES))
async def test_a_replay_gives_the_same_events(verifier: str) -> None:
    policy = Lookahead(depth=3, **JUDGES[verifier])
    small = Scripted(story=BOTH, delay=0.001)
    large = Scripted(story=LARGE, delay=0.001, scores=good)
    events, ended = await run(policy, small, large)
    kept = tuple(event for event in events if not isinstance(event, TextDelta))
    recording = loads(dumps(Recording(RecordedRequest("r", "lookahead", QUESTION), kept)))
    heard = [event for event in replay(recording, policy) if not isinstance(event, TextDelta)]
    assert tuple(heard) == kept
    assert ended.metrics.discarded_tokens > 0


@pytest.mark.asyncio
@pytest.mark.parametrize("verifier", list(JUDGES))
@pytest.mark.parametrize("budget", [1, 4, 7])
async def test_the_budget_holds_for_what_is_ahead_too(verifier: str, budget: int) -> None:
    policy = Lookahead(depth=6, budget=budget, **JUDGES[verifier])
    large = Scripted(story=LARGE, scores=(9,))
    events, ended = await run(policy, Scripted(story=LARGE), large)
    assert ended.transcript.thought.tokens <= budget
    assert (ended.transcript.forced, ended.transcript.done) == (True, True)
    cancelled = [
        e for e in events if isinstance(e, ActionCompleted) and isinstance(e.action, Cancel)
    ]
    assert len(cancelled) <= 12


@pytest.mark.asyncio
async def test_a_thought_that_never_ends_is_cut_by_the_budget() -> None:
    def on_and_on(transcript: Transcript, criteria: StopCriteria) -> Say:
        return Say(
            "done" if transcript.closed else f"step {len(transcript.thought)} of many\n\n more"
        )

    large = Scripted(on_and_on, scores=(9,))
    _, ended = await run(Lookahead(budget=60), Scripted(on_and_on), large)
    assert (ended.transcript.forced, ended.transcript.thought.tokens) == (True, 60)


@pytest.mark.asyncio
async def test_a_model_in_circles_is_stopped() -> None:
    def circles(transcript: Transcript, criteria: StopCriteria) -> Say:
        return Say("done." if transcript.closed else "again\n\n more")

    large = Scripted(circles, scores=(9,))
    _, ended = await run(Lookahead(), Scripted(circles), large)
    assert (ended.transcript.text.split(), ended.transcript.forced) == (["again", "again"], True)
