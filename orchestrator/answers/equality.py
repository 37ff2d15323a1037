r"""Equality of answers by value: 1/2, 0.50, 50 % and \frac{1}{2} are one answer.

Plain numbers are compared exactly, and sequences item by item. Values that need algebra (roots,
equations) are left undecided, for a caller that has a computer algebra system.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Final

from orchestrator.answers.numbers import Number
from orchestrator.answers.text import expected, final
from orchestrator.answers.values import Expression, Named, Sequence, Value, Words, read

_KINDS: Final = (Named, Expression, Sequence, Number, Words)  # two are compared in this order
_MOST_UNORDERED: Final = 100  # values that are compared in any order

Algebra = Callable[[str, str], bool]
"""Returns whether two expressions in LaTeX are equal."""


def compare(text: str, answer: str) -> bool | None:
    """Return whether a text gives this answer; None if that needs algebra."""
    return equal(final(text), expected(answer))


def agree(text: str, other: str) -> bool | None:
    """Return whether two texts give the same answer; None if that needs algebra."""
    return compare(text, final(other))


def equal(given: str, wanted: str, algebra: Algebra | None = None) -> bool | None:
    """Return whether two bare answers are equal; None if that needs algebra."""
    if " ".join(given.split()).casefold() == " ".join(wanted.split()).casefold():
        return True
    if not given.strip() or not wanted.strip():
        return False
    return _equal(read(given), read(wanted), algebra)


def _equal(a: Value, b: Value, algebra: Algebra | None) -> bool | None:
    match sorted((a, b), key=lambda one: _KINDS.index(type(one))):
        case (Named(name), Named(other)) if name != other:
            return False
        case Named(_, value), Named(_, other):
            return _equal(value, other, algebra)
        case (Named() as named, Expression() as relation) if relation.is_relation:
            return _by_algebra(named, relation, algebra)
        case Named(_, value), other:
            return _equal(value, other, algebra)
        case (one, Sequence("{}", (only,))) if not isinstance(one, Sequence):
            return _equal(one, only, algebra)
        case (Sequence("{}", (only,)), other) if not isinstance(other, Sequence):
            return _equal(only, other, algebra)
        case (Expression() as one, Sequence(brackets)) if not (one.is_set and brackets):
            return False
        case (Expression() as one, Words(((str() as letters,),))) if (
            len(letters) < 4 and letters.isalpha()
        ):
            return _by_algebra(one, Expression(letters), algebra)
        case (Expression() as one, (Expression() | Sequence() | Number()) as other):
            return _by_algebra(one, other, algebra)
        case Sequence() as one, Sequence() as other:
            return _sequences(one, other, algebra)
        case Number() as one, Number() as other:
            return one.equals(other)
        case Words() as one, Words() as other:
            return one == other
    return False


def _by_algebra(a: Value, b: Value, algebra: Algebra | None) -> bool | None:
    """Ask an algebra system about two expressions whose units do not differ."""
    units = {one.unit for one in (a, b) if isinstance(one, Number | Expression)} - {"", "%"}
    if len(units) > 1:
        return False
    texts = (_latex(a), _latex(b))
    if texts[0] == texts[1]:
        return True
    return None if algebra is None or not all(texts) else algebra(*texts)


def _latex(value: Value) -> str:
    match value:
        case Number(value=plain):
            return f"\\frac{{{plain.numerator}}}{{{plain.denominator}}}"
        case Expression(text=text) | Sequence(text=text) | Named(text=text):
            return re.sub(r"(?<=\d)[ \t]+(?=[A-Za-z])", "", text)  # math-verify: 5 i is not 5i
    return ""


def _sequences(a: Sequence, b: Sequence, algebra: Algebra | None) -> bool | None:
    """Compare item by item; sets, and bare values that are not words, in any order."""
    kinds = {a.brackets, b.brackets}
    if len(kinds - {""}) > 1:
        return False
    if kinds == {"{}"}:
        a, b = _distinct(a, algebra), _distinct(b, algebra)
    if len(a.items) != len(b.items):
        return False
    in_order = not kinds <= {"{}", ""} or (
        kinds == {""} and any(isinstance(item, Words) for item in (*a.items, *b.items))
    )
    if in_order or len(a.items) > _MOST_UNORDERED:
        return _all(_equal(x, y, algebra) for x, y in zip(a.items, b.items, strict=True))
    verdicts = [[_equal(x, y, algebra) for y in b.items] for x in a.items]
    if _pairs_up([[verdict is True for verdict in row] for row in verdicts]):
        return True
    maybe = [[verdict is not False for verdict in row] for row in verdicts]
    return None if _pairs_up(maybe) else False


def _pairs_up(fits: list[list[bool]]) -> bool:
    """Return whether each row can take another column that fits."""
    taken: dict[int, int] = {}

    def place(row: int, tried: set[int]) -> bool:
        for column, fit in enumerate(fits[row]):
            if fit and column not in tried:
                tried.add(column)
                if column not in taken or place(taken[column], tried):
                    taken[column] = row
                    return True
        return False

    return all(place(row, set()) for row in range(len(fits)))


def _distinct(a: Sequence, algebra: Algebra | None) -> Sequence:
    kept: list[Value] = []
    for item in a.items:
        if not any(_equal(item, other, algebra) for other in kept):
            kept.append(item)
    return Sequence(a.brackets, tuple(kept), a.text)


def _all(verdicts: Iterable[bool | None]) -> bool | None:
    found = set(verdicts)
    return False if False in found else None if None in found else True
