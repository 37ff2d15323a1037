"""What is wrong with a value, in a user's words: the place, what is expected, what came."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from orchestrator.errors import InvalidRequest
from orchestrator.validation import (
    closest,
    each_error,
    error_text,
    fields_at,
    invalid_request,
    unknown,
    with_numbers,
)


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid")

    size: int = Field(default=1, ge=1, le=9)
    ratio: float = 0.5
    on: bool = False
    name: str = Field(default="x", min_length=1)
    mode: Literal["full", "short"] = "full"
    api_key: int = 0
    many: list[str] = Field(default=[], max_length=2)
    few: dict[str, int] = Field(default={}, max_length=1)
    schema_: str = Field(default="", alias="schema")
    either: int | list[str] = 0


class Outer(BaseModel):
    model_config = ConfigDict(extra="forbid")

    inner: Inner | Literal["none"] | None = None
    several: list[Inner] = []
    free: dict[str, Any] = {}


def refusal(model: type[BaseModel], data: dict[str, Any]) -> InvalidRequest:
    with pytest.raises(ValidationError) as found:
        model.model_validate(data)
    return invalid_request(found.value, model=model)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"size": "high"}, "size: must be an integer, not 'high'"),
        ({"size": 83}, "size: must be at most 9, not 83"),
        ({"size": 0}, "size: must be at least 1, not 0"),
        ({"ratio": None}, "ratio: must be a number, not null"),
        ({"ratio": "x" * 80}, "ratio: must be a number"),  # too long to be said again
        ({"on": "perhaps"}, "on: must be true or false, not 'perhaps'"),
        ({"name": True}, "name: must be a string, not true"),
        ({"name": ""}, "name: must have at least 1 character, not ''"),
        ({"mode": "lang"}, "mode: must be 'full' or 'short', not 'lang'"),
        ({"api_key": "s3cret"}, "api_key: must be an integer"),  # a secret is not said again
        ({"api_key": 0.5}, "api_key: must be an integer"),
        ({"size": 1.5}, "size: must be an integer, not 1.5"),
        ({"size": 10**5000}, "size: must be at most 9"),  # Python refuses to write it
        ({"name": {5: "x"}}, "name: must be a string"),
        ({"few": {"a": 1, "b": 2}}, "few: must have at most 1 item"),
        ({"either": "x"}, "either: must be an integer or a list, not 'x'"),
        ({"either": [5]}, "either[0]: must be a string, not 5"),
        ({"schem": 1}, "schem: unknown parameter; did you mean schema?"),
        ({"many": 7}, "many: must be a list, not 7"),
        ({"many": ["a", "b", "c"]}, "many: must have at most 2 items, not 3"),
        ({"sizes": 3}, "sizes: unknown parameter; did you mean size?"),
        (
            {"zzz": 3},
            "zzz: unknown parameter; there are api_key, either, few, many, mode, name, on, "
            "ratio, schema, size",
        ),
    ],
)
def test_a_message_says_what_is_expected_and_what_came(given: dict[str, Any], message: str) -> None:
    error = refusal(Inner, given)
    assert error.message == message
    assert error.param == message.partition(":")[0]


def test_a_field_of_a_nested_object_is_told_that_objects_fields() -> None:
    assert refusal(Outer, {"several": [{"nam": 1}]}).message == (
        "several[0].nam: unknown parameter; did you mean name?"
    )
    assert refusal(Outer, {"inner": {"nam": 1}}).message.endswith("did you mean name?")
    assert refusal(Outer, {"several": [5]}).message == "several[0]: must be an object, not 5"
    assert refusal(Outer, {"free": {5: 1}}).message == "free[5]: a key must be a string, not 5"
    assert refusal(Outer, {"inner": "some"}).message.endswith("must be an object, not 'some'")
    assert fields_at(Outer, ("free", "key", "x")) == []  # anything may stand there
    assert fields_at(None, ("x",)) == []


def test_every_error_is_named_once_and_of_a_union_the_deepest_branch() -> None:
    with pytest.raises(ValidationError) as found:
        Inner.model_validate({"either": [5, "a", 6], "size": "x", "zzz": 1, "mode": 3})
    assert list(each_error(found.value.errors(), Inner, "field")) == [
        ("int_parsing", ("size",), "must be an integer, not 'x'"),
        ("literal_error", ("mode",), "must be 'full' or 'short', not 3"),
        ("string_type", ("either", 0), "must be a string, not 5"),
        ("string_type", ("either", 2), "must be a string, not 6"),
        (
            "extra_forbidden",
            ("zzz",),
            "unknown field; there are api_key, either, few, many, mode, name, on, ratio, schema, "
            "size",
        ),
    ]


def test_names_that_are_close() -> None:
    assert closest("treshold", ["threshold", "budget"]) == "; did you mean threshold?"
    assert closest("x" * 5000, ["threshold"]) == ""
    assert closest("learned", ["bild", "learned-gate"]) == "; did you mean learned-gate?"
    assert closest("bandit", ["unit", "arms"]) == ""
    assert unknown("field", "zzz", []) == "unknown field"
    assert unknown("field", "zzz", [str(n) for n in range(40)]) == "unknown field"


def test_a_validators_own_words_stay() -> None:
    with pytest.raises(ValidationError) as found:
        raise ValidationError.from_exception_data(
            "x",
            [{"type": "value_error", "loc": ("a",), "input": 1, "ctx": {"error": "Say so"}}],
        )
    (detail,) = found.value.errors()
    assert error_text(detail, None, "field") == "Say so"


def test_powers_that_yaml_takes_for_texts_are_numbers() -> None:
    given = {"risk": "1e-3", "also": [{"at": "-2.E+4"}], "name": "1e-3a", "model": "e5", "left": 1}
    read = {"risk": 0.001, "also": [{"at": -20000.0}], "name": "1e-3a", "model": "e5", "left": 1}
    assert with_numbers(given) == read
