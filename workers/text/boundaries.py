"""Where a step ends: at a delimiter, but not inside a block that a judge could not read in halves.

Blocks are fenced code, display mathematics (`$$`, `\\[`), LaTeX environments and tables, as models
write them. A delimiter behind a colon ends nothing either: what is announced belongs to it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from orchestrator.types import Transcript

_MARKS = re.compile(
    r"^ {0,3}(?P<fence>`{3,}|~{3,})(?P<info>[^\n]*)$"
    r"|(?P<begin>\\begin\{(?P<name>[^}\n]{1,40})\})|\\end\{(?P<end>[^}\n]{1,40})\}"
    r"|(?P<dollars>(?<!\\)\$\$)|(?P<open>(?<!\\)\\\[)|(?P<close>(?<!\\)\\\])",
    re.MULTILINE,
)
_ANNOUNCES = (":", "\uff1a")  # the second is the colon of Chinese and Japanese


class StepEnd:
    """Finds the end of the first step in a text that grows.

    Args:
        delimiters: what may end a step.
        before: the text of the step so far, which the text continues (`begun`).
    """

    def __init__(self, delimiters: Sequence[str], before: str = "") -> None:
        known = tuple(filter(None, delimiters))
        self._before = before
        # As lookaheads: delimiters may overlap.
        self._patterns = [(re.compile(f"(?={re.escape(one)})"), len(one)) for one in known]
        self.longest = max(map(len, known), default=0)

    def find(self, text: str, start: int = 0) -> int | None:
        """Where in `text` the step ends, looked for from `start` on; None where it goes on.

        `text` is all that was written since `before`.
        """
        ends = sorted(
            match.start() + size
            for pattern, size in self._patterns
            for match in pattern.finditer(text, start)
        )
        return next((end for end in ends if self._counts(text[:end])), None)

    def _counts(self, text: str) -> bool:
        """Whether the delimiter at the end of `text` ends a step."""
        whole = self._before + text
        step = whole.rstrip()
        if not step or step.endswith(_ANNOUNCES):
            return False
        *_, last = step.splitlines()
        ended_line = whole[len(step) :].count("\n")
        if last.lstrip().startswith("|") and ended_line < 2 and last.count("|") > 1:
            return False
        return not _is_inside_block(step)


def _is_inside_block(text: str) -> bool:
    """Whether a block is open at the end of a text."""
    fence, dollars, bracket = "", False, False
    environments: list[str] = []
    for mark in _MARKS.finditer(text):
        if fence:
            closing = mark["fence"] or ""
            if closing.startswith(fence) and not mark["info"].strip():
                fence = ""
        elif mark["fence"]:
            if not (mark["fence"][0] == "`" and "`" in mark["info"]):  # that is code in a line
                fence = mark["fence"]
        elif mark["dollars"]:
            dollars = not dollars
        elif mark["open"] or mark["close"]:
            bracket = bool(mark["open"])
        elif mark["begin"]:
            environments.append(mark["name"])
        elif mark["end"] in environments:
            del environments[environments.index(mark["end"]) :]
    return bool(fence or dollars or bracket or environments)


def begun(transcript: Transcript, delimiters: Sequence[str]) -> str:
    """The text of the transcript's unfinished step: what its last ended step left behind it."""
    ends, parts = tuple(filter(None, delimiters)), list[str]()
    if ends:
        for segment in reversed(transcript.phase):
            if segment.finish == "until" and segment.text.rstrip(" ").endswith(ends):
                break
            parts.append(segment.text)
    return "".join(reversed(parts))
