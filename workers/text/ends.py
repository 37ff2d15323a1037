"""Finds the stop strings, which are cut off, in a text that comes in pieces."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf

from orchestrator.types import Finish
from workers.text.boundaries import StepEnd
from workers.text.second_close import SecondClose, begun_mark

Stop = tuple[str, Finish]
"""A string that ends a text and is cut off, and the finish to report."""


def held_back(text: str, stops: Iterable[Stop]) -> int:
    """Return the length of the longest end of a text that may begin a stop string."""
    return max((begun_mark(text, stop) for stop, _ in stops), default=0)


class Ends:
    """What ends one text.

    Args:
        step_end: finds the delimiter, which ends the text and is kept; the caller asks it.
        begins_answer: whether the text begins an answer: the white space before it is not shown, so
            no stop string may begin in it.
        min_tokens: in the text of this many tokens, only a stop string that ends a thought may
            begin.
        second_close: finds the end of a thought in an answer.
    """

    def __init__(
        self,
        step_end: StepEnd | None = None,
        stops: Sequence[Stop] = (),
        *,
        begins_answer: bool = False,
        min_tokens: int = 0,
        second_close: SecondClose | None = None,
    ) -> None:
        self.step_end = step_end or StepEnd(())
        self.stops: list[Stop] = []
        self._longest = 0
        for stop, finish in stops:
            self.add(stop, finish)
        self.length = 0  # of the text
        self._tail = ""  # its end, in which a stop string may begin
        self._blank = begins_answer  # whether an answer is only white space so far
        self._begin = self._late = 0  # ends of that white space and of the first `min_tokens`
        self._min_tokens, self._second_close = min_tokens, second_close

    def add(self, stop: str, finish: Finish) -> None:
        """Look for a further stop string from here on."""
        if stop:
            self.stops.append((stop, finish))
            self._longest = max(self._longest, len(stop))

    def feed(self, new: str, tokens: float = inf) -> tuple[int, int, Finish] | None:
        """Return where the stop string that ends first ends and begins, and the finish to report.

        `tokens` is how many the text has, this piece included.
        """
        start, window = self.length - len(self._tail), self._tail + new
        self.length += len(new)
        if self._blank:
            shown = new.lstrip()
            self._blank, self._begin = not shown, self.length - len(shown)
        if tokens <= self._min_tokens:
            self._late = self.length
        found: list[tuple[int, int, Finish]] = []
        for stop, finish in self.stops:
            first = self._begin if finish == "think_end" else max(self._begin, self._late)
            if (at := window.find(stop, max(0, first - start))) >= 0:
                found.append((start + at + len(stop), start + at, finish))
        if self._second_close is not None and (again := self._second_close.feed(new)) is not None:
            begin, end = again
            found.append((end, begin, "think_end"))
        if found:
            return min(found)
        self._tail = window[max(0, len(window) - self._longest + 1) :]
        return None

    @property
    def held(self) -> int:
        """The length of the longest end of the text that may begin a cut-off string."""
        held = held_back(self._tail, self.stops)
        return held if self._second_close is None else max(held, self._second_close.held)

    def closed_at(self) -> int | None:
        """Return where the marker of a second close begins, once nothing more comes."""
        found = None if self._second_close is None else self._second_close.end()
        return None if found is None else found[0]
