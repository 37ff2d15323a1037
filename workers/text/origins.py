"""Records which tokens of a generation are accepted drafts and which the model's own choices."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.types import Provenance


class Origins:
    """The drafts of one generation's rounds, after `plain` tokens that were not drafted."""

    def __init__(self, plain: int) -> None:
        self._letters = ["-" * plain]
        self._count = plain
        self._rejected: list[tuple[int, Sequence[int]]] = []
        self._drafted_at: list[int] = []
        self._accepted_at: list[int] = []

    def add(self, depth: int, accepted: int, rejected: Sequence[int]) -> None:
        """Add a round: the levels of its draft, how many drafted tokens were accepted before one of
        the model's own, and the ids that were drafted in the place of that."""
        if rejected:
            self._rejected.append((self._count + accepted, rejected))
        self._letters.append("a" * accepted + ("r" if rejected else "b" if depth else "-"))
        self._count += accepted + 1
        missing = [0] * (depth - len(self._drafted_at))
        self._drafted_at += missing
        self._accepted_at += missing
        for position in range(depth):
            self._drafted_at[position] += 1
            self._accepted_at[position] += position < accepted

    def provenance(
        self, lengths: tuple[int, ...], cut_at: int | None, pieces: Sequence[bytes]
    ) -> Provenance:
        """Return the provenance of the text's tokens, of which each has `lengths` characters; those
        from `cut_at` on were encoded again. `pieces` are the bytes of each token id."""
        known = len(lengths) if cut_at is None else cut_at
        rejected = (
            (place, tuple(pieces[token].decode("utf-8", "replace") for token in ids))
            for place, ids in self._rejected
            if place < known
        )
        return Provenance(
            "".join(self._letters)[:known] + "?" * (len(lengths) - known),
            lengths,
            tuple(rejected),
            tuple(self._drafted_at),
            tuple(self._accepted_at),
        )
