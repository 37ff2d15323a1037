"""Finds where a model ends its thought a second time, in its answer.

After a cap closed its thought, a model may continue to think, end its thought by itself, and then
answer: the text before that end is not an answer. But an answer may also name the marker ("the tag
</think> ends ..."): then the marker is text. So a marker in an answer ends the thought

- if nothing precedes it in the answer, whether a cap or the model closed the thought;
- after a forced close, at the end of a line, at its beginning, or right after a sentence.

The marker is text if it is a word of its line (with a space or a quotation mark before it, or after
it at the beginning of the line), if it is alone on its line after a line that ends with a colon, in
a block of code, and if it closes an opening marker of the answer. In doubt it is text, since that
loses nothing.
"""

from __future__ import annotations

import re
from unicodedata import east_asian_width

_FENCE = "```"
_QUOTES = "\"'`\u2018\u2019\u201c\u201d\u00ab\u00bb\u300c\u300d"
_OPENING, _CLOSING = _QUOTES + "([{<", _QUOTES + ")]}>,.;:!?\u3002\uff0c"
_COLONS = ":\uff1a"
_SENTENCE_ENDS = ".!?\u2026\u3002\uff01\uff1f"
_BLANK = re.compile(r"[^\S\n]*")


def begun_mark(text: str, mark: str) -> int:
    """Return the length of the longest end of a text that begins a mark."""
    sizes = range(min(len(mark) - 1, len(text)), 0, -1)
    return next((size for size in sizes if text.endswith(mark[:size])), 0)


class SecondClose:
    """Finds that end in a text that comes in pieces.

    Args:
        opening, closing: the markers of a thought.
        before: the answer before the text.
        forced: whether a cap closed the thought.
    """

    def __init__(self, opening: str, closing: str, before: str, *, forced: bool) -> None:
        self._opening, self._closing, self._forced = opening, closing, forced
        self._text, self._start = before, len(before)
        self._searched = len(before)
        self.held = 0
        """Characters at the end of the text that may belong to such a marker."""

    def feed(self, text: str) -> tuple[int, int] | None:
        """Return where the marker that ends the thought begins and ends; None if not yet seen."""
        self._text += text
        return self._find(ended=False)

    def end(self) -> tuple[int, int] | None:
        """Likewise, once nothing more comes."""
        return self._find(ended=True)

    def _find(self, *, ended: bool) -> tuple[int, int] | None:
        text, closing = self._text, self._closing
        while (at := text.find(closing, self._searched)) >= 0:
            end = at + len(closing)
            rest = _BLANK.match(text, end)
            assert rest is not None
            if rest.end() == len(text) and not ended:
                self.held = len(text) - at
                return None
            if self._ends_thought(text[:at], text[end : end + 1], text[rest.end() :][:1]):
                return at - self._start, end - self._start
            self._searched = end
        self.held = begun_mark(text[self._searched :], closing)
        self._searched = max(self._searched, len(text) - len(closing) + 1)
        return None

    def _ends_thought(self, before: str, following: str, rest: str) -> bool:
        """Whether the marker after a text ends the thought; `following` is the character after it,
        and `rest` the one after the white space there."""
        said, last = before.rstrip()[-1:], before[-1:]
        if said and not self._forced:
            return False
        if before.count(_FENCE) % 2 or before.rfind(self._opening) > before.rfind(self._closing):
            return False
        if self._closing[0].isalnum():  # a whole sentence
            return True
        ends_line = rest in ("", "\n")
        if not before[before.rfind("\n") + 1 :].strip():
            if ends_line:
                return not said or said not in _COLONS
            return not (following.isspace() or following in _CLOSING)
        if last.isspace():
            return ends_line and said in _SENTENCE_ENDS
        if last in _OPENING or (following and following in _QUOTES):
            return False
        # In scripts without spaces between words, a marker that is named has none around it.
        return ends_line or last in _SENTENCE_ENDS or east_asian_width(last) not in "FW"
