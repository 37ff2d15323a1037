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
    """Finds that end after the answer `before`, in time linear in the text; `forced` says whether a
    cap closed the thought."""

    def __init__(self, opening: str, closing: str, before: str, *, forced: bool) -> None:
        self._opening, self._closing, self._forced = opening, closing, forced
        self._overlap = max(map(len, (opening, closing, _FENCE)))
        self._text, self._start = before, -len(before)  # what is kept, and its place in the text
        self._searched = len(before)
        self._read = self._fenced = 0  # the fields below describe the text up to here
        self._in_block = self._is_open = False
        self._said, self._last, self._begins_line = "", "", True
        self.held = 0  # characters at the end of the text that may belong to such a marker

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
            self._read_to(at)
            if self._ends_thought(text[end : end + 1], text[rest.end() : rest.end() + 1]):
                return at + self._start, end + self._start
            self._searched = end
        self.held = begun_mark(text[self._searched :], closing)
        self._searched = max(self._searched, len(text) - len(closing) + 1)
        self._read_to(self._searched)
        self._forget(self._searched - self._overlap)
        return None

    def _read_to(self, end: int) -> None:
        """Describe the text before `end` in the fields."""
        text, begin = self._text, self._read
        while (at := text.find(_FENCE, self._fenced, end)) >= 0:
            self._in_block, self._fenced = not self._in_block, at + len(_FENCE)
        self._fenced = max(self._fenced, end - len(_FENCE) + 1)
        again = max(0, begin - self._overlap + 1)  # where a marker may have begun
        opened, closed = (text.rfind(one, again, end) for one in (self._opening, self._closing))
        if opened >= 0 or closed >= 0:
            self._is_open = opened > closed
        line = text.rfind("\n", begin, end) + 1
        new = text[begin:end]
        bare = new.rstrip()
        self._said, self._last = bare[-1:] or self._said, new[-1:] or self._last
        self._begins_line = (bool(line) or self._begins_line) and not text[
            line or begin : end
        ].strip()
        self._read = end

    def _forget(self, size: int) -> None:
        """Drop the first characters of what is kept."""
        if size > 0:
            self._text = self._text[size:]
            self._start += size
            self._searched -= size
            self._read -= size
            self._fenced -= size

    def _ends_thought(self, following: str, rest: str) -> bool:
        """Whether the marker after the read text ends the thought; `following` is the character
        after it, and `rest` the one after the white space there."""
        if self._said and not self._forced:
            return False
        if self._in_block or self._is_open:
            return False
        if self._closing[0].isalnum():  # a whole sentence
            return True
        said, last, ends_line = self._said, self._last, rest in ("", "\n")
        if self._begins_line:
            if ends_line:
                return not said or said not in _COLONS
            return not (following.isspace() or following in _CLOSING)
        if last.isspace():
            return ends_line and said in _SENTENCE_ENDS
        if last in _OPENING or (following and following in _QUOTES):
            return False
        # In scripts without spaces between words, a marker that is named has none around it.
        return ends_line or last in _SENTENCE_ENDS or east_asian_width(last) not in "FW"
