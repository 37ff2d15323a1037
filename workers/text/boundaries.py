"""Where a step ends: at a delimiter, but not inside a block, which a judge cannot read in halves.

Blocks are fenced code, display mathematics (`$$`, `\\[`), LaTeX environments and tables, as models
write them. A delimiter after a colon does not end a step: what the colon announces belongs to it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from orchestrator.types import Transcript

_MARKS = re.compile(
    r"^(?P<before>(?:[ \t]|[-*+][ \t]|\d{1,9}[.)][ \t])*)"
    r"(?P<fence>`{3,}(?=[^`\n]*$)|~{3,})(?P<info>[^\n]*)$"
    r"|(?<![\\`])(?P<ticks>`+)(?!`)[^\n]{0,500}?(?<!`)(?P=ticks)(?!`)"  # code in a line: no marks
    r"|\\(?P<side>begin|end)\{(?P<name>[^}\n]{1,40})\}"
    r"|(?<!\\)(?P<display>\$\$|\\\[|\\\])"
    r"|(?P<blank>\n[ \t]*(?=\n))",
    re.MULTILINE,
)
_ANNOUNCES = (":", "\uff1a")  # the second is the colon of Chinese and Japanese
_INDENT = 3  # most columns by which the end of a fence is indented beyond its beginning
_BLANKS = 2  # most blank lines in a formula


class StepEnd:
    """Finds the end of the first step in a text that comes in pieces; `before` is its text so far.

    Each line is read once, however long the step: only the blocks that it leaves open are kept.
    """

    def __init__(self, delimiters: Sequence[str], before: str = "") -> None:
        known = tuple(filter(None, delimiters))
        # As lookaheads: delimiters may overlap.
        self._patterns = [(re.compile(f"(?={re.escape(one)})"), len(one)) for one in known]
        self._longest = max(map(len, known), default=0)
        self._tail = ""  # the end of the text, where a delimiter may have begun
        self._blocks = _Blocks()  # open after the lines that were read
        self._unread = [before]  # from the last line that is not blank

    def feed(self, text: str) -> int | None:
        """Return where in this piece the step ends; None if it continues."""
        if not self._patterns:
            return None
        window, begin, done = self._tail + text, len(self._tail), 0
        ends = sorted(
            match.start() + size - begin
            for pattern, size in self._patterns
            for match in pattern.finditer(window, max(0, begin - size + 1))
        )
        for end in ends:
            self._unread.append(text[done:end])
            done = end
            if self._counts():
                return end
        self._unread.append(text[done:])
        self._tail = window[max(0, len(window) - self._longest + 1) :]
        return None

    def _counts(self) -> bool:
        """Whether the delimiter at the end of the read text ends a step."""
        whole = "".join(self._unread)
        step = whole.rstrip()
        if not step:
            return False
        begin = step.rfind("\n") + 1
        self._blocks = self._blocks.after(step[:begin])
        self._unread = [whole[begin:]]
        if step.endswith(_ANNOUNCES):
            return False
        *_, last = step[begin:].splitlines()
        ended_line = whole[len(step) :].count("\n")
        if last.lstrip().startswith("|") and ended_line < 2 and last.count("|") > 1:
            return False
        return not self._blocks.after(step[begin:]).is_open


class _Blocks(NamedTuple):
    """The blocks that are open at a place in a text."""

    fence: str = ""  # the marks that begin a block of code, at `column`
    column: int = 0
    formulas: tuple[str, ...] = ()  # displays and environments, each by the mark that ends it
    blanks: int = 0  # blank lines since the first of these began

    @property
    def is_open(self) -> bool:
        return bool(self.fence or self.formulas)

    def after(self, lines: str) -> _Blocks:
        """Return the blocks that are open after further lines; the last may be unfinished."""
        fence, column, formulas, blanks = self
        for mark in _MARKS.finditer(lines):
            if fence:
                closing, before = mark["fence"] or "", mark["before"] or ""
                if (
                    closing.startswith(fence)
                    and len(before) <= column + _INDENT
                    and not (before + mark["info"]).strip()
                ):
                    fence = ""
            elif mark["fence"]:
                fence, column = mark["fence"], len(mark["before"])
            elif mark["blank"]:
                blanks += 1
                if blanks > _BLANKS:  # it was no formula, or its end is missing
                    formulas = ()
            elif what := mark["name"] or mark["display"]:
                end = "\\]" if what == "\\[" else what
                unpaired = what == "$$" and what not in formulas
                if mark["side"] == "begin" or what == "\\[" or unpaired:
                    blanks = blanks if formulas else 0
                    formulas = (*formulas, end)
                elif end in formulas:
                    formulas = formulas[: formulas.index(end)]
        return _Blocks(fence, column, formulas, blanks)


def begun(transcript: Transcript, delimiters: Sequence[str]) -> str:
    """Return the text of the transcript's unfinished step: all after its last ended step."""
    ends, parts = tuple(filter(None, delimiters)), list[str]()
    if ends:
        for segment in reversed(transcript.phase):
            text = segment.text
            ended = text.endswith(ends) or text.rstrip(" ").endswith(ends)  # or spaces follow it
            if ended and segment.finish == "until":
                break
            parts.append(text)
    return "".join(reversed(parts))
