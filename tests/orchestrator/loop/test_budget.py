"""The caps, how a segment ends a phase, and which end of a thought makes room for an answer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.loop.actions import Script, Write
from orchestrator.loop.budget import NUDGE, Budget, spent
from orchestrator.loop.events import ActionCompleted
from orchestrator.loop.policy import Policy
from orchestrator.loop.policy_runner import PolicyRunner
from orchestrator.types import (
    Constraint,
    Finish,
    Generation,
    Limits,
    Message,
    Segment,
    Segments,
    StopCriteria,
    Transcript,
    Usage,
)
from policies.single import LargeOnly

QUESTION = Transcript((Message("user", "2+2?"),))
ANSWERING = replace(QUESTION, closed=True)


def said(tokens: int, finish: Finish = "until") -> Segment:
    return Segment("small", "x" * tokens, tuple(range(tokens)), finish=finish)


def caps(total: int = 100, thought: int | None = 40, reserve: int = 0, **limits: Any) -> Budget:
    policy = LargeOnly(budget=thought, answer_reserve=reserve)
    return Budget(policy, Limits(total, **limits))


@pytest.mark.parametrize(
    ("max_tokens", "own", "thought", "reserve"),
    [
        (2048, None, 2048, 64),
        (2048, 100, 100, 64),
        (2048, 3000, 2048, 64),
        (100, 90, 90, 50),  # half of a small max_tokens at most
        (1, None, 1, 0),
        (2048, 1, 1, 64),
    ],
)
def test_caps(max_tokens: int, own: int | None, thought: int, reserve: int) -> None:
    budget = caps(max_tokens, own, reserve=64)
    assert (budget.total, budget.thought, budget.reserve) == (max_tokens, thought, reserve)


def test_criteria_are_clipped_to_what_is_left() -> None:
    budget = caps()
    thinking = budget.commit(QUESTION, said(30))
    assert budget.clip(thinking, StopCriteria(512)).max_tokens == 10
    assert budget.clip(thinking, StopCriteria(5)).max_tokens == 5
    answering = budget.close(thinking)
    assert budget.clip(answering, StopCriteria(512)).max_tokens == 69  # its end is a token too
    assert budget.clip(budget.commit(answering, said(60)), StopCriteria(512)).max_tokens == 9


def test_the_callers_stop_strings_hold_in_the_answer_only() -> None:
    budget = caps(stop=("END",))
    assert budget.clip(QUESTION, StopCriteria(9)).stop == ()
    assert budget.clip(ANSWERING, StopCriteria(9, stop=("a",))).stop == ("a", "END")


@pytest.mark.parametrize("finish", ["think_end", "eos"])
def test_a_model_that_ends_its_thought_closes_it(finish: Finish) -> None:
    after = caps().commit(QUESTION, said(3, finish))
    assert (after.closed, after.forced, after.done) == (True, False, False)


@pytest.mark.parametrize("finish", ["until", "stop", "length", "doubt"])
def test_other_ends_go_on_thinking(finish: Finish) -> None:
    assert not caps().commit(QUESTION, said(3, finish)).closed


def test_the_thought_is_forced_shut_at_its_cap() -> None:
    after = caps().commit(QUESTION, said(40, "length"))
    assert (after.closed, after.forced, after.done) == (True, True, False)


def test_a_model_that_closes_right_at_the_cap_was_not_forced() -> None:
    assert not caps().commit(QUESTION, said(40, "think_end")).forced


@pytest.mark.parametrize(
    ("finish", "done", "reason"),
    [
        ("eos", True, "stop"),
        ("stop", True, "stop"),
        ("think_end", True, "stop"),
        ("until", False, "stop"),
        ("length", False, "stop"),  # a policy's own cap, with tokens left
    ],
)
def test_how_an_answer_ends(finish: Finish, done: bool, reason: str) -> None:
    after = caps().commit(ANSWERING, said(3, finish), allowed=3)
    assert (after.done, after.finish) == (done, reason)
    cut = caps().commit(ANSWERING, said(100, "length"))
    assert (cut.done, cut.finish) == (True, "length")


@pytest.mark.parametrize(
    ("finish", "ends"), [("eos", 1), ("think_end", 1), ("stop", 0), ("length", 0)]
)
def test_an_end_counts_where_a_model_wrote_it(finish: Finish, ends: int) -> None:
    budget = caps()
    assert spent(budget.commit(ANSWERING, said(3, finish))) == 3 + ends
    forced = budget.close(QUESTION, forced=True, finish="length")
    assert spent(budget.commit(forced, said(3, finish))) == 3 + ends


def test_a_thought_that_goes_on_behind_a_forced_close_is_no_answer() -> None:
    budget = caps()
    forced = budget.commit(QUESTION, said(40, "length"))
    after = budget.commit(forced, said(5, "think_end"))
    assert (after.done, after.closed, after.forced) == (False, True, True)
    assert (after.reply, after.begins_answer, after.thought.tokens) == ("", True, 40)
    assert spent(after) == 40 + 5 + 1  # the marker is a token too
    ended = budget.commit(after, said(2, "eos"))
    assert (ended.reply, ended.done, ended.finish) == ("xx", True, "stop")
    assert spent(ended) == 40 + 5 + 1 + 2 + 1


def test_a_thought_that_goes_on_is_held_to_max_tokens() -> None:
    budget = caps(50)
    forced = budget.commit(QUESTION, said(40, "length"))
    after = budget.commit(forced, said(9, "think_end"))
    assert (after.done, after.finish, spent(after)) == (True, "length", 50)


@pytest.mark.parametrize("closed", [ANSWERING, replace(ANSWERING, forced=True)])
def test_a_second_close_before_anything_else_leaves_the_answer_to_come(closed: Transcript) -> None:
    budget = caps()
    closed = replace(closed, thought=Segments([said(3)]))
    after = budget.commit(closed, said(0, "think_end"))
    assert (after.done, after.reply_start, after.reply) == (False, 1, "")
    again = budget.commit(after, said(0, "think_end"))  # and nothing between the two
    assert (again.last is NUDGE, again.reply) == (True, NUDGE.text)
    whole = budget.commit(budget.commit(after, said(2)), said(2, "think_end"))
    assert (whole.reply, whole.done) == (("", False) if closed.forced else ("xxxx", True))


@pytest.mark.parametrize("transcript", [QUESTION, ANSWERING])
def test_a_length_short_of_what_was_allowed_is_a_full_context(transcript: Transcript) -> None:
    budget = caps()
    for segment, allowed in [(said(3, "length"), 20), (said(0, "length"), None)]:
        after = budget.commit(transcript, segment, allowed)
        assert after.closed
        assert after.done == transcript.closed


def test_nothing_left_to_answer_with_is_done() -> None:
    after = caps(1).commit(QUESTION, said(1))
    assert (after.closed, after.forced, after.done, after.finish) == (True, True, True, "length")


@pytest.mark.parametrize(
    ("constraint", "nudged"),
    [(None, True), (Constraint("tools", "{}"), True), (Constraint("regex", "(six)?"), False)],
)
def test_an_answer_that_must_match_a_form_is_not_begun_for_the_model(
    constraint: Constraint | None, nudged: bool
) -> None:
    budget = caps(constraint=constraint)
    thought = budget.commit(QUESTION, said(3, "think_end"))
    after = budget.commit(thought, said(0, "eos"))
    assert (after.last is NUDGE, after.done) == (nudged, not nudged)


def test_empty_segments_leave_no_mark() -> None:
    after = caps().commit(QUESTION, said(0, "think_end"))
    assert after.closed
    assert after.thought == ()


@pytest.mark.parametrize(("made", "full"), [(3, False), (2, True)])
def test_half_a_character_at_the_end_is_no_full_context(made: int, full: bool) -> None:
    class Three(Policy):
        def solve(self, transcript: Transcript) -> Script[None]:
            yield from Write("large", transcript, StopCriteria(3))

    runner = PolicyRunner(Three(), QUESTION.messages, Limits())
    action = runner.next_action()
    assert action is not None
    list(
        runner.on_result(
            ActionCompleted(action, Generation(said(2, "length"), Usage(generated=made)), 1.0)
        )
    )
    assert runner.transcript.closed is full


@pytest.mark.parametrize(
    ("max_tokens", "own", "begins"),
    [
        (2048, None, 1984),
        (2048, 1900, 1900),  # it leaves enough for an answer anyway
        (2048, 2047, 1984),
        (100, 90, 50),
        (1, None, 1),
    ],
)
def test_the_end_of_a_thought_may_be_given_up(
    max_tokens: int, own: int | None, begins: int
) -> None:
    budget = caps(max_tokens, own, reserve=64)
    assert budget.held_from == begins
    near = QUESTION.extend(said(begins - 1))
    at = QUESTION.extend(said(begins))
    left = budget.thought - begins
    assert budget.certain(near, left + 1) == 1
    assert budget.certain(at, left) == 0
    assert budget.certain(budget.close(at), 5) == 5
    assert budget.holds(at) is (left > 0)
    assert not budget.holds(near)
    assert budget.overruns(at, left) is (left > 0)
    assert not budget.overruns(at, left - 1)
