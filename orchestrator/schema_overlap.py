"""Whether two branches of a JSON Schema exclude each other, so that `oneOf` says what `anyOf` does.

Schemas are those that `orchestrator.json_schema.modern` makes.
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
_MOST_ITEMS: Final = 32  # of lists that are compared
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
    """The schemas each of which a value must match: a schema itself, those in its `allOf`, and what
    it refers to."""
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
    """Compares schemas whose references name `defs`, up to a number of pairs and of values."""

    def __init__(self, defs: Mapping[str, Any]) -> None:
        self._defs, self._steps, self._depth = defs, _MOST_STEPS, 0

    def apart(self, one: Any, other: Any) -> bool:
        """Whether plainly no value matches both of two schemas."""
        self._steps -= 1
        if self._steps < 0 or self._depth == _DEEPEST:
            return False
        self._depth += 1
        found = self._apart(one, other)
        self._depth -= 1
        return found

    def _apart(self, one: Any, other: Any) -> bool:
        whole = [list(parts(each, self._defs)) for each in (one, other)]
        self._steps -= len(whole[0]) * len(whole[1]) + sum(map(_said, [*whole[0], *whole[1]]))
        if self._steps < 0:
            return False
        if any(False in each for each in whole):
            return True
        first, second = ([part for part in each if isinstance(part, dict)] for each in whole)
        return (
            self._choices_apart(first, other)
            or self._choices_apart(second, one)
            or any(_listed_apart(*pair) for pair in product(first, second))
            or any(_listed_apart(*pair) for pair in product(second, first))
            or all(
                self._apart_as(kind, first, second)
                for kind in _KINDS.intersection(*map(_kinds, [*first, *second]))
            )
        )

    def _choices_apart(self, schemas: Sequence[Mapping[str, Any]], other: Any) -> bool:
        """Whether all that one of them offers is apart from another schema."""
        return any(
            all(self.apart(choice, other) for choice in one[union])
            for one in schemas
            for union in ("anyOf", "oneOf")
            if union in one
        )

    def _apart_as(
        self, kind: str, first: Sequence[Mapping[str, Any]], second: Sequence[Mapping[str, Any]]
    ) -> bool:
        """Whether no value of one type matches the parts of both."""
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
        return any(self.apart(one, two) for one, two in pairs if self._steps > 0)


def _said(schema: Any) -> int:
    """How much there is to read in what a schema says of plain values."""
    if not isinstance(schema, dict):
        return 0
    return len(schema.get("enum", ())) + len(schema.get("pattern", ""))


def _kinds(schema: Mapping[str, Any]) -> set[str]:
    """The types of a schema's values; whole numbers are numbers."""
    given = schema.get("type", list(_KINDS))
    named = [given] if isinstance(given, str) else given
    return {"number" if one == "integer" else one for one in named}


def _listed_apart(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether one schema lists its values, and none of them matches another."""
    values = [one["const"]] if "const" in one else one.get("enum")
    if values is None or not other.keys() & _PLAIN:
        return False
    plain = {name: said for name, said in other.items() if name in _PLAIN}
    try:
        valid = Draft202012Validator(plain, pattern_options=RegexOptions()).is_valid
        return not any(map(valid, values))
    except ValueError:  # of a pattern
        return False


def _member(name: str, schema: Mapping[str, Any]) -> Any:
    """What a schema says of a property."""
    named = schema.get("properties", {})
    if name in named:
        return named[name]
    return "patternProperties" in schema or schema.get("additionalProperties", True)


def _item(place: int, schema: Mapping[str, Any]) -> Any:
    """What a schema says of an item."""
    first = schema.get("prefixItems", ())
    return first[place] if place < len(first) else schema.get("items", True)
