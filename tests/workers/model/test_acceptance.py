"""Drafted and accepted tokens by position, counted round by round and added up elsewhere."""

from __future__ import annotations

from workers.model.acceptance import POSITIONS, Acceptance
from workers.model.tree import Tree


def test_a_position_counts_once_a_round() -> None:
    counted, added = Acceptance(), Acceptance()
    assert counted.stats() == {"drafted_tokens": 0, "accepted_tokens": 0}
    counted.count(drafted=3, depth=3, accepted=1)
    counted.count(drafted=6, depth=2, accepted=2)  # a tree of three branches
    assert counted.stats() == {
        "drafted_tokens": 9, "accepted_tokens": 3,
        "drafted_at_1": 2, "accepted_at_1": 2,
        "drafted_at_2": 2, "accepted_at_2": 1,
        "drafted_at_3": 1, "accepted_at_3": 0,
    }  # fmt: skip
    added.add(9, 3, [2, 2, 1], [2, 1, 0])
    assert added.stats() == counted.stats()


def test_long_drafts_end_at_the_last_position() -> None:
    counted = Acceptance()
    counted.count(POSITIONS + 4, POSITIONS + 4, POSITIONS + 2)
    counted.add(POSITIONS + 1, 0, [1] * (POSITIONS + 1), [0] * (POSITIONS + 1))
    stats = counted.stats()
    assert stats["accepted_tokens"] == POSITIONS + 2
    assert stats[f"drafted_at_{POSITIONS}"] == 2
    assert f"drafted_at_{POSITIONS + 1}" not in stats


def test_the_depth_of_a_draft_is_that_of_its_longest_branch() -> None:
    trees = Tree([7], [-1]), Tree.chain([7, 8, 9]), Tree([7, 8, 9, 4, 5], [-1, 0, 0, 1, 3])
    assert [tree.depth for tree in trees] == [0, 2, 3]
