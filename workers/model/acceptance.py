"""What speculation drafted and what the model accepted of it, by position, under any engine."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Final

POSITIONS: Final = 16
"""Positions after the newest token that are counted one by one; drafts are hardly ever longer."""


class Acceptance:
    """Counts of a worker since its start.

    A position counts as drafted once a round, however many branches of a draft reach it, so
    accepted over drafted is the acceptance rate there.
    """

    def __init__(self) -> None:
        self._drafted = self._accepted = 0
        self._drafted_at, self._accepted_at = [0] * POSITIONS, [0] * POSITIONS

    def count(self, drafted: int, depth: int, accepted: int) -> None:
        """One round of one sequence.

        Args:
            drafted: tokens of the draft, in all of its branches.
            depth: positions that the draft reaches.
            accepted: how many of them the model accepted.
        """
        self._drafted += drafted
        self._accepted += accepted
        for position in range(min(depth, POSITIONS)):
            self._drafted_at[position] += 1
            self._accepted_at[position] += position < accepted

    def add(
        self, drafted: int, accepted: int, drafted_at: Sequence[int], accepted_at: Sequence[int]
    ) -> None:
        """Add counts that were added up elsewhere; those by position begin at the first."""
        self._drafted += drafted
        self._accepted += accepted
        for counts, more in ((self._drafted_at, drafted_at), (self._accepted_at, accepted_at)):
            for position, count in enumerate(more[:POSITIONS]):
                counts[position] += count

    def stats(self) -> dict[str, int]:
        """`drafted_tokens`, `accepted_tokens`, and `drafted_at_N`, `accepted_at_N` from 1 on."""
        by_position = chain.from_iterable(
            ((f"drafted_at_{n}", drafted), (f"accepted_at_{n}", accepted))
            for n, (drafted, accepted) in enumerate(
                zip(self._drafted_at, self._accepted_at, strict=True), start=1
            )
            if drafted
        )
        tokens = {"drafted_tokens": self._drafted, "accepted_tokens": self._accepted}
        return tokens | dict(by_position)
