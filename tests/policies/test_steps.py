"""When a thought goes in circles."""

from __future__ import annotations

import pytest

from orchestrator.types import Message, Segment, Trace
from policies.steps import stuck


def thought(steps: str) -> Trace:
    """A thought of one-letter steps; a blank stands for a step that says nothing."""
    question = (Message("user", "?"),)
    return Trace(question, tuple(Segment("small", f"{step}\n\n") for step in steps))


@pytest.mark.parametrize("steps", ["aa", "baa", "abab", "xabcabc", "abcdabcd", "  ", "a  "])
def test_a_circle_of_up_to_four_steps_is_noticed(steps: str) -> None:
    assert stuck(thought(steps))


@pytest.mark.parametrize("steps", ["", "a", "ab", "aba", "aab", "abac", "abcab", "abcdeabcde"])
def test_what_is_no_circle_goes_on(steps: str) -> None:
    assert not stuck(thought(steps))
