"""Parses the value of an answer: a number, a sequence of values, words, or an expression."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from typing import Final

from orchestrator.answers.numbers import (
    JOINING,
    LONGEST,
    Number,
    clock,
    date_of,
    known_unit,
    measured,
    read_number,
    summed,
)
from orchestrator.answers.spelling import MATRIX, ROW, plain

_DEEPEST: Final = 50  # nested brackets; an answer with more is compared as words


@dataclass(frozen=True, slots=True)
class Sequence:
    """Values with or without brackets; the items of a matrix are rows."""

    brackets: str
    items: tuple[Value, ...]
    text: str


@dataclass(frozen=True, slots=True)
class Named:
    """A value with a name, as in x = 5."""

    name: str
    value: Value
    text: str


@dataclass(frozen=True, slots=True)
class Words:
    """Lines of words, in small letters; numbers among them are values."""

    lines: tuple[tuple[str | Fraction, ...], ...]


@dataclass(frozen=True, slots=True)
class Expression:
    """LaTeX that needs algebra to compare, with its unit, and the factor to that kind's first."""

    text: str
    unit: str = ""
    factor: Fraction = Fraction(1)

    @property
    def is_set(self) -> bool:
        """Whether it may equal a sequence in brackets."""
        return (
            self.is_relation
            or re.search(r"\\(?:cup|cap|setminus|times)(?![A-Za-z])", self.text) is not None
        )

    @property
    def has_matrix(self) -> bool:
        return MATRIX[0] in self.text

    @property
    def is_relation(self) -> bool:
        return re.search(r"[=<>]|\\(?:in|[lg]e|ne|lt|gt)(?![A-Za-z])", self.text) is not None


Value = Number | Sequence | Named | Words | Expression

# Words and LaTeX.
_COMMAND: Final = re.compile(r"\\[A-Za-z]+")
_FUNCTIONS: Final = re.compile(
    r"\b(?:a?(?:rc)?(?:sin|cos|tan|cot|sec|csc)h?|log|ln|exp|sqrt|pi|abs|min|max|gcd|lcm|mod)\b"
)
_WORD: Final = re.compile(r"[^\W\d_]{2,}")
_QUOTES: Final = "\"'`“”‘’"
_NAMED: Final = re.compile(
    r"(\\angle\s*\{?\w+\}?|\\?[^\W\d_]\w*(?:_\{\w+\})?(?:\^\{-1\})?(?:\([^()]\))?)"
    r"\s*(?:=|\\in(?![A-Za-z]))(?:[^=<>]+=)?\s*([^=<>]+)"
)
_JOINED: Final = re.compile(r",?\s+(?:and|(or))(?:\s+|(?=\d))")
_BOUNDS: Final = re.compile(
    r"(?:([^<>=]*[^<>=\s\\])\s*(<|\\le)\s*)?([A-Za-z])\s*(<|>|\\[lg]e)\s*([^<>=]+)"
)
_OPAQUE: Final = re.compile(
    r"[:?'\"#@&;\n]|[^\x00-\x7f]|!!|\d\s+[\d.]|\d\.\d+\.\d|[A-Za-z]\d"
    r"|(?<![\d.A-Za-z_^{])(?:1|0\d*)[A-Za-z]"
)
"""Text that an algebra system would misread: it drops primes, divides at colons, and takes the
digits of 3a0 for factors."""
_CELLS: Final = str.maketrans(dict.fromkeys([*MATRIX, ROW, "&"], ","))
_CLOSING: Final = {"(": ")", "[": "]", "{": "}"}


def read(text: str) -> Value:
    """Parse a text that is a value and nothing else."""
    if len(text) > LONGEST:
        return _words(text)
    text = plain(text)
    nested = accumulate((sign in "([{") - (sign in ")]}") for sign in text)
    return _words(text) if max(nested, default=0) > _DEEPEST else _read(text)


def _read(text: str) -> Value:
    text = _stripped(text)
    for reader in (read_number, summed, clock, date_of, _ratio, _sequence):
        value: Value | None = reader(text)
        if value is not None:
            return value
    if (match := _NAMED.fullmatch(text)) is not None and len(match[1]) < 40:
        name = re.sub(r"[\\{}\s]", "", match[1]).casefold()
        return Named(name, _read(match[2]), text)
    if (parts := measured(text)) is not None and _is_math(parts[0]):
        return Expression(*parts)
    algebraic = _algebraic(text)
    return Expression(algebraic) if _is_math(algebraic) else _words(text)


def _algebraic(text: str) -> str:
    """Write angles in radians, and a chain of relations with its least first."""
    text = re.sub(r"(?<![\d.])([\d.]{1,20})°", r"(\1\\cdot\\frac{\\pi}{180})", text)
    parts = re.split(r"(>|\\ge(?![A-Za-z]))", text)
    if len(parts) < 5 or "<" in text:
        return text
    return "".join({">": "<", "\\ge": "\\le "}.get(part, part) for part in reversed(parts))


