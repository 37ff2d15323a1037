"""The part of a JSON Schema that a grammar can enforce, and the faults of the rest.

The library llguidance makes a grammar of a schema. It names no place, and ignores or misreads some
keywords. So a schema is rewritten into a form that it reads right, and what no grammar can enforce
is left out and reported with its place.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from graphlib import CycleError, TopologicalSorter
from typing import Any, Final

from jsonschema_rs import ValidationError, meta

from orchestrator.json_rule import fault_of, json_rule
from orchestrator.json_schema import (
    MOST_PARTS,
    TYPES,
    References,
    SchemaRefused,
    ValueForm,
    map_subschemas,
    modern,
    name_of,
    properties_of,
    subschemas,
    value_form,
)
from orchestrator.rust_patterns import rust_pattern

MAX_SOURCE: Final = 1 << 17  # characters of a schema without remarks, or of a grammar
_EXACT: Final = 2**53 - 1
_LARGEST: Final = 2**63
_MOST_ITEMS: Final = 10_000  # the largest minItems or maxItems
_MOST_NAMES: Final = 1024  # entries in a keyword's value: the library compares them all
_MOST_LEVELS: Final = 400  # the library takes 5 KB of the stack for each
_IN_PLACE: Final = ("$ref", "const", "enum", "allOf", "anyOf", "oneOf")
_BOUNDS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_IDLE: Final[Mapping[str, tuple[Any, ...]]] = {
    "not": (False,),
    "uniqueItems": (False,),
    "propertyNames": (True, {}, {"type": "string"}),
    "unevaluatedItems": (True, {}),
    "unevaluatedProperties": (True, {}),
}
"""Values with which keywords that no grammar can enforce have no effect."""
_UNHELD: Final = (
    *("not", "if", "then", "else", "contains", "minContains", "maxContains", "uniqueItems"),
    *("propertyNames", "dependencies", "dependentRequired", "dependentSchemas"),
    *("unevaluatedItems", "unevaluatedProperties", "$dynamicRef", "$recursiveRef"),
)
_LEAVES: Final = ("pattern", "multipleOf")
"""Keywords whose value the library may refuse."""


@dataclass(frozen=True, slots=True)
class Held:
    """The part of a JSON Schema that a grammar can enforce.

    Attributes:
        schema: for the grammars' library; its references name entries of `$defs`.
        faults: the parts that were left out, each as its place in the schema and the reason.
    """

    schema: Any
    faults: tuple[str, ...]


@lru_cache(maxsize=128)  # agents send their tools with every turn
def held(source: str) -> Held:
    """Return the part of a schema, which is given as JSON, that a grammar can enforce."""
    try:
        reader = _Reader(modern(json.loads(source)))
        return Held(reader.whole(), tuple(reader.faults))
    except SchemaRefused as error:
        return Held({}, (str(error),))


class _Reader:
    """Rewrites a modern schema into a form that the library reads right."""

    def __init__(self, schema: Any) -> None:
        self._defs: dict[str, Any] = schema.get("$defs", {}) if isinstance(schema, dict) else {}
        self.faults = list[str]()
        self._root = schema
        if self._defs:
            self._root = {name: one for name, one in schema.items() if name != "$defs"}

    def whole(self) -> Any:
        self._root = self._valid(self._root, "")
        for name, one in self._defs.items():
            self._defs[name] = self._valid(one, f"$defs.{name}")
        self._check_size()
        self._check_cycles()
        found = self._schema(self._root, "")
        defs = {name: self._schema(one, f"$defs.{name}") for name, one in self._defs.items()}
        whole = {**found, "$defs": defs} if defs and isinstance(found, dict) else found
        if fault := fault_of(f"start: {json_rule(whole)}"):
            raise SchemaRefused(self.faults[0] if self.faults else fault)
        return whole

    def _check_size(self) -> None:
        if (size := len(json.dumps([self._root, self._defs]))) > MAX_SOURCE:
            raise SchemaRefused(
                f"it has {size} characters without remarks; at most {MAX_SOURCE} are allowed"
            )
        if self._size(self._root, {}) > MOST_PARTS:
            raise SchemaRefused(f"with what it refers to it has more than {MOST_PARTS} parts")

    def _size(self, schema: Any, sizes: dict[str, int], level: int = 1) -> int:
        """Count a schema's parts with every reference replaced by its definition, as the library
        may do. `sizes` caches those of definitions: the library reads each at its first reference.

        Raises:
            SchemaRefused: there are too many levels.
        """
        if level > _MOST_LEVELS:
            raise SchemaRefused(
                f"with what it refers to it is more than {_MOST_LEVELS} levels deep"
            )
        if not isinstance(schema, dict):
            return 1
        size = 1 + sum(self._size(one, sizes, level + 1) for _, one in subschemas(schema))
        name = name_of(schema)
        if name in self._defs and name not in sizes:
            sizes[name] = 1  # within itself
            sizes[name] = self._size(self._defs[name], sizes, level + 1)
        return size + sizes.get(name, 0)

    def _check_cycles(self) -> None:
        """Refuse definitions that refer to themselves for the same value."""
        try:
            TopologicalSorter({name: _same(one) for name, one in self._defs.items()}).prepare()
        except CycleError as error:
            raise SchemaRefused(f"$defs.{error.args[1][0]}: it refers to itself") from None

    def _leave_out(self, schema: dict[str, Any], place: str, keyword: str, why: str) -> None:
        if keyword in schema:
            del schema[keyword]
            self.faults.append(f"{joined(place, keyword)}: {why}")

    def _valid(self, schema: Any, place: str) -> Any:
        """Return a schema without keywords that are invalid."""
        if not isinstance(schema, dict | bool):
            self.faults.append(
                f"{place or 'schema'}: expected a JSON Schema, got {str(schema)[:40]}"
            )
            return True
        if isinstance(schema, bool):
            return schema
        found = dict(schema)
        while error := _error_of(found):
            keyword, why = str(error.instance_path[0]), error.message[:200]
            if keyword == "type":
                why = f"expected one or more of {', '.join(TYPES.values())}, got {found['type']!r}"
            self._leave_out(found, place, keyword, why)
        return map_subschemas(found, lambda one, at: self._valid(one, joined(place, at)))

    def _schema(self, schema: Any, place: str) -> Any:
        """Return a schema that the library reads right."""
        if not isinstance(schema, dict):
            return schema
        if schema.get("not") in (True, {}):
            return False
        found = {name: one for name, one in schema.items() if one not in _IDLE.get(name, ())}
        _drop_implied(found)
        self._names(found)
        for keyword in _UNHELD:
            self._leave_out(found, place, keyword, "no grammar can hold an answer to it")
        self._bounds(found, place)
        if "pattern" in found:
            found["pattern"] = rust_pattern(found["pattern"])
        if "patternProperties" in found:
            named = found["patternProperties"].items()
            found["patternProperties"] = {rust_pattern(name): one for name, one in named}
        if (ref := found.get("$ref")) and name_of(found) not in self._defs:
            why = f"expected a reference to a part of the schema, got {ref[:80]}"
            self._leave_out(found, place, "$ref", why)
        self._one_of(found, place)
        self._numbers(found, place)
        for keyword in _LEAVES:
            part = {name: found[name] for name in ("type", keyword) if name in found}
            if keyword in found and (why := fault_of(f"start: {json_rule(part)}")):
                self._leave_out(found, place, keyword, why)
        return _ordered(map_subschemas(found, lambda one, at: self._schema(one, joined(place, at))))

    def _names(self, found: dict[str, Any]) -> None:
        """Replace `propertyNames` by properties or a pattern, if there are no others."""
        names = found.get("propertyNames", {})
        if not isinstance(names, dict) or found.keys() & {"properties", "patternProperties"}:
            return
        names = self._target_of(names)
        names = {name: one for name, one in names.items() if (name, one) != ("type", "string")}
        listed, others = names.get("enum"), found.get("additionalProperties", True)
        if listed is not None and len(names) == 1:
            found["properties"] = {name: others for name in listed if isinstance(name, str)}
        elif names.keys() == {"pattern"}:
            found["patternProperties"] = {names["pattern"]: others}
        else:
            return
        del found["propertyNames"]
        found["additionalProperties"] = False

    def _bounds(self, found: dict[str, Any], place: str) -> None:
        """Leave out bounds that are too large for a grammar, or that it would not enforce."""
        for name in ("minItems", "maxItems"):
            if found.get(name, 0) > _MOST_ITEMS:
                why = f"a grammar can count no more than {_MOST_ITEMS} items"
                self._leave_out(found, place, name, why)
        required = found.get("required", ())
        if found.get("minProperties", 0) > len(required) + 1:
            why = "a grammar lets a name come twice: list the required ones"
            self._leave_out(found, place, "minProperties", why)
        if found.get("properties", {}).keys() - set(required):
            why = "a grammar can count properties only if all that are named are required"
            for name in ("minProperties", "maxProperties"):
                self._leave_out(found, place, name, why)
        for name in ("properties", "required", "patternProperties", "prefixItems"):
            if len(found.get(name, ())) > _MOST_NAMES:
                why = f"a grammar has room for no more than {_MOST_NAMES} beside each other"
                self._leave_out(found, place, name, why)

    def _one_of(self, found: dict[str, Any], place: str) -> None:
        """Replace `oneOf` by `anyOf`; it is a fault if two choices may both match."""
        if (choices := found.get("oneOf")) is None:
            return
        if not self._are_disjoint(choices, is_object=found.get("type") == "object"):
            why = "two choices may both match, as far as can be seen: try anyOf, or a constant "
            why += "property in each"
            self._leave_out(found, place, "oneOf", why)
        found.pop("oneOf", None)
        if "anyOf" in found:
            found["allOf"] = [*found.get("allOf", ()), {"anyOf": choices}]
        else:
            found["anyOf"] = choices

    def _are_disjoint(self, choices: list[Any], *, is_object: bool) -> bool:
        """Return whether no value matches two of the choices: their types or constants differ, or
        the constants of a property that all of them require (a discriminator of objects)."""
        references = References({"$defs": self._defs})
        every = [self._target_of(choice) for choice in choices]
        forms = [value_form(one, references) for one in every]
        ways = [[form.types for form in forms], list(map(_listed, forms))]
        if is_object or all(form.types == {"object"} for form in forms):
            for name in set[str].intersection(*(set(one.get("required", ())) for one in every)):
                named = (properties_of(one).get(name) for one in every)
                ways.append([_listed(value_form(one, references)) for one in named])
        return any(
            all(sets) and len(frozenset().union(*sets)) == sum(map(len, sets)) for sets in ways
        )

    def _target_of(self, schema: Any) -> dict[str, Any]:
        found = self._defs.get(name_of(schema), schema) if isinstance(schema, dict) else {}
        return found if isinstance(found, dict) else {}

    def _numbers(self, found: dict[str, Any], place: str) -> None:
        """Bound integers, whose digits might never end; leave out what does not stay exact."""
        kinds = found.get("type", ())
        if found.get("multipleOf") == 1 and kinds == "number":
            kinds = found["type"] = "integer"
        step = Fraction(str(min(found.get("multipleOf", 1), _LARGEST)))  # it may be infinite
        if kinds and "number" not in kinds and (1 / step).denominator == 1:
            found.pop("multipleOf", None)
        low, high = _limits(found)
        if "multipleOf" in found and (low is None or low < 0):
            why = "a grammar can hold no numbers below 0 to it: give a minimum of 0 or more"
            self._leave_out(found, place, "multipleOf", why)
        if "integer" in kinds and not found.keys() & {"enum", "const"}:
            _bound_digits(found, low, high)
        for name in ("const", "enum", "multipleOf", *_BOUNDS):
            is_far = name in _BOUNDS and abs(found.get(name, 0)) > _EXACT
            if name in found and (is_far or not _is_exact(found[name])):
                why = f"{str(found[name])[:40]} is beyond the numbers that stay exact"
                self._leave_out(found, place, name, why)


def joined(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name


def _drop_implied(found: dict[str, Any]) -> None:
    """Drop keywords that hold whenever the others do."""
    if found.get("maxItems", 2) < 2:
        found.pop("uniqueItems", None)
    if found.get("minContains") == 0 and "maxContains" not in found:
        del found["minContains"]
        found.pop("contains", None)
    if found.get("minProperties", 0) <= len(found.get("required", ())):
        found.pop("minProperties", None)


def _listed(form: ValueForm) -> frozenset[str]:
    """Return the values of a form as texts, the same for equal ones; none if it allows others."""
    return frozenset(map(_canonical, form.listed)) if form.closed else frozenset()


def _canonical(value: Any) -> str:
    """Return the same JSON for values that are equal in JSON Schema, as 1 and 1.0 are."""
    return json.dumps(json.loads(json.dumps(value), parse_float=_number), sort_keys=True)


def _number(text: str) -> float:
    number = float(text)
    return int(number) if number.is_integer() else number


def _same(schema: Any) -> set[str]:
    """Return the definitions that a schema names for the same value."""
    found, left = set[str](), [schema]
    while left:
        one = left.pop()
        if isinstance(one, dict):
            found |= {name_of(one)} - {""}
            left += [each for union in ("allOf", "anyOf", "oneOf") for each in one.get(union, ())]
    return found


def _error_of(schema: dict[str, Any]) -> ValidationError | None:
    """Return the first invalid keyword of a schema, apart from its subschemas; None if none is."""
    try:
        meta.validate(map_subschemas(schema, lambda _one, _at: True))
    except ValidationError as error:
        return error
    return None


def _ordered(found: dict[str, Any]) -> dict[str, Any]:
    """Put keywords in the order that the library reads right: choices and references all first, or
    all last."""
    choices = {name: one for name, one in found.items() if name in _IN_PLACE}
    others = {name: one for name, one in found.items() if name not in _IN_PLACE}
    first = next((name for name in found if name != "type"), "")
    return choices | others if first in _IN_PLACE else others | choices


def _limits(schema: Mapping[str, Any]) -> tuple[Fraction | None, Fraction | None]:
    """Return the least and the largest number that a schema's bounds name."""
    low = [schema[name] for name in ("minimum", "exclusiveMinimum") if name in schema]
    high = [schema[name] for name in ("maximum", "exclusiveMaximum") if name in schema]
    return (
        max((Fraction(str(one)) for one in low), default=None),
        min((Fraction(str(one)) for one in high), default=None),
    )


def _bound_digits(found: dict[str, Any], low: Fraction | None, high: Fraction | None) -> None:
    """Bound integers to those that stay exact, unless the given bounds leave none of them."""
    if (low is None or low < -_EXACT) and (high is None or high > -_EXACT):
        found.pop("exclusiveMinimum", None)
        found["minimum"] = -_EXACT
    if (high is None or high > _EXACT) and (low is None or low < _EXACT):
        found.pop("exclusiveMaximum", None)
        found["maximum"] = _EXACT


def _is_exact(value: Any) -> bool:
    """Return whether the library, which reads numbers as doubles, keeps a value as it is."""
    if isinstance(value, list):
        return all(_is_exact(one) for one in value)
    if isinstance(value, dict):
        return all(_is_exact(one) for one in value.values())
    if not isinstance(value, int):
        return True
    return abs(value) < _LARGEST and int(float(value)) == value
