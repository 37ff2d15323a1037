"""Answers held to JSON Schemas, against another library's validator, both ways.

`BATON_SCHEMAS=2000 python -m pytest -s tests/orchestrator/test_held_schema.py` draws so many
schemas, asks for more values of those that tools emit, and prints how many there were.
"""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from orchestrator import held_schema
from orchestrator.errors import InvalidRequest
from orchestrator.grammar import check, fits, holds, tool_rules
from orchestrator.held_schema import held
from orchestrator.types import Constraint
from tests.orchestrator.drawn_schemas import drawn_schema
from tests.orchestrator.schema_samples import compared, laid_out, lets_through, matcher

DRAWN = int(os.environ.get("BATON_SCHEMAS", "60"))
EMITTED = [
    json.loads(line)
    for line in (Path(__file__).parent / "emitted_schemas.jsonl").read_text().splitlines()
]
"""What tools make of models of ours: the tool and its version, the model's name, the dialect."""


def test_schemas_as_tools_emit_them() -> None:
    found = Counter[str]()
    for i, row in enumerate(EMITTED):
        try:
            rng, walks = random.Random(i), 1 + DRAWN // 100
            found += compared(row["schema"], row["dialect"], rng, walks)
        except AssertionError as error:
            raise AssertionError(f"{row['tool']}, {row['name']}: {error}") from error
    print(f"{len(EMITTED)} emitted: {dict(found)}")
    assert found["refused"] <= 27
    assert found["written"] > 100


def test_schemas_by_random_choices() -> None:
    found = Counter[str]()
    for seed in range(DRAWN):
        rng = random.Random(seed)
        try:
            found += compared(drawn_schema(rng), "2020-12", rng, 3)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
    print(f"{DRAWN} drawn: {dict(found)}")
    assert found["accepted"] > DRAWN // 2


