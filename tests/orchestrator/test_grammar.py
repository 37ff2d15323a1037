"""Whether a value that was read from JSON fits a schema, without a model."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator import grammar
from orchestrator.grammar import fits, holds
from orchestrator.types import Constraint

POINT: Any = {
    "type": "object",
    "properties": {"x": {"type": "number"}, "y": {"type": "integer"}},
    "required": ["x", "y"],
    "additionalProperties": False,
}
PLACE: Any = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "at": {"$ref": "#/$defs/point"},
        "route": {"type": "array", "items": {"$ref": "#/$defs/point"}},
        "perhaps": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/point"}]},
    },
    "required": ["city", "at"],
    "additionalProperties": False,
    "$defs": {"point": POINT},
}
OTHERS: Any = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "additionalProperties": POINT,
}
PARIS: Any = {
    "perhaps": {"y": 2, "x": -1e-9},
    "route": [{"y": 1, "x": 1e30}],
    "at": {"y": 1, "x": 2},
    "city": 'Pa"ris\n\U0001f5fc',
}


@pytest.mark.parametrize(
    ("value", "schema", "fit"),
    [
        (PARIS, PLACE, True),
        ({**PARIS, "perhaps": None}, PLACE, True),
        ({**PARIS, "other": 1}, PLACE, False),
        ({**PARIS, "at": {"x": 1}}, PLACE, False),
        ({**PARIS, "city": 5}, PLACE, False),
        ({**PARIS, "city": "\ud800"}, PLACE, False),
        ({**PARIS, "perhaps": {"y": 1.5, "x": 1}}, PLACE, False),
        ({}, PLACE, False),
        ({"z": 1, "a": 2}, {"type": "object", "properties": {"a": {"type": "integer"}}}, True),
        ({"a": [1]}, {"type": "object"}, True),
        ({"a": 1}, {"type": "strin"}, False),
        ({"a": 1}, {"anyOf": []}, False),
        ({"x": 1.5, "y": 2.0}, POINT, True),
        ({"x": 1.5, "y": 2.5}, POINT, False),
        ({"k": {"x": 1, "y": 2}, "n": 1}, OTHERS, True),
        ({"k": {"y": 2, "x": 1}, "n": 1}, OTHERS, True),
        ({"k": {"y": 2}, "n": 1}, OTHERS, False),
        ({"city": "Привет " * 1000, "at": {"x": 1, "y": 2}}, PLACE, True),
    ],
)
def test_what_fits_a_schema_in_any_order(value: Any, schema: Any, fit: bool) -> None:
    assert fits(value, schema) == fit


@pytest.mark.parametrize(
    ("regex", "text"),
    [
        (r"\w+@\w+\.com\n", "turing@enigma.com\n"),
        ("yes ", "yes "),
        (" (yes|no)", " yes"),
        ("(yes|no)", " yes\n"),
    ],
)
def test_white_space_around_a_form_is_the_forms_own_or_nobodys(regex: str, text: str) -> None:
    assert holds(Constraint("regex", regex), text)
    assert not holds(Constraint("regex", regex), f"{text}x")


def test_what_is_nested_beyond_measure_fits_nothing() -> None:
    deep: Any = {}
    for _ in range(5000):
        deep = {"a": deep}
    assert not fits(deep, {"type": "object"})


def test_a_value_that_is_long_is_not_looked_at() -> None:
    numbers = {"type": "array", "items": {"anyOf": [{"type": "integer"}] * 100}}
    assert fits([1] * 2000, numbers)
    assert not fits([1] * grammar.MAX_FITTING, numbers)


@pytest.mark.parametrize("text", ["NaN", "[1e999]", '{"a": Infinity}', "{", '"\\ud800"'])
def test_what_is_no_json_that_can_be_kept_holds_to_nothing(text: str) -> None:
    assert not holds(Constraint("json_schema", "{}"), text)
