"""Where the tokens of one generation came from: accepted drafts, or the model's own choices."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.types import Provenance


class Origins:
    """What the rounds of one generation drafted, and what became of it.

    Args:
        plain: tokens that were made before anything was drafted.
    """

    def __init__(self, plain: int) -> None:
        self._letters = ["-" * plain]
        self._count = plain
        self._rejected: list[tuple[int, Sequence[int]]] = []
        self._drafted_at: list[int] = []
        self._accepted_at: list[int] = []

    def add(self, depth: int, accepted: int, rejected: Sequence[int]) -> None:
        """One round.

        Args:
            depth: positions that its draft reached; 0 where there was none.
            accepted: drafted tokens that were accepted; one more of the model's own followed.
            rejected: the ids that were drafted in the place of that one.
        """
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
        """All of it, for the tokens that the text has.

        Args:
            lengths: the characters of each token that is in the text.
            cut_at: the first of them, if any, that the model did not make as it is.
            pieces: bytes of each token id.
        """
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
