"""Large schemas of many shapes are accepted, or refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from orchestrator.errors import InvalidRequest
from orchestrator.grammar import tool_rules
from orchestrator.held_schema import held
from orchestrator.rust_patterns import without_bare_classes

BAD = {"type": "string", "pattern": "a(?!b)"}


def named(n: int, one: Callable[[int], Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {f"p{i}": one(i) for i in range(n)}}


def kind(i: int) -> dict[str, Any]:
    return {**named(1, lambda _: {"const": f"k{i}"}), "required": ["p0"]}


def chain(n: int, link: Callable[[dict[str, str]], Any]) -> dict[str, Any]:
    """Definitions each of which refers to the next one."""
    links = {f"d{i}": link({"$ref": f"#/$defs/d{i + 1}"}) for i in range(n)}
    return {"$ref": "#/$defs/d0", "$defs": {**links, f"d{n}": {"type": "string"}}}


def deep(n: int) -> dict[str, Any]:
    """A schema each level of which is referred to."""
    below: Any = {"type": "string"}
    for _ in range(60):
        below = {"type": "array", "items": below, "prefixItems": [{"minLength": 1}] * (n // 60)}
    return {**named(60, lambda i: {"$ref": "#/deep" + "/items" * i}), "deep": below}


LARGE: dict[str, tuple[int, Callable[[int], Any]]] = {
    "choices of objects": (700, lambda n: {"oneOf": [kind(i) for i in range(n)]}),
    "equal choices": (700, lambda n: {"oneOf": [kind(0)] * n}),
    "choices of patterns": (
        500, lambda n: {"oneOf": [{"const": "a", "pattern": f"^[a-z]{{1,60}}{i}"} for i in
            range(n)]}),
    "refused": (1500, lambda n: named(n, lambda i: BAD)),
    "refused in pairs": (
        800, lambda n: {"required": [f"p{i}" for i in range(n)], **named(n, lambda _: {"type":
            "string", "pattern": "^a{5}$", "maxLength": 3})}),
    "refused choices": (1500, lambda n: {"anyOf": [BAD] * n}),
    "parts": (1500, lambda n: {"allOf": [named(1, lambda k, i=i: {"minLength": i}) for i in
        range(n)]}),
    "a chain of choices": (300, lambda n: chain(n, lambda rest: {"anyOf": [rest, rest]})),
    "a chain of parts": (2000, lambda n: chain(n, lambda rest: {"allOf": [rest]})),
    "open properties in a chain": (
        390, lambda n: chain(n, lambda rest: {"allOf": [rest], "unevaluatedProperties": False})),
    "levels that are referred to": (1500, deep),
    "one name for all": (
        2000, lambda n: {**named(n, lambda i: {"$ref": f"#/x/d{i}/s"}), "x": {f"d{i}": {"s":
            {"type": "string"}} for i in range(n)}}),
    "anchors": (
        1200, lambda n: {**named(n, lambda i: {"$ref": f"#a{i}"}), "$defs": {f"d{i}": {"$anchor":
            f"a{i}"} for i in range(n)}}),
    "properties": (9000, lambda n: named(n, lambda i: True)),
    "names": (9000, lambda n: {"propertyNames": {"enum": [f"a{i}" for i in range(n)]}}),
    "tuples": (9000, lambda n: {"prefixItems": [{"type": "integer"}] * n}),
}  # fmt: skip
"""How many of what, and the schema: as large as a request may have."""


@pytest.mark.parametrize("shape", LARGE)
def test_a_large_schema_is_accepted_or_refused_by_name(shape: str) -> None:
    n, made = LARGE[shape]
    source = json.dumps(made(n))
    assert 10_000 < len(source) < 1 << 18
    found = held(source)
    assert all(found.faults)
    assert found.faults or found.schema


def test_many_tools_are_read_up_to_a_size_together() -> None:
    tools = [
        {
            "name": f"t{i}",
            "parameters": named(300, lambda k, i=i: {**BAD, "maxLength": 100 + i}),
            "strict": False,
            "place": f"tools[{i}]",
        }
        for i in range(40)
    ]
    rules = json.loads(tool_rules(tools, required=False, parallel=True, answer=None).source)
    assert rules["tools"][-1] == ["t39", {"type": "object"}]
    with pytest.raises(InvalidRequest, match=r"tools\[39\]: there is no room for it"):
        tool_rules(
            [*tools[:-1], {**tools[-1], "strict": True}], required=False, parallel=True, answer=None
        )


def test_an_unfinished_class_stays_as_it_is() -> None:
    assert without_bare_classes("[[[\\") == "[[[\\"