NUMBERS = {"type": "object", "properties": {"kind": {"const": "n"}, "n": {"type": "integer"}}}
TEXTS = {"type": "object", "properties": {"kind": {"const": "t"}, "t": {"type": "string"}}}
UNION = {
    "oneOf": [{"$ref": "#/$defs/n"}, {"$ref": "#/$defs/t"}],
    "discriminator": {"propertyName": "kind"},
    "$defs": {"n": {**NUMBERS, "required": ["kind"]}, "t": {**TEXTS, "required": ["kind"]}},
}


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [
        ({"multipleOf": 1, "type": "number"}, [-3, 4], [0.5]),
        ({"type": "integer", "multipleOf": 5, "minimum": 0}, [15, 0], [14]),
        ({"type": "object", "propertyNames": {"type": "string"},
          "additionalProperties": {"type": "number"}}, [{}, {"a b": 1.5}], [{"a": "x"}]),
        ({"type": "object", "propertyNames": {"enum": ["a", "b"]}, "required": ["b"],
          "additionalProperties": {"type": "boolean"}}, [{"a": True, "b": False}], [{"b": 1}, {}]),
        ({"type": "object", "propertyNames": {"pattern": "^[a-z]$"},
          "additionalProperties": {"type": "integer"}}, [{"a": 1}], [{"A": 1}, {"a": "x"}]),
        ({"type": "string", "format": "password", "writeOnly": True}, ["any thing"], [1]),
        ({"type": "object", "minProperties": 0, "uniqueItems": False, "unevaluatedProperties": {},
          "not": False, "x-order": 5}, [{"a": 1}], []),
        ({"oneOf": [{"const": "a", "title": "A"}, {"enum": ["b", "c"]}, {"const": None}]},
         ["a", "c", None], ["d", 1]),
        ({"oneOf": [{"const": True}, {"const": 1}, {"const": 1.5}]}, [True, 1, 1.5], [2, False]),
        ({"type": "object", "oneOf": [{"properties": {"k": {"const": k}}, "required": ["k"]}
                                      for k in "ab"]}, [{"k": "a"}], [{"k": "c"}, {}, 1]),
        ({"type": "object", "minProperties": 1, "required": ["a", "b"], "properties":
          {name: {"type": "integer"} for name in "abc"}}, [{"a": 1, "b": 2}], [{"c": 1}, {}]),
        ({"type": ["integer", "null"], "multipleOf": 1}, [-3, None], [0.5, "a"]),
        ({"type": ["string", "integer"], "multipleOf": 0.5}, [-3, "a"], [0.5]),
        ({"type": "array", "uniqueItems": True, "maxItems": 1}, [[], [1]], [[1, 2]]),
        ({"type": "array", "items": {"type": "integer"}, "contains": {"const": 5},
          "minContains": 0}, [[], [1], [5, 5]], [["a"]]),
        (UNION, [{"kind": "n", "n": 1}, {"kind": "t"}], [{"kind": "x"}, {"kind": "n", "n": "a"}]),
        ({"const": {"a": 1, "b": [2.0, {"c": None, "d": 1}]}},
         [{"b": [2, {"d": 1, "c": None}], "a": 1.0}], [{"a": 1}]),
        ({"items": [{"type": "integer"}, {"type": "string"}], "additionalItems": False,
          "minItems": 2}, [[1, "a"]], [[1, 2], [1, "a", 3], [1]]),
        ({"$schema": "http://json-schema.org/draft-07/schema#", "type": "array",
          "items": [{"type": "integer"}]}, [[1, "a"], []], [["a"]]),
        ({"type": "number", "minimum": 0, "exclusiveMinimum": True}, [0.5], [0]),
        ({"type": "string", "nullable": True, "maxLength": 1}, [None, "a"], ["ab", 1]),
        ({"type": "integer", "format": "int64", "minimum": -(2**63), "maximum": 2**63 - 1},
         [0, -(2**53) + 1], [0.5]),
        ({"type": "object", "patternProperties": {"^x": {"type": "integer"}}, "anyOf":
          [{"required": ["xa"]}], "additionalProperties": False}, [{"xa": 1}], [{"xb": 1}]),
        ({"$ref": "#/components/schemas/a~1b%20c",
          "components": {"schemas": {"a/b c": {"type": "integer"}}}}, [1], ["x"]),
        ({"$id": "T", "type": "object", "properties": {"next": {"$ref": "T"}},
          "additionalProperties": False}, [{"next": {"next": {}}}], [{"next": 1}]),
        ({"type": "string", "enum": None, "minLength": 1.0, "pattern": None}, ["a"], [""]),
        ({"type": "string", "pattern": "^[[&~]--$"}, ["[--", "&--"], ["a--", "--"]),
        ({"type": "string", "pattern": r"^[^]\s$"}, ["a\ufeff", "\n "], ["ab"]),
    ],
)  # fmt: skip
def test_what_a_schema_says_is_held_to(schema: Any, valid: list[Any], invalid: list[Any]) -> None:
    source = json.dumps(schema)
    assert held(source).faults == ()
    form, state = Constraint("json_schema", source), matcher(source)
    for value in valid:
        assert holds(form, json.dumps(value, separators=(",", ":")))
        assert fits(value, schema)
        assert lets_through(state, laid_out(value, schema)), value
    for value in invalid:
        assert not holds(form, json.dumps(value))
        assert not fits(value, schema)
        assert not lets_through(state, laid_out(value, schema)), value


def inside(schema: Any) -> Any:
    """A schema as that of a property in a list of a definition."""
    entry = {"type": "object", "properties": {"good": {"type": "integer"}, "bad": schema}}
    rows = {"type": "array", "items": {"$ref": "#/$defs/entry"}}
    return {"type": "object", "properties": {"rows": rows}, "$defs": {"entry": entry}}


