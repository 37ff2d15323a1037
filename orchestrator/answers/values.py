"""Parses the value of an answer: a number, a sequence of values, words, or an expression."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from typing import Final

from orchestrator.answers.numbers import JOINING, LONGEST, Number, read_number, unit_of
from orchestrator.answers.spelling import plain

_DEEPEST: Final = 50  # nested brackets; an answer with more is compared as words


@dataclass(frozen=True, slots=True)
class Sequence:
    """Values with or without brackets."""

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
    """LaTeX that needs algebra to compare, without its unit."""

    text: str
    unit: str = ""

    @property
    def is_set(self) -> bool:
        """Whether it may equal a sequence in brackets."""
        sets = re.search(r"\\(?:cup|cap|setminus|times)(?![A-Za-z])", self.text)
        return self.is_relation or sets is not None

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
_OPAQUE: Final = re.compile(
    r"[:?'\"#@&;\n]|[^\x00-\x7f]|!!|\d\s+[\d.]|\d\.\d+\.\d|\d/\d+/\d|[A-Za-z]\d"
    r"|(?<![\d.A-Za-z_^{])(?:1|0\d*)[A-Za-z]"
)
"""Text that an algebra system would misread: it drops primes, divides at colons, and takes the
digits of 3a0 for factors."""
_MATRIX: Final = re.compile(r"\\begin\{(?:[pbB]?matrix|array)\}")
_UNIT_AT_END: Final = re.compile(r"(.*[^\s\\])(\s*°[CF]?|\s+[A-Za-z][A-Za-z ./^{}\d]{0,60})")
_ANGLE_OF: Final = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![a-z])")
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
    value: Value | None = read_number(text) or _sequence(text)
    if value is not None:
        return value
    if _MATRIX.search(text):
        return Expression(text)
    if (match := _NAMED.fullmatch(text)) is not None and len(match[1]) < 40:
        name = re.sub(r"[\\{}\s]", "", match[1]).casefold()
        return Named(name, _read(match[2]), text)
    if (end := _UNIT_AT_END.fullmatch(text)) is not None and not _ANGLE_OF.search(end[1]):
        unit = unit_of(end[2])
        if unit and _is_math(end[1]) and not re.search("[A-Za-z]", _COMMAND.sub("", end[1])):
            return Expression(end[1], unit)
    return Expression(text) if _is_math(text) else _words(text)


def _stripped(text: str) -> str:
    """Strip a value of quotes, brackets around one item, and a full stop."""
    while True:
        before, text = text, text.strip()
        if text.endswith(".") and not text.endswith(".."):
            text = text[:-1]
        if len(text) > 1 and text[0] in _QUOTES and text[-1] in _QUOTES:
            inner = text[1:-1]
            text = text if any(quote in inner for quote in _QUOTES) else inner
        if text[:1] in ("(", "{") and "," not in text and _end(text) == len(text) - 1:
            text = text[1:-1] if text[-1] == _CLOSING[text[0]] else text
        if text == before:
            return text


def _sequence(text: str) -> Sequence | None:
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
    either = any(match[1] for match in _JOINED.finditer(inner))
    if either and any(isinstance(item, Words) for item in items):
        return None
    return Sequence(brackets, items, text)


def _both_signs(text: str) -> list[str]:
    return [text.replace("\\pm", sign) for sign in "+-"] if text.count("\\pm") == 1 else [text]


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
    letters = _FUNCTIONS.sub("|", _COMMAND.sub("|", text))
    if not text.strip() or _OPAQUE.search(letters):
        return False
    letters = re.sub(r"\s*([-+*/=<>^(),|])\s*", r"\1", letters)
    for match in _WORD.finditer(letters):
        around = letters[: match.start()][-1:] + letters[match.end() :][:1]
        factors = len(match.group()) < 4 and " " not in around and re.search(r"[\d+*/=^-]", text)
        if not factors or JOINING.fullmatch(match.group()) or unit_of(match.group()):
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
