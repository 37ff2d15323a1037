"""Rows that decode on after their call has ended, for the call that continues there.

A policy ends a call at a step's end, before a doubtful token, or at a cap, and often asks the same
model to continue exactly that text. A row that ran ahead holds what that call would write: a
token depends on the ids before it and, if it is drawn, on the seed and its position.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from orchestrator.types import Finish
from workers.engine.requests import GenerateRequest
from workers.model.tree import Accepted, Row


@dataclass(eq=False, slots=True)
class Ahead:
    """A row that decodes for no call."""

    row: Row
    rounds: list[Accepted]  # those that made the tokens from `row.ids[first]` on
    first: int
    call: tuple[str, str]  # what may adopt it: `Call.request`, `Call.owner`

    def is_adopted_by(self, request: GenerateRequest) -> bool:
        """Whether the row holds what a request would write."""
        row, ids = self.row, request.ids
        return (
            self.call == (request.name, request.owner)
            and self.first <= len(ids) <= len(row.ids)
            and request.max_tokens > 0
            and request.matcher is None
            and row.method == request.method
            and row.answering != request.continuation.thinking
            and row.sampling == request.sampling
            and (row.greedy or row.seed == request.seed)
            and row.ids[self.first : len(ids)] == ids[self.first :]
            and row.ids[: self.first] == ids[: self.first]
        )

    def behind(self, length: int) -> Iterator[Accepted]:
        """The rounds of the tokens behind the first `length` ids."""
        place = self.first
        for made in self.rounds:
            known = max(0, length - place)
            place += len(made.tokens)
            if length < place:
                yield made.behind(known)


class RunAhead:
    """The rows of an engine that run ahead, each by at most `tokens`; `context` is the longest
    text, in tokens."""

    def __init__(self, tokens: int, context: int) -> None:
        self.tokens, self._context = tokens, context
        self._rows: dict[int, Ahead] = {}  # by slot, the oldest first

    def keep(
        self, row: Row, request: GenerateRequest, finish: Finish, rounds: Sequence[Accepted]
    ) -> bool:
        """Let the row of a request that has ended run ahead; return whether it does. `rounds` made
        its newest tokens, from the end of its text or before it."""
        room = self._context - len(row.ids)
        if not self.tokens or room <= 0 or not request.continuation.goes_on(finish):
            return False
        row.remaining_tokens = min(self.tokens, room)
        first = len(row.ids) - sum(len(one.tokens) for one in rounds)
        self._rows[row.slot] = Ahead(row, list(rounds), first, (request.name, request.owner))
        return True

    def adopt(self, request: GenerateRequest) -> Ahead | None:
        """Take the row that holds what a request would write, if there is one."""
        found = next((one for one in self._rows.values() if one.is_adopted_by(request)), None)
        return self._rows.pop(found.row.slot) if found else None

    def rivals(self, request: GenerateRequest) -> list[Row]:
        """The rows that ran ahead for a request, which continues another text."""
        call = (request.name, request.owner)
        return [one.row for one in self._rows.values() if one.call == call]

    def add(self, row: Row, made: Accepted) -> None:
        """Note what a round gave to a row."""
        self._rows[row.slot].rounds.append(made)

    def drop(self, row: Row) -> None:
        """Forget a row."""
        del self._rows[row.slot]

    @property
    def rows(self) -> list[Row]:
        """All of them, the oldest first."""
        return [one.row for one in self._rows.values()]

    @property
    def running(self) -> list[Row]:
        """Those that may decode on, by slot, so that neighbours in the cache are one view."""
        rows = [row for row in self.rows if row.remaining_tokens > 0]
        return sorted(rows, key=lambda row: row.slot)
