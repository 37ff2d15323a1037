"""Schemas of ours, by random choices of what tools write."""

from __future__ import annotations

import random
from typing import Any

PATTERNS = ["^[a-c]{1,3}$", "b", r"^\d+$", "^x|y$", "^[[&]?-$", "^.?$", r"\s"]
FORMATS = ["date", "uuid", "ipv4", "password", "int32", "email"]
VALUES = [1, 2.5, "a", 'é"\n', None, True, [1, {"b": 2, "a": []}], {"y": 1, "x": None}]
NAMES = [{"type": "string"}, {"maxLength": 2}, {"enum": ["a", "b"]}, {"pattern": "^[a-e]+$"}]


def drawn_schema(rng: random.Random) -> Any:
    """An object that refers to two definitions."""
    return {**_object(rng, 3), "$defs": {name: _drawn(rng, 2) for name in "ab"}}


def _drawn(rng: random.Random, depth: int) -> Any:
    leaves = [_text, _number, _whole, _listed]
    nested = [_reference, _object, _list, _tuple, _union, _both]
    return rng.choice(leaves + nested if depth > 0 else leaves)(rng, depth)


def _some(rng: random.Random, **keywords: Any) -> dict[str, Any]:
    """Some of the keywords, in any order."""
    chosen = [(name, one) for name, one in keywords.items() if rng.random() < 0.4]
    return dict(rng.sample(chosen, len(chosen)))


def _text(rng: random.Random, _depth: int) -> Any:
    lengths = _some(rng, minLength=rng.randint(0, 2), maxLength=rng.randint(2, 6))
    kinds = [{"pattern": rng.choice(PATTERNS)}, {"format": rng.choice(FORMATS)}, lengths]
    return {"type": "string", **rng.choice(kinds)}


def _number(rng: random.Random, _depth: int) -> Any:
    low = rng.choice([-2.5, -1, 0, 0.5, 3])
    bounds = {
        rng.choice(["minimum", "exclusiveMinimum"]): low,
        rng.choice(["maximum", "exclusiveMaximum"]): low + rng.choice([0.25, 1, 40]),
        "multipleOf": rng.choice([0.5, 0.01, 1, 3]),
    }
    return {"type": rng.choice(["number", ["number", "null"]]), **_some(rng, **bounds)}


def _whole(rng: random.Random, _depth: int) -> Any:
    low = rng.choice([-(2**53), -60, -7, 0, 2])
    high, step = low + rng.choice([5, 80, 2**53]), rng.choice([1, 2, 7])
    return {"type": "integer", **_some(rng, minimum=low, maximum=high, multipleOf=step)}


def _listed(rng: random.Random, _depth: int) -> Any:
    return rng.choice([{"const": rng.choice(VALUES)}, {"enum": rng.sample(VALUES, 3)}])


def _reference(rng: random.Random, _depth: int) -> Any:
    return {"$ref": f"#/$defs/{rng.choice('ab')}"}


def _object(rng: random.Random, depth: int) -> Any:
    names = rng.sample(["a", "b", "c", "é", "$x", "k"], rng.randint(0, 3))
    more = _some(
        rng,
        properties={name: _drawn(rng, depth - 1) for name in names},
        required=rng.sample(names, rng.randint(0, len(names))),
        additionalProperties=rng.choice([True, False, _drawn(rng, 0)]),
        patternProperties={"^z": _drawn(rng, 0)},
    )
    rare = _some(
        rng,
        minProperties=rng.randint(0, 2),
        maxProperties=rng.randint(2, 4),
        propertyNames=rng.choice(NAMES),
        dependentRequired={"a": ["b"]},
        unevaluatedProperties=rng.choice([True, False]),
    )
    return {"type": "object", **more, **(rare if rng.random() < 0.4 else {})}


def _list(rng: random.Random, depth: int) -> Any:
    bounds = _some(rng, minItems=rng.randint(0, 2), maxItems=rng.randint(1, 4))
    rare = {"uniqueItems": True} if rng.random() < 0.1 else {}
    return {"type": "array", "items": _drawn(rng, depth - 1), **bounds, **rare}


def _tuple(rng: random.Random, depth: int) -> Any:
    first = [_drawn(rng, depth - 1) for _ in range(rng.randint(1, 3))]
    rest = rng.choice([{}, {"items": False}, {"items": _drawn(rng, 0)}])
    bounds = _some(rng, minItems=len(first), maxItems=3)
    return {"type": "array", "prefixItems": first, **rest, **bounds}


def _union(rng: random.Random, depth: int) -> Any:
    kinds = [_kind(name, _drawn(rng, depth - 1)) for name in "pq"]
    values = [_drawn(rng, depth - 1), rng.choice([{"type": "null"}, _drawn(rng, 0)])]
    return rng.choice([{"oneOf": kinds}, {"oneOf": values}, {"anyOf": values}])


def _kind(name: str, value: Any) -> Any:
    properties = {"kind": {"const": name}, "v": value}
    return {"type": "object", "properties": properties, "required": ["kind"]}


def _both(rng: random.Random, depth: int) -> Any:
    return {"allOf": [_object(rng, depth - 1), {"properties": {"c": _drawn(rng, 0)}}]}
