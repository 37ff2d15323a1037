"""Drafts copied from the text itself, after an earlier occurrence of its end; no draft model.

Prompt lookup (Saxena 2023, as in transformers' assisted generation) searches for the last few
tokens and copies what followed them. Suffix matching (SuffixDecoding, Oliaro et al. 2411.04975)
searches for the longest end of the text that occurs earlier, and drafts more the longer it is. A
draft is a function of the text, so sampled rows draw from the target (`rejection.target_only`).
"""

from __future__ import annotations

from collections.abc import Sequence

from workers.model.target import ModelOutput, Target
from workers.model.tree import Accepted, Plan, Row, Tree
from workers.speculation.drafter import LoadModel
from workers.speculation.method import Method
from workers.speculation.parameters import at_least, tree_size


class Lookup(Method):
    """Copies at most `gamma` tokens after the latest occurrence of the longest matched end.

    `shortest` and `longest` bound the match in tokens (prompt lookup's n-grams are 1 to 2);
    `per_match` bounds the drafts per matched token (SuffixDecoding's alpha; 0 is no bound).
    """

    def __init__(
        self,
        target: Target,
        load_model: LoadModel | None = None,
        *,
        gamma: int = 10,
        shortest: int = 1,
        longest: int = 32,
        per_match: float = 0.0,
    ) -> None:
        super().__init__(target)
        self.gamma = at_least("gamma", gamma, 0)
        tree_size(f"gamma {gamma}", 1 + gamma)
        self.shortest = at_least("shortest", shortest, 1)
        self.longest = at_least("longest", longest, shortest)
        if not isinstance(per_match, int | float) or not per_match >= 0:
            raise ValueError(f"per_match must be a number of at least 0, not {per_match!r}")
        self.per_match = per_match
        # One character a token, since a string is the fastest to search.
        self._texts: dict[int, str] = {}

    def join(self, row: Row) -> None:
        self._texts[row.slot] = _text(row.ids)

    def leave(self, row: Row) -> None:
        self._texts.pop(row.slot, None)

    def draft(self, rows: list[Row]) -> Plan:
        trees = []
        for row in rows:
            text = self._texts[row.slot]
            drafted = self.continuation(text, min(self.gamma, row.remaining_tokens - 1))
            trees.append(Tree.chain([row.ids[-1], *map(ord, drafted)]))
        return Plan(rows, trees)

    def commit(self, plan: Plan, accepted: Sequence[Accepted], scores: ModelOutput) -> None:
        for row, one in zip(plan.rows, accepted, strict=True):
            self._texts[row.slot] += _text(one.tokens)

    def continuation(self, text: str, room: int) -> str:
        """Return what followed the longest match; repeat it if it overlaps its copy."""
        size = self.match(text)
        if size == 0 or room <= 0:
            return ""
        if self.per_match:
            room = int(min(room, self.per_match * size))
        begin = text.rfind(text[-size:], 0, len(text) - 1) + size
        period = text[begin:]
        return (period * (room // len(period) + 1))[:room]

    def match(self, text: str) -> int:
        """Return the length of the longest end of the text that occurs earlier; 0 if below
        `shortest`. Every end of a match is a match, so bisection finds it.
        """
        low, high = self.shortest - 1, min(self.longest, len(text) - 1)
        while low < high:
            middle = (low + high + 1) // 2
            if text.find(text[-middle:], 0, len(text) - 1) >= 0:
                low = middle
            else:
                high = middle - 1
        return low if low >= self.shortest else 0


def _text(ids: Sequence[int]) -> str:
    return "".join(map(chr, ids))