@pytest.mark.parametrize(
    ("schema", "fault", "rest"),
    [
        ({"type": "integer", "multipleOf": 5}, "multipleOf: .*below 0", {"type": "integer"}),
        ({"type": "integer", "multipleOf": 5, "maximum": -2}, "multipleOf: .*below 0", None),
        ({"type": "integer", "multipleOf": float("inf")}, "multipleOf: .*below 0", None),
        ({"type": "number", "multipleOf": 0.07, "minimum": 0}, "multipleOf: .*digits", None),
        ({"type": "string", "pattern": "a(?!b)"}, "pattern: look-around.* is not supported",
         {"type": "string"}),
        ({"type": "string", "pattern": "(", "maxLength": 3}, "pattern: unclosed group",
         {"type": "string", "maxLength": 3}),
        ({"type": "array", "items": {"type": "integer"}, "uniqueItems": True}, "uniqueItems: ",
         None),
        ({"not": {"type": "null"}, "type": ["string", "null"]}, "not: no grammar",
         {"type": ["string", "null"]}),
        ({"if": {"const": 1}, "then": {"minimum": 5}}, "if: no grammar", {}),
        ({"type": "bigint"}, "type: expected one or more of string, .*got 'bigint'", {}),
        ({"minimum": "3", "type": "integer"}, 'minimum: "3" is not of type "number"', None),
        ({"$ref": "https://a.b/c"}, r"\$ref: expected a reference .*got https://a.b/c", {}),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "oneOf: .*may both match.*anyOf",
         {"anyOf": [{"type": "integer"}, {"type": "number"}]}),
        ({"oneOf": [{"const": {"a": 1, "b": 2}}, {"const": {"b": 2.0, "a": 1}}]}, "oneOf: ", None),
        ({"type": "object", "oneOf": [{"required": ["k"], "properties": {"k": {"const": one}}}
                                      for one in (1, 1.0)]}, "oneOf: .*may both match", None),
        ({"oneOf": [{"required": ["k"], "properties": {"k": {"const": one}}} for one in "ab"]},
         "oneOf: .*may both match", None),  # of a text, both
        ({"type": "array", "contains": {"const": 5}}, "contains: no grammar", {"type": "array"}),
        ({"type": "array", "contains": {"const": 5}, "minContains": 0, "maxContains": 1},
         "contains: no grammar", None),
        ({"type": "object", "dependencies": {"a": ["b"]}}, "dependencies: no grammar",
         {"type": "object"}),
        ({"type": "object", "minProperties": 3}, "minProperties: .*come twice",
         {"type": "object"}),
        ({"type": "array", "maxItems": 10**9}, "maxItems: ", {"type": "array"}),
        ({"type": "integer", "minimum": 2**60}, "minimum: ", None),
        ({"const": 2**53 + 1}, "const: 9007199254740993 is beyond", {}),
        ({"type": "object", "properties": {"a": 5}}, "properties.a: expected a JSON Schema",
         {"type": "object", "properties": {"a": True}}),
    ],
)  # fmt: skip
def test_what_cannot_be_held_to_is_named_with_its_place_and_left_out_of_the_rest(
    schema: Any, fault: str, rest: Any
) -> None:
    whole = inside(schema)
    found = held(json.dumps(whole))
    with pytest.raises(InvalidRequest, match=rf"p: \$defs\.entry\.properties\.bad\.{fault}"):
        check(Constraint("json_schema", json.dumps(whole)), "p")
    properties = found.schema["$defs"]["entry"]["properties"]
    assert properties["good"]["type"] == "integer"
    if rest is not None:
        plain = held(json.dumps({"properties": {"bad": rest}})).schema["properties"]["bad"]
        assert properties["bad"] == plain
    tool = {"name": "t", "parameters": whole, "strict": False, "place": "tools[0]"}
    rules = tool_rules([tool], required=False, parallel=True, answer=None)
    assert json.loads(rules.source)["tools"][0][1] == found.schema
    with pytest.raises(InvalidRequest, match=r"tools\[0\]: \$defs\.entry\.properties\.bad"):
        tool_rules([{**tool, "strict": True}], required=False, parallel=True, answer=None)


def test_two_keywords_that_no_value_matches_together_are_refused() -> None:
    schema = {"type": "string", "pattern": "^a{5}$", "maxLength": 3}
    whole = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    assert held(json.dumps({**whole, "required": []})).faults == ()  # it is never written
    with pytest.raises(InvalidRequest, match=r"p: .*'a' is unsatisfiable"):
        check(Constraint("json_schema", json.dumps(whole)), "p")


