"""The part of a JSON Schema that a grammar can enforce, and the faults of the rest.

The library llguidance makes a grammar of a schema. It ignores or misreads some keywords, and its
messages name no place. So a schema is rewritten into a form that the library reads right: keywords
without effect are left out, others are replaced by equal ones, and those that no grammar can
enforce are left out and reported.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import combinations
from math import ceil, floor
from typing import Any, Final

from jsonschema_rs import Draft202012Validator, ValidationError, meta

from orchestrator.json_schema import (
    MOST_PARTS,
    TYPES,
    TooLarge,
    map_subschemas,
    modern,
    name_of,
    subschemas,
)
from orchestrator.mended_schema import Mending, joined
from orchestrator.rust_patterns import rust_pattern
from orchestrator.schema_overlap import Overlap, parts

MAX_SOURCE: Final = 1 << 17  # characters of a schema without remarks, or of a grammar
_EXACT: Final = 2**53 - 1
_LARGEST: Final = 2**63
_FARTHEST: Final = 10**18  # the largest bound of a fraction that the library takes
_MOST_ITEMS: Final = 10_000  # the largest minItems or maxItems
_MOST_MULTIPLES: Final = 512  # multiples of a number in a list
_MOST_NAMES: Final = 1024  # entries in a keyword's value: the library compares them all
_MOST_STEPS: Final = 100_000  # lookups of schemas of the same value, and listed multiples
_MOST_LEVELS: Final = 400  # the library takes 5 KB of the stack for each
_NAMES: Final = {
    "uuid": "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$",
    "date": "^[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])$",
}
"""Patterns for the formats of names; a date has only days that every month has."""
_NUMBER: Final = {
    "type", "multipleOf", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
}  # fmt: skip
_IN_PLACE: Final = ("$ref", "const", "enum", "allOf", "anyOf", "oneOf")
_MOST_MENDED: Final = 2  # tries to mend a schema
_ANYTHING: Final[tuple[Any, ...]] = (True, {})
_UNHELD: Final = dict.fromkeys(
    (
        *("not", "if", "then", "else", "contains", "minContains", "maxContains"),
        *("unevaluatedItems", "unevaluatedProperties", "$dynamicRef", "$recursiveRef"),
    ),
    "no grammar can hold an answer to it",
) | {"uniqueItems": "no grammar can keep the items of a list apart"}


@dataclass(frozen=True, slots=True)
class Held:
    """The part of a JSON Schema that a grammar can enforce.

    Attributes:
        schema: for the grammars' library; its references name entries of `$defs`.
        faults: the parts that were left out, each as its place in the schema and the reason.
        read: how many characters the library has read to find them.
    """

    schema: Any
    faults: tuple[str, ...]
    read: int = 0


@lru_cache(maxsize=128)  # agents send their tools with every turn
def held(source: str) -> Held:
    """Return the part of a schema, which is given as JSON, that a grammar can enforce."""
    mending = Mending()
    try:
        schema = _Reader(modern(json.loads(source)), mending).whole()
    except TooLarge as error:
        return Held({}, (str(error),), mending.read)
    return Held(schema, tuple(mending.faults), mending.read)


class _Reader:
    """Rewrites a modern schema into a form that the library reads right."""

    def __init__(self, schema: Any, mending: Mending) -> None:
        self._defs: dict[str, Any] = schema.get("$defs", {}) if isinstance(schema, dict) else {}
        self._overlap = Overlap(self._defs)
        self._mending, self._faults = mending, mending.faults
        self._steps = _MOST_STEPS
        self._root = schema
        if self._defs:
            self._root = {name: one for name, one in schema.items() if name != "$defs"}

    def whole(self) -> Any:
        self._root = self._valid(self._root, "")
        for name, one in self._defs.items():
            self._defs[name] = self._valid(one, f"$defs.{name}")
        self._check_size()
        found = self._schema(self._root, "")
        defs = {name: self._schema(one, f"$defs.{name}") for name, one in self._defs.items()}
        left = _MOST_MENDED
        while fault := self._mending.fault_of(_whole(found, defs)):
            if not left:
                self._faults.append(fault)
                return {}
            left -= 1
            found = self._mending.mended(found, "")
            defs = {name: self._mending.mended(one, f"$defs.{name}") for name, one in defs.items()}
        return _whole(found, defs)

    def _check_size(self) -> None:
        if (size := len(json.dumps([self._root, self._defs]))) > MAX_SOURCE:
            raise TooLarge(
                f"it has {size} characters without remarks; at most {MAX_SOURCE} are allowed"
            )
        if self._levels() > _MOST_LEVELS:
            raise TooLarge(f"with what it refers to it is more than {_MOST_LEVELS} levels deep")
        if self._size(self._root, {}) > MOST_PARTS:
            raise TooLarge(f"with what it refers to it has more than {MOST_PARTS} parts")

    def _take(self, steps: int) -> None:
        """Count lookups of schemas and listed multiples."""
        self._steps -= steps
        if self._steps < 0:
            raise TooLarge(
                f"it takes more than {_MOST_STEPS} steps to look up what its parts say of the same "
                "values, and to list multiples"
            )

    def _parts(self, schema: Any) -> list[dict[str, Any]]:
        """Return the schemas each of which a value must match, except true and false."""
        every = list(parts(schema, self._defs))
        self._take(len(every))
        return [one for one in every if isinstance(one, dict)]

    def _levels(self) -> int:
        """Return how deep the library recurses: it reads a definition at the first reference."""
        deepest, left, seen = 0, [(self._root, 1)], set[str]()
        while left:
            one, level = left.pop()
            deepest = max(deepest, level)
            if isinstance(one, dict):
                each = [below for _, below in subschemas(one)]
                name = name_of(one)
                if name in self._defs and name not in seen:
                    seen.add(name)
                    each.append(self._defs[name])
                left += [(below, level + 1) for below in reversed(each)]
        return deepest

    def _size(self, schema: Any, sizes: dict[str, int]) -> int:
        """Count a schema's parts with every reference replaced by its definition: a value may be
        compared with all of them. `sizes` caches those of definitions."""
        size = 1
        if not isinstance(schema, dict):
            return size
        for _, one in subschemas(schema):
            size += self._size(one, sizes)
        name = name_of(schema)
        if name in self._defs and name not in sizes:
            sizes[name] = 1  # within itself
            sizes[name] = self._size(self._defs[name], sizes)
        return size + sizes.get(name, 0)

    def _leave_out(self, schema: dict[str, Any], place: str, keyword: str, why: str) -> None:
        if keyword in schema:
            del schema[keyword]
            self._faults.append(f"{joined(place, keyword)}: {why}")

    def _valid(self, schema: Any, place: str) -> Any:
        """Return a schema without keywords that are invalid."""
        if not isinstance(schema, dict | bool):
            self._faults.append(
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
        """Return a schema without the keywords that no grammar can enforce."""
        if not isinstance(schema, dict):
            return schema
        if schema.get("not") in _ANYTHING:
            return False
        found = dict(schema)
        for idle in (_idle_logic, _idle_counts):
            idle(found)
        self._names(found, place)
        self._evaluated(found)
        for keyword, why in _UNHELD.items():
            self._leave_out(found, place, keyword, why)
        self._bounds(found, place)
        if "pattern" in found:
            found["pattern"] = rust_pattern(found["pattern"])
        if "patternProperties" in found:
            named = found["patternProperties"].items()
            found["patternProperties"] = {rust_pattern(name): one for name, one in named}
        self._reference(found, place)
        self._one_of(found, place)
        found = map_subschemas(found, lambda one, at: self._schema(one, joined(place, at)))
        return self._numbers(_ordered(_dependents(found)), place)

    def _names(self, found: dict[str, Any], place: str) -> None:
        """Replace `propertyNames` by properties or patterns of them, if one can."""
        if "propertyNames" not in found:
            return
        given = found["propertyNames"]
        names: dict[str, Any] = {}
        for one in self._parts(given):
            names |= one
        names = {name: one for name, one in names.items() if name not in ("$ref", "allOf")}
        if given is True or names.get("type", "string") == "string":
            names.pop("type", None)
        if "pattern" in names:
            names.pop("format", None)
        others = found.get("additionalProperties", True)
        listed = [names["const"]] if "const" in names else names.get("enum")
        if not names and given is not False:
            del found["propertyNames"]
        elif "patternProperties" in found or (found.get("properties") and others not in _ANYTHING):
            why = "no grammar can hold an answer to it beside other properties"
            self._leave_out(found, place, "propertyNames", why)
        elif listed is not None and names.keys() <= {"const", "enum"}:
            own = found.get("properties", {})
            of_each = {name: own.get(name, others) for name in listed if isinstance(name, str)}
            found |= {"properties": of_each, "additionalProperties": False}
            del found["propertyNames"]
        elif not found.get("properties") and (pattern := _pattern_of(names)):
            found |= {"patternProperties": {pattern: others}, "additionalProperties": False}
            del found["propertyNames"]
        else:
            why = "a grammar can hold names to one pattern, a length, a uuid, a date, or a list"
            self._leave_out(found, place, "propertyNames", why)

    def _evaluated(self, found: dict[str, Any]) -> None:
        """Replace `unevaluated...` by `additionalProperties` or `items`, if all parts are known."""
        rest = {name: one for name, one in found.items() if not name.startswith("unevaluated")}
        if len(rest) == len(found):
            return
        every = self._parts(rest)
        if any(one.keys() & {"anyOf", "oneOf", "if", "dependentSchemas"} for one in every):
            return
        if "unevaluatedProperties" in found and not any(
            one.keys() & {"patternProperties", "additionalProperties", "unevaluatedProperties"}
            for one in every
        ):
            names = {name: True for one in every for name in one.get("properties", {})}
            found["properties"] = names | found.get("properties", {})
            found["additionalProperties"] = found.pop("unevaluatedProperties")
        if "unevaluatedItems" in found and len(every) == 1 and "contains" not in found:
            found.setdefault("items", found.pop("unevaluatedItems"))

    def _bounds(self, found: dict[str, Any], place: str) -> None:
        """Leave out bounds that are too large for a grammar, or that it would not enforce."""
        for name in ("minItems", "maxItems"):
            if found.get(name, 0) > _MOST_ITEMS:
                why = f"a grammar can count no more than {_MOST_ITEMS} items"
                self._leave_out(found, place, name, why)
        if found.get("minProperties", 0) > len(found.get("required", ())) + 1:
            why = "a grammar lets a name come twice: list the required ones"
            self._leave_out(found, place, "minProperties", why)
        for name in ("properties", "required", "patternProperties", "prefixItems"):
            if len(found.get(name, ())) > _MOST_NAMES:
                why = f"a grammar has room for no more than {_MOST_NAMES} beside each other"
                self._leave_out(found, place, name, why)

    def _reference(self, found: dict[str, Any], place: str) -> None:
        ref = found.get("$ref", "")
        if ref and name_of(found) not in self._defs:
            why = f"expected a reference to a part of the schema, got {ref[:80]}"
            self._leave_out(found, place, "$ref", why)
        elif ref and name_of(found) in self._reached(name_of(found)):
            self._leave_out(found, place, "$ref", f"{ref[:80]} refers to itself")

    def _reached(self, name: str) -> set[str]:
        """Return the definitions that one refers to for the same value, directly or not."""
        found, left = set[str](), [self._defs[name]]
        while left:
            one = left.pop()
            self._take(1)
            if not isinstance(one, dict):
                continue
            left += [each for union in ("allOf", "anyOf", "oneOf") for each in one.get(union, ())]
            other = name_of(one)
            if other in self._defs and other not in found:
                found.add(other)
                left.append(self._defs[other])
        return found

    def _one_of(self, found: dict[str, Any], place: str) -> None:
        """Replace `oneOf` by `anyOf` if its branches exclude each other."""
        if "oneOf" not in found:
            return
        choices = found["oneOf"]
        pairs = combinations(enumerate(choices), 2)
        both = ((i, k) for (i, one), (k, two) in pairs if not self._overlap.disjoint(one, two))
        if pair := next(both, None):
            why = "[{}] and [{}] may both match, as far as can be seen: try anyOf".format(*pair)
            self._leave_out(found, place, "oneOf", why)
        found.pop("oneOf", None)
        if "anyOf" in found:
            found["allOf"] = [*found.get("allOf", ()), {"anyOf": choices}]
        else:
            found["anyOf"] = choices

    def _numbers(self, found: dict[str, Any], place: str) -> Any:
        """Bound integers, whose digits might never end, and list negative multiples."""
        given = found.get("type", sorted(set(TYPES.values()) - {"integer"}))
        kinds = [given] if isinstance(given, str) else list(given)
        if "multipleOf" in found:
            step = Fraction(str(found["multipleOf"]))
            if step == 1:
                kinds = ["integer" if kind == "number" else kind for kind in kinds]
                found["type"] = kinds = list(dict.fromkeys(kinds))
            if "number" not in kinds and ("integer" not in kinds or (1 / step).denominator == 1):
                del found["multipleOf"]
        low, high = _limits(found)
        if "multipleOf" in found and (low is None or low < 0):
            return self._multiples(found, kinds, place)
        if not found.keys() & {"enum", "const"}:
            if "integer" in kinds:
                _bound_digits(found, low, high)
            elif "number" in kinds:
                _bound_doubles(found)
        for name in ("const", "enum", *sorted(_NUMBER)):
            if name in found and not _is_exact(found[name]):
                why = f"{str(found[name])[:40]} is beyond the numbers that stay exact"
                self._leave_out(found, place, name, why)
        return found

    def _multiples(self, found: dict[str, Any], kinds: list[str], place: str) -> Any:
        """List multiples of which some are below 0: the library supports no sign there."""
        low, high = _limits(found)
        step = Fraction(str(found["multipleOf"]))
        if (
            found.keys() - _NUMBER
            or low is None
            or high is None
            or max(-low, high) > _EXACT
            or (high - low) / step > _MOST_MULTIPLES
        ):
            why = (
                "a grammar can hold no numbers below 0 to it: give a minimum of 0 or more, or "
                f"bounds with at most {_MOST_MULTIPLES} multiples between them"
            )
            self._leave_out(found, place, "multipleOf", why)
            return self._numbers(found, place)
        places = range(ceil(low / step), floor(high / step) + 1)
        self._take(len(places))
        every = (step * k for k in places)
        values = [
            int(one) if one.denominator == 1 else float(one)
            for one in every
            if one.denominator == 1 or "number" in kinds
        ]
        valid = Draft202012Validator({name: one for name, one in found.items() if name != "type"})
        listed = {"enum": [value for value in values if valid.is_valid(value)]}
        others = [kind for kind in kinds if kind not in ("integer", "number")]
        return {"anyOf": [listed, {"type": others}]} if others else listed


def _whole(schema: Any, defs: Mapping[str, Any]) -> Any:
    return {**schema, "$defs": defs} if defs and isinstance(schema, dict) else schema


def _error_of(schema: dict[str, Any]) -> ValidationError | None:
    """Return the first invalid keyword of a schema, apart from its subschemas; None if none is."""
    try:
        meta.validate(map_subschemas(schema, lambda _one, _at: True))
    except ValidationError as error:
        return error
    return None


def _idle_logic(found: dict[str, Any]) -> None:
    """Leave out logical keywords without effect."""
    if found.get("not") is False:
        del found["not"]
    if "if" not in found or all(found.get(name, True) in _ANYTHING for name in ("then", "else")):
        for name in ("if", "then", "else"):
            found.pop(name, None)
    if "contains" not in found or (found.get("minContains") == 0 and "maxContains" not in found):
        for name in ("contains", "minContains", "maxContains"):
            found.pop(name, None)
    for name in ("unevaluatedItems", "unevaluatedProperties"):
        if found.get(name) in _ANYTHING:
            del found[name]


def _idle_counts(found: dict[str, Any]) -> None:
    """Leave out counts without effect."""
    if not found.get("uniqueItems") or found.get("maxItems", 2) < 2:
        found.pop("uniqueItems", None)
    if found.get("minProperties", 0) <= len(found.get("required", ())):
        found.pop("minProperties", None)


def _pattern_of(names: Mapping[str, Any]) -> str:
    """Return the regular expression that names must match; empty if there is not one."""
    if names.keys() == {"pattern"}:
        return str(names["pattern"])
    if names.keys() == {"format"}:
        return _NAMES.get(names["format"], "")
    if names.keys() <= {"minLength", "maxLength"}:
        return f"^[\\s\\S]{{{names.get('minLength', 0)},{names.get('maxLength', '')}}}$"
    return ""


def _dependents(found: dict[str, Any]) -> dict[str, Any]:
    """Replace `dependent...` by a choice: the property is missing, or its schema holds."""
    choices = {name: {"required": one} for name, one in found.pop("dependentRequired", {}).items()}
    every = [*choices.items(), *found.pop("dependentSchemas", {}).items()]
    if every:
        both = [{"anyOf": [{"properties": {name: False}}, one]} for name, one in every]
        found["allOf"] = [*found.get("allOf", ()), *both]
    return found


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


def _bound_doubles(found: dict[str, Any]) -> None:
    """Leave out bounds that every number meets, and reduce others to what the library takes."""
    for names, sign in (("minimum", "exclusiveMinimum"), -1), (("maximum", "exclusiveMaximum"), 1):
        for name in names:
            if found.get(name, 0) * sign >= sys.float_info.max:
                del found[name]
            elif found.get(name, 0) * sign >= _FARTHEST:
                found[name] = sign * _EXACT


def _is_exact(value: Any) -> bool:
    """Return whether the library, which reads numbers as doubles, keeps a value as it is."""
    if isinstance(value, list):
        return all(_is_exact(one) for one in value)
    if isinstance(value, dict):
        return all(_is_exact(one) for one in value.values())
    if not isinstance(value, int):
        return True
    return abs(value) < _LARGEST and int(float(value)) == value
