"""What lookup copies from a text."""

from __future__ import annotations

from typing import Any

from deploy.lab.pair.generation import generate
from tests.workers.speculation.loops import decoder
from workers.speculation.lookup import Lookup


def looked_up(ids: list[int], room: int = 6, **options: Any) -> list[int]:
    method = decoder("lookup", options).method
    assert isinstance(method, Lookup)
    return [ord(c) for c in method.continuation("".join(map(chr, ids)), room)]


def test_lookup_copies_what_followed_the_longest_match() -> None:
    text = [1, 2, 3, 50, 2, 3, 60, 9, 1, 2, 3]
    assert looked_up(text, 2) == [50, 2]
    assert looked_up(text, 2, longest=2) == [60, 9]  # the latest place of the last two tokens
    assert looked_up(text, 4, longest=2, per_match=0.5) == [60]
    assert looked_up(text, 0) == []
    assert looked_up([1, 2, 3]) == looked_up([7]) == looked_up(text, shortest=4) == []


def test_lookup_repeats_a_period() -> None:
    assert looked_up([9, 4, 5, 4, 5, 4]) == [5, 4, 5, 4, 5, 4]
    assert looked_up([3, 3], 3) == [3, 3, 3]


def test_lookup_follows_a_text_that_repeats_itself() -> None:
    loop = decoder("lookup", slots=1, max_len=256, layers=1)
    tokens = generate(loop, [[5, 9, 2, 7]], 120)[0]
    assert len(set(tokens[-40:])) < 20, "this model repeats itself; otherwise choose another seed"
    assert loop.target.passes < 100