def test_a_definition_that_is_itself_is_refused() -> None:
    schema = {"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}]}}}
    with pytest.raises(InvalidRequest, match=r"p: \$defs\.a: it refers to itself"):
        check(Constraint("json_schema", json.dumps(schema)), "p")


@pytest.mark.parametrize("names", [True, False])
def test_property_names_may_refer_to_a_definition_without_keywords(names: bool) -> None:
    schema = {"type": "object", "propertyNames": {"$ref": "#/$defs/n"}, "$defs": {"n": names}}
    (fault,) = held(json.dumps(schema)).faults
    assert fault.startswith("propertyNames: no grammar")


def test_names_of_definitions_may_be_in_any_language() -> None:
    sizes = {"Größe": {"type": "integer"}, "Grüße": {"type": "string"}}
    named = {"s": {"$ref": "#/$defs/Größe"}, "g": {"$ref": "#/$defs/Gr%C3%BC%C3%9Fe"}}
    schema = {"type": "object", "properties": named, "required": ["s", "g"], "$defs": sizes}
    state = matcher(json.dumps({**schema, "additionalProperties": False}))
    assert lets_through(state, '{"s": 1, "g": "a"}')
    assert not lets_through(state, '{"s": "a", "g": 1}')


def test_a_schema_that_doubles_with_each_reference_is_refused() -> None:
    links = {f"a{i}": {"anyOf": [{"$ref": f"#/$defs/a{i + 1}"}] * 2} for i in range(40)}
    schema = {"$ref": "#/$defs/a0", "$defs": {**links, "a40": {"type": "integer"}}}
    with pytest.raises(InvalidRequest, match="more than 16384 parts"):
        check(Constraint("json_schema", json.dumps(schema)), "p")


@pytest.mark.parametrize("kind", ["properties", "anyOf", "allOf"])
def test_a_schema_that_is_too_deep_with_its_references_is_refused(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library needs some of the stack for each level."""
    monkeypatch.setattr(held_schema, "_MOST_LEVELS", 20)
    links: dict[str, Any] = {"a30": {"type": "object"}}
    for i in range(30):
        below = {"$ref": f"#/$defs/a{i + 1}"}
        links[f"a{i}"] = {kind: {"x": below} if kind == "properties" else [below]}
    with pytest.raises(InvalidRequest, match="more than 20 levels deep"):
        check(Constraint("json_schema", json.dumps({"$ref": "#/$defs/a0", "$defs": links})), "p")


@pytest.mark.parametrize("schema", [{"const": -4096}, {"type": "integer", "minimum": -4096,
    "maximum": -4095}, {"enum": [4096]}])  # fmt: skip
def test_numbers_that_the_library_has_no_room_for_are_refused(
    schema: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_schema, "_LARGEST", 4096)
    monkeypatch.setattr(held_schema, "_EXACT", 4095)
    with pytest.raises(InvalidRequest, match="beyond the numbers that stay exact"):
        check(Constraint("json_schema", json.dumps(schema)), "p")


def test_arguments_of_a_tool_are_an_object_whatever_its_schema_says() -> None:
    tool = {"name": "t", "parameters": {"properties": {}}, "strict": True, "place": "p"}
    rules = tool_rules([tool], required=False, parallel=True, answer=None)
    assert json.loads(rules.source)["tools"][0][1]["type"] == "object"


@pytest.mark.parametrize("count_first", [False, True])
def test_of_keywords_that_are_refused_together_a_count_is_left_out(count_first: bool) -> None:
    named = {"a": {"type": "string"}, "b": {"type": "integer"}}
    count, shape = {"minProperties": 1}, {"properties": named}
    both = {**count, **shape} if count_first else {**shape, **count}
    found = held(json.dumps({"type": "object", **both}))
    assert [fault.partition(":")[0] for fault in found.faults] == ["minProperties"]
    assert found.schema["properties"].keys() == {"a", "b"}