def _stripped(text: str) -> str:
    """Strip a value of quotes, brackets around one item, and a full stop."""
    while True:
        before, text = text, text.strip()
        if text.endswith(".") and not text.endswith(".."):
            text = text[:-1]
        if len(text) > 1 and text[0] in _QUOTES and text[-1] in _QUOTES:
            inner = text[1:-1]
            text = text if any(quote in inner for quote in _QUOTES) else inner
        around = text[:1] in ("(", "{") or re.match(rf"\[\s*{MATRIX[0]}", text)
        if around and "," not in text and _end(text) == len(text) - 1:
            text = text[1:-1] if text[-1] == _CLOSING[text[0]] else text
        if text == before:
            return text


def _ratio(text: str) -> Sequence | None:
    """Read numbers between colons, or a date in numbers, as written: 2:5 may be a score."""
    for sign, least in ((":", 2), ("/", 3)):
        parts = text.split(sign)
        if len(parts) >= least and all(re.fullmatch(r"\s*\d+(?:\.\d+)?\s*", one) for one in parts):
            return Sequence(sign, tuple(_read(part) for part in parts), text)
    return None


def _sequence(text: str) -> Sequence | Expression | None:
    if text[:1] == MATRIX[0] and text.find(MATRIX[1]) == len(text) - 1:
        return _matrix(text)
    brackets, inner = "", text
    if text.startswith("\\{") and text.endswith("\\}") and _end(text[1:]) == len(text) - 2:
        brackets, inner = "{}", text[2:-2]
    elif text[:1] in _CLOSING and text[-1:] in _CLOSING.values() and _end(text) == len(text) - 1:
        brackets, inner = text[0] + text[-1], text[1:-1]
    parts = _parts(_JOINED.sub(", ", inner))
    if len(parts) < 2 and (not brackets or brackets == "()") and inner.count("\\pm") != 1:
        return None
    if any(not part.strip() for part in parts) and inner.strip():
        return None
    items = tuple(_read(one) for part in parts if part.strip() for one in _both_signs(part))
    if any(match[1] for match in _JOINED.finditer(inner)):  # either of some solutions
        if any(isinstance(item, Words) for item in items):
            return None
        return _union(items) or Sequence(brackets, items, text)
    return Sequence(brackets, items, text)


def _matrix(text: str) -> Sequence:
    rows = (
        Sequence(MATRIX, tuple(_read(cell) for cell in row.split("&")), row)
        for row in text[1:-1].split(ROW)
    )
    return Sequence(MATRIX, tuple(rows), text)


def _both_signs(text: str) -> list[str]:
    return [text.replace("\\pm", sign) for sign in "+-"] if text.count("\\pm") == 1 else [text]


def _union(items: tuple[Value, ...]) -> Expression | None:
    """Write alternative relations, as x < 2 or x > 3, as a union of intervals."""
    found = [_BOUNDS.fullmatch(one.text) if isinstance(one, Expression) else None for one in items]
    matches = [match for match in found if match is not None]
    if len(matches) < len(items) or len({match[3] for match in matches}) > 1:
        return None
    intervals = []
    for least, first, _, sign, bound in (match.groups() for match in matches):
        if sign in (">", "\\ge"):
            if least is not None:
                return None
            intervals.append(f"{'(' if sign == '>' else '['}{bound},\\infty)")
        else:
            left = f"{'(' if first == '<' else '['}{least}" if least else "(-\\infty"
            intervals.append(f"{left},{bound}{')' if sign == '<' else ']'}")
    return Expression("\\cup ".join(intervals))


def _parts(text: str) -> list[str]:
    """Split at commas outside all brackets and numbers."""
    depth, parts, begin = 0, [], 0
    spaced = re.search(r",\s|;", text) is not None
    for at, sign in enumerate(text):
        depth += (sign in "([{") - (sign in ")]}")
        within = spaced and re.match(r",\d", text[at : at + 2]) and text[at - 1 : at].isdigit()
        if depth == 0 and (sign == ";" or (sign == "," and not within)):
            parts.append(text[begin:at])
            begin = at + 1
    return [*parts, text[begin:]]


def _end(text: str) -> int:
    """Return the index at which a text's first bracket closes, by any kind of bracket, or -1."""
    depth = 0
    for at, sign in enumerate(text):
        depth += (sign in "([{") - (sign in ")]}")
        if depth == 0:
            return at
    return -1


def _is_math(text: str) -> bool:
    """Return whether an algebra system may read a text: not if it has words, as products."""
    letters = text.translate(_CELLS) if MATRIX[0] in text else text
    letters = _FUNCTIONS.sub("|", _COMMAND.sub("|", letters))
    if not text.strip() or _OPAQUE.search(letters):
        return False
    letters = re.sub(r"\s*([-+*/=<>^(),|])\s*", r"\1", letters)
    for match in _WORD.finditer(letters):
        around = letters[: match.start()][-1:] + letters[match.end() :][:1]
        factors = len(match.group()) < 4 and " " not in around and re.search(r"[\d+*/=^-]", text)
        if not factors or JOINING.fullmatch(match.group()) or known_unit(match.group()):
            return False
    return True


def _words(text: str) -> Words:
    lines = (line.split() for line in text.casefold().splitlines())
    return Words(
        tuple(
            tuple(
                Fraction(word) if re.fullmatch(r"[-+]?\d{1,50}(?:\.\d{1,50})?", word) else word
                for word in line
            )
            for line in lines
            if line
        )
    )
