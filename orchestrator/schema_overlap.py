"""Whether two branches of a JSON Schema exclude each other, so that `oneOf` means `anyOf`.

Schemas are those that `orchestrator.json_schema.modern` returns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import inf
from typing import Any, Final

from jsonschema_rs import Draft202012Validator, RegexOptions

from orchestrator.json_schema import TYPES, name_of

_MOST_STEPS: Final = 20_000
_DEEPEST: Final = 16
_MOST_ITEMS: Final = 32  # items of a list that are compared
_KINDS: Final = {kind for kind in TYPES.values() if kind != "integer"}
_BOUNDS: Final = {
    "number": ("minimum", "maximum"),
    "string": ("minLength", "maxLength"),
    "array": ("minItems", "maxItems"),
}
_PLAIN: Final = {
    *("type", "enum", "const", "pattern", "format", "required", "multipleOf"),
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minLength", "maxLength"),
}


def parts(schema: Any, defs: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the schemas each of which a value must match: this one, those of its `allOf`, and the
    definitions that they refer to."""
    left, seen = [schema], set[str]()
    while left:
        one = left.pop()
        yield one
        if not isinstance(one, dict):
            continue
        left += one.get("allOf", ())
        name = name_of(one)
        if name in defs and name not in seen:
            seen.add(name)
            left.append(defs[name])


class Overlap:
    """Compares schemas whose references name `defs`, up to a number of comparisons."""

    def __init__(self, defs: Mapping[str, Any]) -> None:
        self._defs, self._steps, self._depth = defs, _MOST_STEPS, 0

    def disjoint(self, one: Any, other: Any) -> bool:
        """Return whether certainly no value matches both schemas."""
        self._steps -= 1
        if self._steps < 0 or self._depth == _DEEPEST:
            return False
        self._depth += 1
        found = self._disjoint(one, other)
        self._depth -= 1
        return found

    def _disjoint(self, one: Any, other: Any) -> bool:
        whole = [list(parts(each, self._defs)) for each in (one, other)]
        self._steps -= len(whole[0]) * len(whole[1]) + sum(map(_said, [*whole[0], *whole[1]]))
        if self._steps < 0:
            return False
        if any(False in each for each in whole):
            return True
        first, second = ([part for part in each if isinstance(part, dict)] for each in whole)
        return (
            self._choices_disjoint(first, other)
            or self._choices_disjoint(second, one)
            or any(_listed_disjoint(*pair) for pair in product(first, second))
            or any(_listed_disjoint(*pair) for pair in product(second, first))
            or all(
                self._disjoint_as(kind, first, second)
                for kind in _KINDS.intersection(*map(_kinds, [*first, *second]))
            )
        )

    def _choices_disjoint(self, schemas: Sequence[Mapping[str, Any]], other: Any) -> bool:
        """Return whether one of the schemas offers only choices that are disjoint from `other`."""
        return any(
            all(self.disjoint(choice, other) for choice in one[union])
            for one in schemas
            for union in ("anyOf", "oneOf")
            if union in one
        )

    def _disjoint_as(
        self, kind: str, first: Sequence[Mapping[str, Any]], second: Sequence[Mapping[str, Any]]
    ) -> bool:
        """Return whether no value of the type `kind` matches all these schemas."""
        every = [*first, *second]
        if kind in _BOUNDS:
            low, high = _BOUNDS[kind]
            least = max((one[low] for one in every if low in one), default=-inf)
            if least > min((one[high] for one in every if high in one), default=inf):
                return True
        if kind == "object":
            names = {name for one in every for name in one.get("required", ())}
            pairs: Iterator[tuple[Any, Any]] = (
                (_member(name, one), _member(name, two))
                for name in sorted(names)
                for one, two in product(first, second)
            )
        elif kind == "array":
            sure = max((one.get("minItems", 0) for one in every), default=0)
            pairs = (
                (_item(place, one), _item(place, two))
                for place in range(min(sure, _MOST_ITEMS))
                for one, two in product(first, second)
            )
        else:
            return False
        return any(self.disjoint(one, two) for one, two in pairs if self._steps > 0)


def _said(schema: Any) -> int:
    """Return the size of a schema's enumeration and pattern."""
    if not isinstance(schema, dict):
        return 0
    return len(schema.get("enum", ())) + len(schema.get("pattern", ""))


def _kinds(schema: Mapping[str, Any]) -> set[str]:
    """Return the types of a schema's values; integers count as numbers."""
    given = schema.get("type", list(_KINDS))
    named = [given] if isinstance(given, str) else given
    return {"number" if one == "integer" else one for one in named}


def _listed_disjoint(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether one schema lists its values, and none of them matches the other."""
    values = [one["const"]] if "const" in one else one.get("enum")
    if values is None or not other.keys() & _PLAIN:
        return False
    plain = {name: said for name, said in other.items() if name in _PLAIN}
    try:
        valid = Draft202012Validator(plain, pattern_options=RegexOptions()).is_valid
        return not any(map(valid, values))
    except ValueError:  # an invalid pattern
        return False


def _member(name: str, schema: Mapping[str, Any]) -> Any:
    """Return the schema of a property; True if a pattern may name it."""
    named = schema.get("properties", {})
    if name in named:
        return named[name]
    return "patternProperties" in schema or schema.get("additionalProperties", True)


def _item(place: int, schema: Mapping[str, Any]) -> Any:
    """Return the schema of an item."""
    first = schema.get("prefixItems", ())
    return first[place] if place < len(first) else schema.get("items", True)
