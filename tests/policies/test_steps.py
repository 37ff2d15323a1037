"""When a thought goes in circles, and which of its segments are steps."""

from __future__ import annotations

import pytest

from orchestrator.loop.events import RequestCompleted
from orchestrator.loop.request import Request
from orchestrator.loop.solve import solve
from orchestrator.types import Message, Segment, Segments, Transcript
from policies import POLICIES
from policies.steps import COMPARED, _last_steps, repeats
from tests.workers.scripted import Scripted


def thought(steps: str) -> Transcript:
    """A thought of one-letter steps; a blank stands for a step that says nothing."""
    question = (Message("user", "?"),)
    return Transcript(question, Segments(Segment("small", f"{step}\n\n") for step in steps))


def written(*segments: str) -> Transcript:
    question = (Message("user", "?"),)
    return Transcript(question, Segments(Segment("small", text) for text in segments))


@pytest.mark.parametrize("steps", ["aa", "baa", "abab", "xabcabc", "abcdabcd", "  ", "a  "])
def test_a_circle_of_up_to_four_steps_is_noticed(steps: str) -> None:
    assert repeats(thought(steps))


@pytest.mark.parametrize("steps", ["", "a", "ab", "aba", "aab", "abac", "abcab", "abcdeabcde"])
def test_what_is_no_circle_goes_on(steps: str) -> None:
    assert not repeats(thought(steps))


def test_steps_are_those_of_the_text_not_the_segments_it_came_in() -> None:
    assert not repeats(written("1", "0", "0"))  # one step, cut at every token
    assert not repeats(written("a\n\n", "a"))  # the second may go on differently
    assert not repeats(written("=1", "2", "1", "2"))
    assert repeats(written("Wa", "it.\n\n", "Wait.", "\n\n"))
    assert repeats(written("a\n\nb\n\na\n\nb\n\n"))


def test_of_a_thought_without_steps_only_the_end_is_looked_at() -> None:
    line = "x" * 99 + "\n"
    endless = written(*[line] * 2000)
    assert not repeats(endless)
    assert _last_steps(endless, 8) == ""
    begun = written(*[line] * 2000, "\n\n", *["a\n\n"] * 2)
    assert repeats(begun)
    assert len(_last_steps(begun, 8)) <= COMPARED


@pytest.mark.parametrize(
    "name", [name for name, policy in POLICIES.items() if "first_n" in policy.model_fields]
)
async def test_a_text_that_is_gone_on_with_is_none_of_the_first_steps(name: str) -> None:
    begun = (Message("user", "2+2?"), Message("assistant", "It is"))
    both = Scripted(story=("", "It is four.\n\nSo four."), thinks=False)
    policy = POLICIES[name](first_n=1)  # type: ignore[call-arg]
    events = solve(policy, Request("r", begun), {"small": both, "large": both})
    *_, ended = [event async for event in events]
    assert isinstance(ended, RequestCompleted)
    assert (ended.steps[0].author, ended.steps[0].text) == ("large", " four.\n\n")
