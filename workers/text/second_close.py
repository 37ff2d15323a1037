"""Where a model ends its thought a second time, in what it writes as its answer.

A thought that a cap closed may go on behind the close: the model thinks, ends its thought by
itself, and answers then. What stands before that end is no answer. But an answer may also name the
marker ("the tag </think> ends ..."), and then it is text. So a marker in an answer ends the thought

- before anything else in the answer, whoever closed the thought;
- after a forced close, at the end of a line, at its beginning, or right behind a sentence.

It is text where it stands in its line as a word does, with a space or a quotation mark before it,
or behind it where it begins the line; in a block of code; and where it closes an opening marker
that the answer has. What is in doubt is text: that loses nothing.
"""

from __future__ import annotations

from unicodedata import east_asian_width

_FENCE = "```"
_QUOTES = "\"'`\u2018\u2019\u201c\u201d\u00ab\u00bb\u300c\u300d"
_OPENING, _CLOSING = _QUOTES + "([{<", _QUOTES + ")]}>,.;:!?\u3002\uff0c"
_SENTENCE_ENDS = ".!?\u2026\u3002\uff01\uff1f"


class SecondClose:
    """Finds that end in a text that comes in pieces.

    Args:
        opening, closing: the markers of a thought.
        before: the answer before the text.
        forced: whether a cap closed the thought.
    """

    def __init__(self, opening: str, closing: str, before: str, *, forced: bool) -> None:
        self._opening, self._closing, self._before = opening, closing, before
        self._forced = forced
        self._text, self._searched = "", 0
        self.held = 0
        """Characters at the end of the text that may belong to such a marker."""

    def feed(self, text: str) -> tuple[int, int] | None:
        """Where in the text so far the marker that ends the thought begins and ends; None: not
        yet."""
        self._text += text
        return self._find(ended=False)

    def end(self) -> tuple[int, int] | None:
        """Likewise, once nothing more comes."""
        return self._find(ended=True)

    def _find(self, *, ended: bool) -> tuple[int, int] | None:
        text, closing = self._text, self._closing
        while (at := text.find(closing, self._searched)) >= 0:
            end = at + len(closing)
            rest = text[end:]
            if not (rest.strip() or "\n" in rest or ended):
                self.held = len(text) - at
                return None
            if self._ends_thought(self._before + text[:at], rest):
                return at, end
            self._searched = end
        sizes = range(min(len(closing) - 1, len(text) - self._searched), 0, -1)
        self.held = next((size for size in sizes if text.endswith(closing[:size])), 0)
        return None

    def _ends_thought(self, before: str, behind: str) -> bool:
        """Whether the marker between these two is the end of the thought."""
        if before.strip() and not self._forced:
            return False
        if before.count(_FENCE) % 2 or before.rfind(self._opening) > before.rfind(self._closing):
            return False
        if self._closing[0].isalnum():  # a sentence of its own
            return True
        line = before.rpartition("\n")[2]
        ends_line, following = not behind.partition("\n")[0].strip(), behind[:1]
        if not line.strip():
            return ends_line or not (following.isspace() or following in _CLOSING)
        if line[-1].isspace():
            return ends_line and line.rstrip()[-1] in _SENTENCE_ENDS
        if line[-1] in _OPENING or (following and following in _QUOTES):
            return False
        # Where words have no spaces between them a marker that is named has none either.
        return ends_line or line[-1] in _SENTENCE_ENDS or east_asian_width(line[-1]) not in "FW"
