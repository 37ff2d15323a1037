"""A caller's stop strings in an answer that is made of several segments.

A worker finds them within one generation. But a string may begin in one segment and end in the
next, by another author. So text that may begin one is held back until the text continues.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Passes an answer's text on, up to the stop string that is complete first.

    `begun`: the answer continues a text of the request. `found`: the stop string, if there was
    one; after it no text is passed on.
    """

    def __init__(self, stops: Sequence[str], *, begun: bool = False) -> None:
        self._stops = tuple(filter(None, stops))
        self._held, self._begun = "", begun
        self.found = ""

    def feed(self, text: str) -> str:
        """Return the text that is certain, with this piece."""
        if self.found or not self._stops:
            return "" if self.found else text
        text = self._held + text
        if not self._begun:  # the white space before an answer is never shown
            self._begun = bool(text.strip())
            if not self._begun:
                self._held = text
                return ""
            text = text.lstrip()
        # The string that ends first counts, so that the pieces of the text make no difference.
        found = [(at + len(stop), at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        self.found = min(found)[2] if found else ""
        begun = max(overlap(text, stop) for stop in self._stops)
        certain = min(found)[1] if found else len(text) - begun
        self._held = "" if self.found else text[certain:]
        return text[:certain]

    def skip(self, text: str) -> str:
        """Return a text that is not searched for stop strings."""
        self._begun = self._begun or bool(text.strip())
        return text

    def end(self) -> str:
        """Return what was held back, once the answer has ended."""
        rest, self._held = self._held, ""
        return rest


def overlap(text: str, mark: str) -> int:
    """Return the length of the longest end of a text that is the beginning of a mark, not all."""
    sizes = range(min(len(mark) - 1, len(text)), 0, -1)
    return next((size for size in sizes if text.endswith(mark[:size])), 0)
