"""What speculation drafted and what the model accepted of it, by position, under any engine."""

from __future__ import annotations

from collections.abc import Sequence
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
        self._at = [[0, 0] for _ in range(POSITIONS)]  # drafted and accepted, by position

    def count(self, drafted: int, depth: int, accepted: int) -> None:
        """Count a round: `drafted` tokens in all branches, which reach `depth` positions."""
        self.add(drafted, accepted, [1] * depth, [1] * accepted)

    def add(
        self, drafted: int, accepted: int, drafted_at: Sequence[int], accepted_at: Sequence[int]
    ) -> None:
        """Add counts; those by position begin at the first."""
        self._drafted += drafted
        self._accepted += accepted
        for kind, counts in enumerate((drafted_at, accepted_at)):
            for position, count in enumerate(counts[:POSITIONS]):
                self._at[position][kind] += count

    def stats(self) -> dict[str, int]:
        """`drafted_tokens`, `accepted_tokens`, and `drafted_at_N`, `accepted_at_N` from 1 on."""
        counts = {"drafted_tokens": self._drafted, "accepted_tokens": self._accepted}
        for n, (drafted, accepted) in enumerate(self._at, start=1):
            if drafted:
                counts |= {f"drafted_at_{n}": drafted, f"accepted_at_{n}": accepted}
        return counts
