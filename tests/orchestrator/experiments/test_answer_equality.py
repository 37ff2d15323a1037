"""Answers compared by value, without a computer algebra system."""

from __future__ import annotations

from fractions import Fraction

import pytest

from orchestrator.experiments.answer_equality import Number, compare, expected, final, number


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7", 7),
        ("-12", -12),
        ("- 12", -12),
        ("+3", 3),
        ("007", 7),
        ("5.", 5),
        (".5", Fraction(1, 2)),
        ("1/3", Fraction(1, 3)),
        ("\\frac{1}{2}", Fraction(1, 2)),
        ("\\frac12", Fraction(1, 2)),
        ("-\\dfrac{3}{4}", Fraction(-3, 4)),
        ("1,234", 1234),
        ("1{,}234", 1234),
        ("1\\,234", 1234),
        ("$1,234.50", Fraction(2469, 2)),
        ("\\$7", 7),
        ("$\\frac{1}{4}$", Fraction(1, 4)),
        ("1.5e3", 1500),
        ("\N{MINUS SIGN}8", -8),
        ("-\N{NO-BREAK SPACE}8", -8),
        ("+\t8", 8),
        ("1\t/\n2", Fraction(1, 2)),
    ],
)
def test_numbers(text: str, value: Fraction | int) -> None:
    assert number(text) == Number(Fraction(value))


@pytest.mark.parametrize(
    "text", ["1/0", "blue", "", "2\\sqrt{3}", "x = 5", "(1,2)", "9" * 2000, "-\n8"]
)
def test_what_is_no_plain_number(text: str) -> None:
    assert number(text) is None


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("so 3+4=7.\n\nThe answer is \\boxed{7}.", "7"),
        ("\\boxed{1} no, \\boxed{-12}", "-12"),
        ("\\boxed{\\frac{1}{2}}", "\\frac{1}{2}"),
        ("\\boxed{4", "4"),
        ("first 12, then 34", "34"),
        ("it costs $1,234.50 in all", "1,234.50"),
        ("between 3 and 4.", "4"),
        ("First this.\n\n---\n\n1. Buy 3", "3"),
        ("First this.\n\n---\n\n7", "7"),
        ("It is\n\n---\n\n\\frac{1}{2}", "1/2"),
        ("It is 2 \\frac{1}{2}", "1/2"),
        ("blue", "blue"),
        ("", ""),
    ],
)
def test_what_a_text_gives(text: str, told: str) -> None:
    assert final(text) == told


def test_what_a_problem_wants() -> None:
    assert expected("3 boxes of 14 make 42\n#### 42") == "42"
    assert expected("so it is \\boxed{\\sqrt{2}}") == "\\sqrt{2}"
    assert expected(" (1, 2) ") == "(1, 2)"


@pytest.mark.parametrize(
    ("text", "answer", "equal"),
    [
        ("\\boxed{0.50}", "1/2", True),
        ("\\boxed{\\frac{2}{4}}", "0.5", True),
        ("7.0", "7", True),
        ("007", "7", True),
        ("71", "7", False),
        ("", "7", False),
        ("Blue", "blue", True),
        ("least", "stale", False),
        ("\\boxed{50\\%}", "0.5", True),
        ("\\boxed{0.5}", "50%", True),
        ("\\boxed{50}", "50%", True),
        ("\\boxed{5000\\%}", "50%", False),
        ("\\boxed{1,000}", "1e3", True),
        ("\\boxed{2\\sqrt{3}}", "3", None),
        ("\\boxed{x = 5}", "5", None),
        ("\\boxed{(1,2)}", "(1, 2)", None),
    ],
)
def test_compare(text: str, answer: str, equal: bool | None) -> None:
    assert compare(text, answer) is equal
