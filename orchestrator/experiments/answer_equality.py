r"""Equality of answers by value: 1/2, 0.50, 50 % and \frac{1}{2} are one answer.

Plain numbers are compared exactly. Answers that take algebra to compare (roots, sets, equations)
are left undecided, for a caller that has a computer algebra system.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

_DIGITS: Final = r"(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d{1,3}(?!\d))?"
_BLANKS: Final = r"[ \t\u00a0\u202f]*"  # a rule (---) or a list above is no sign of what follows
_NUMBER: Final = rf"(?:(?<![\w)])[-+]{_BLANKS})?{_DIGITS}"
_VALUE: Final = re.compile(rf"({_NUMBER})(?:\s*/\s*({_NUMBER}))?\s*(%)?")
_FRACTION: Final = re.compile(
    rf"(?:([-+]){_BLANKS})?\\[dt]?frac\s*(?:\{{([^{{}}]*)\}}\s*\{{([^{{}}]*)\}}|(\d)\s*(\d))"
)
_WORD: Final = re.compile(r"[^\W\d_]{2,}(?:[\s'-]+[^\W\d_]+)*\.?")
_MAX_LENGTH: Final = 1000  # characters of a value; anything longer is no answer


@dataclass(frozen=True, slots=True)
class Number:
    """A value, and whether it was written with a percent sign."""

    value: Fraction
    percent: bool = False

    def equals(self, other: Number) -> bool:
        """A percentage may leave out its sign (50) or be written as a share (0.5)."""
        if self.percent == other.percent:
            return self.value == other.value
        share, plain = (self, other) if self.percent else (other, self)
        return plain.value in (share.value, share.value * 100)


def compare(text: str, answer: str) -> bool | None:
    """Whether a text gives this answer; None where it takes algebra to decide."""
    given, wanted = final(text), expected(answer)
    if given.casefold() == wanted.casefold():
        return True
    if not given or _WORD.fullmatch(wanted):
        return False  # a word is itself and nothing else, in whatever order its letters multiply
    ours, theirs = number(given), number(wanted)
    if ours is None or theirs is None:
        return None
    return ours.equals(theirs)


def final(text: str) -> str:
    r"""The answer in a text: its last `\boxed{}`, else its last number, else all of it."""
    box = boxed(text)
    if box is not None:
        return box.strip()
    plain = _plain(text)
    if number(plain) is not None or not re.search(r"\s", text.strip()):
        return text.strip()
    values = [match.group() for match in _VALUE.finditer(plain) if _value(match) is not None]
    return values[-1].strip() if values and "\\" not in plain else text.strip()


def expected(answer: str) -> str:
    r"""The reference answer: what is in its `\boxed{}`, after GSM8K's `####`, or all of it."""
    box = boxed(answer)
    return (answer.rpartition("####")[2] if box is None else box).strip()


def number(text: str) -> Number | None:
    """A text that is one number and nothing else, with or without a currency sign."""
    match = _VALUE.fullmatch(_plain(text).strip().rstrip(".").removeprefix("$").strip())
    return None if match is None else _value(match)


def _value(match: re.Match[str]) -> Number | None:
    above, below, percent = match.groups()
    if len(match.group()) > _MAX_LENGTH:
        return None
    value = _exact(above)
    if below is not None:
        divisor = _exact(below)
        if not divisor:
            return None
        value /= divisor
    return Number(value / 100 if percent else value, percent is not None)


def _exact(text: str) -> Fraction:
    return Fraction("".join(text.replace(",", "").split()))


def _plain(text: str) -> str:
    """A text with LaTeX's spellings of a number as ASCII."""
    text = text.replace("\N{MINUS SIGN}", "-").replace("{,}", ",").replace("\\%", "%")
    for sign in ("\\,", "\\!", "\\;", "\\$"):
        text = text.replace(sign, "")
    text = text.strip()
    if len(text) > 1 and text.startswith("$") and text.endswith("$"):
        text = text.strip("$")
    return _FRACTION.sub(_slash, text)


def _slash(match: re.Match[str]) -> str:
    sign, above, below, *short = match.groups()
    return f"{sign or ''}{above or short[0]}/{below or short[1]}"


def boxed(text: str) -> str | None:
    r"""The content of the last `\boxed{}`, with balanced braces; None without one."""
    start = text.rfind("\\boxed{")
    if start < 0:
        return None
    depth, begin = 0, start + len("\\boxed{")
    for end in range(begin, len(text)):
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        if depth < 0:
            return text[begin:end]
    return text[begin:]
