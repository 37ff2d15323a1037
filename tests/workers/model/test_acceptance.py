"""Drafted and accepted tokens by position, counted round by round and added up elsewhere."""

from __future__ import annotations

from workers.model.acceptance import POSITIONS, Acceptance
from workers.model.tree import Tree


def test_a_position_counts_once_a_round() -> None:
    counted = Acceptance()
    counted.count(drafted=3, depth=3, accepted=1)
    counted.count(drafted=6, depth=2, accepted=2)  # a tree of three branches
    assert counted.stats() == {
        "drafted_tokens": 9, "accepted_tokens": 3,
        "drafted_at_1": 2, "accepted_at_1": 2,
        "drafted_at_2": 2, "accepted_at_2": 1,
        "drafted_at_3": 1, "accepted_at_3": 0,
    }  # fmt: skip


def test_sums_of_others_are_the_same_counts() -> None:
    counted, added = Acceptance(), Acceptance()
    counted.count(3, 3, 1)
    counted.count(2, 2, 2)
    added.add(5, 3, [2, 2, 1], [2, 1, 0])
    assert added.stats() == counted.stats()


def test_nothing_drafted_has_no_positions_and_long_drafts_end_at_the_last() -> None:
    counted = Acceptance()
    assert counted.stats() == {"drafted_tokens": 0, "accepted_tokens": 0}
    counted.count(POSITIONS + 4, POSITIONS + 4, POSITIONS + 2)
    counted.add(POSITIONS + 1, 0, [1] * (POSITIONS + 1), [0] * (POSITIONS + 1))
    stats = counted.stats()
    assert stats["accepted_tokens"] == POSITIONS + 2
    assert stats[f"drafted_at_{POSITIONS}"] == 2
    assert f"drafted_at_{POSITIONS + 1}" not in stats


def test_the_depth_of_a_draft_is_that_of_its_longest_branch() -> None:
    assert Tree([7], [-1]).depth == 0
    assert Tree.chain([7, 8, 9]).depth == 2
    assert Tree([7, 8, 9, 4, 5], [-1, 0, 0, 1, 3]).depth == 3
