"""Right answers of reasoning-gym's kinds that have several, or want one in a certain form.

The other kinds have one value as the answer, which `deploy.evaluation.grading` compares. Only the
kinds in `SCORED` are scored by reasoning-gym, and only answers of the form given there: scorers of
other kinds give all points to -16800 for 16800, to any text, to 0 for a small probability, or to
nan.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import cache, partial
from typing import Any, Final

from orchestrator.answers.equality import equal
from orchestrator.answers.numbers import Number
from orchestrator.answers.spelling import plain
from orchestrator.answers.values import Sequence, Value, read

Check = Callable[[str, Mapping[str, Any]], bool]
"""Returns whether an answer, without its box, is right for an entry of reasoning-gym."""

_JSON: Final = r"[\[{].*[\]}]"
_GRID: Final = r"[01\s]+"
_TERM: Final = (
    r"\b(?:a?(?:sin|cos|tan|sinh|cosh|tanh)|exp|log|sqrt|Integral|[a-zA-Z])\b|[\d\s.,+*/()^-]"
)
SCORED: Final[Mapping[str, str]] = {
    "boxnet": _JSON,
    "cryptarithm": r"[A-Z]\s*=\s*\d(?:\s*,\s*[A-Z]\s*=\s*\d)*",
    "graph_color": _JSON,
    "group_anagrams": _JSON,
    "intermediate_integration": rf"(?:{_TERM})+",
    "jugs": _JSON,
    "kakurasu": _GRID,
    "knight_swap": rf"{_JSON}|[Nn]o",
    "knights_knaves": r"\w+ is an? \w+(?:(?:,? and |, )\w+ is an? \w+)*\.?",
    "palindrome_generation": r"[A-Za-z]+",
    "palindrome_partitioning": _JSON,
    "propositional_logic": r"[A-Z()\s¬∧∨→↔]+",
    "quantum_lock": r"[ABC](?:\s*→\s*[ABC])*",
    "rubiks_cube": r"[A-Z'\s]+",
    "rush_hour": r"[A-Z\d+\s-]+",
    "shortest_path": r"[a-z\s]+",
    "simple_integration": rf"(?:{_TERM})+",
    "sokoban": r"[LRUD]+",
    "tower_of_hanoi": r"(?:Move disk \d+ from Peg \d+ to Peg \d+\s*)+",
    "word_ladder": r"[A-Za-z,\s]+",
}
"""Kinds whose own scorer decides, and the form of answers for it, since some run them as Python."""
SIGNIFICANT: Final[Mapping[str, int]] = {
    "coin_flip": 3, "decimal_arithmetic": 12, "number_format": 12, "power_function": 3,
}  # fmt: skip
"""Kinds whose number is right if it agrees to this number of significant digits."""
_OPERATORS: Final[Mapping[type[ast.operator], Callable[[Fraction, Fraction], Fraction]]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
}  # fmt: skip
_LONGEST: Final = 20_000  # characters of an answer that is checked


def check_of(kind: str) -> Check | None:
    """Return the check of a kind's answers; None if each problem has one value as its answer."""
    if kind in SCORED:
        return partial(_scored, kind)
    if kind in SIGNIFICANT:
        return partial(_significant, SIGNIFICANT[kind])
    return _CHECKS.get(kind)


def _scored(kind: str, answer: str, entry: Mapping[str, Any]) -> bool:
    if entry["answer"] and equal(answer, entry["answer"]) is True:
        return True
    texts = dict.fromkeys((answer.strip(), plain(answer).replace("^", "**")))
    return any(
        _full_points(kind, text, entry)
        for text in texts
        if len(text) <= _LONGEST and re.fullmatch(SCORED[kind], text, re.DOTALL)
    )


def _full_points(kind: str, text: str, entry: Mapping[str, Any]) -> bool:
    try:
        return float(_dataset(kind).score_answer(text, entry)) >= 1
    except Exception:  # the scorer may raise any error, and the answer may be any text
        return False


@cache
def _dataset(kind: str) -> Any:
    from reasoning_gym.factory import create_dataset

    return create_dataset(kind, size=1, seed=0)


def _significant(digits: int, answer: str, entry: Mapping[str, Any]) -> bool:
    ours, wanted = read(answer), read(entry["answer"])
    if not isinstance(ours, Number) or not isinstance(wanted, Number):
        return False
    if ours.equals(wanted):
        return True
    return f"{float(ours.value):.{digits - 1}e}" == f"{float(wanted.value):.{digits - 1}e}"


def _rounded(answer: str, entry: Mapping[str, Any]) -> bool:
    """Return whether numbers are those of the entry, to the entry's decimals."""
    wanted = entry["answer"]
    places = max(len(part) for part in re.findall(r"\.(\d+)", wanted) or [""])

    def near(a: Value, b: Value) -> bool:
        match a, b:
            case Number(), Number():
                same = {a.unit, b.unit} <= {"", "°"}
                return same and round(a.value, places) == round(b.value, places)
            case Sequence(), Sequence():
                pairs = zip(a.items, b.items, strict=False)
                return (a.brackets, len(a.items)) == (b.brackets, len(b.items)) and all(
                    near(x, y) for x, y in pairs
                )
        return False

    return near(read(answer), read(wanted))


def _lowest_terms(answer: str, entry: Mapping[str, Any]) -> bool:
    given, wanted = (re.findall(r"\d+", text) for text in (answer, entry["answer"]))
    return equal(answer, entry["answer"]) is True and given == wanted


def _factors(answer: str, entry: Mapping[str, Any]) -> bool:
    return _factorization(answer) == _factorization(entry["answer"]) != []


def _factorization(text: str) -> list[int]:
    factors = re.split(r"\s*(?:\\times|\\cdot|\*(?!\*)|x)\s*", plain(text).replace(",", ""))
    found: list[int] = []
    for factor in factors:
        match = re.fullmatch(r"(\d{1,20})(?:\s*\^\s*\{?(\d{1,2})\}?)?", factor.strip())
        if match is None:
            return []
        found += [int(match[1])] * int(match[2] or 1)
    return sorted(found)


def _queens(answer: str, entry: Mapping[str, Any]) -> bool:
    return any(equal(answer, board) is True for board in entry["metadata"]["valid_answers"])


def _makes(answer: str, entry: Mapping[str, Any]) -> bool:
    """Return whether an expression uses each number once and has the target as its value."""
    text = re.sub(r"\\(?:times|cdot)|×", "*", plain(answer).replace("\\div", "/"))
    text = text.partition("=")[0].strip()
    if len(text) > _LONGEST or not re.fullmatch(r"[\d\s+*/()-]+", text) or "**" in text:
        return False
    metadata = entry["metadata"]
    try:
        value = _value(ast.parse(text, mode="eval").body)
    except (SyntaxError, ZeroDivisionError, ValueError, RecursionError):
        return False
    used = sorted(map(int, re.findall(r"\d+", text)))
    return used == sorted(metadata["numbers"]) and value == metadata.get("target", 24)


def _value(node: ast.expr) -> Fraction:
    match node:
        case ast.Constant(value=int() as value):
            return Fraction(value)
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return -_value(inner)
        case ast.BinOp(left, sign, right) if type(sign) in _OPERATORS:
            return _OPERATORS[type(sign)](_value(left), _value(right))
    raise ValueError("neither a whole number nor one of + - * /")


_CHECKS: Final[Mapping[str, Check]] = {
    "advanced_geometry": _rounded,
    "countdown": _makes,
    "fraction_simplification": _lowest_terms,
    "n_queens": _queens,
    "prime_factorization": _factors,
    "puzzle24": _makes,
}
