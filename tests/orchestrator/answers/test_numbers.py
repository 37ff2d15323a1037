"""Numbers in every spelling, with and without a unit."""

from __future__ import annotations

from fractions import Fraction

import pytest

from orchestrator.answers.numbers import found, number, unit_of


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
    found = number(text)
    assert found is not None
    assert found.value == value


@pytest.mark.parametrize(
    "text", ["1/0", "blue", "", "2\\sqrt{3}", "x = 5", "(1,2)", "9" * 2000, "-\n8"]
)
def test_what_is_no_plain_number(text: str) -> None:
    assert number(text) is None


def test_the_word_in_is_no_unit_in_prose() -> None:
    assert [*found("He puts 5 in the box and walks 3 m.")] == ["5", "3 m"]


@pytest.mark.parametrize(
    ("text", "unit"),
    [
        (" cm^2", "cm2"),
        (" miles per hour", "mi/h"),
        (" red apples", "red apple"),
        ("°", "°"),
        (" $", "$"),
        ("m", None),
        ("cm", "cm"),
        (" N", None),
        (" or more", None),
    ],
)
def test_units(text: str, unit: str | None) -> None:
    assert unit_of(text) == unit
