"""Whether a value that was read from JSON fits a schema, without a model."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator import grammar
from orchestrator.grammar import fits, holds
from orchestrator.types import Constraint


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
