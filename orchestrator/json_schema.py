"""JSON Schema in one dialect.

Tools write JSON Schema by its drafts (4 to 2020-12) and by OpenAPI. `modern` translates them to the
draft 2020-12: annotations are left out, tuples are `prefixItems`, `nullable` is a choice, and each
reference names an entry of `$defs`.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final
from urllib.parse import unquote

from orchestrator.rust_patterns import without_bare_classes

_UNIONS: Final = ("anyOf", "oneOf")
_LISTS: Final = {"prefixItems", "allOf", *_UNIONS}
_NAMED: Final = {"properties", "patternProperties", "dependentSchemas", "$defs"}
_INNER: Final = {
    *("items", "contains", "unevaluatedItems", "additionalProperties", "propertyNames"),
    *("unevaluatedProperties", "not", "if", "then", "else"),
}
_COUNTS: Final = {
    *("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"),
    *("minContains", "maxContains"),
}
_KEYWORDS: Final = {
    *_LISTS,
    *(_NAMED - {"$defs"}),
    *_INNER,
    *_COUNTS,
    *("$ref", "$dynamicRef", "$recursiveRef", "type", "enum", "const"),
    *("required", "dependencies", "dependentRequired", "uniqueItems", "pattern", "format"),
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
}
"""Keywords that may make a value invalid; the others annotate or are targets of references."""
FORMATS: Final = (
    *("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"),
)
"""Formats that are enforced here; by the draft 2020-12 every format is an annotation."""
_MOST_BRANCHES: Final = 512  # branches of a property's schema that are read
MOST_PARTS: Final = 1 << 14  # parts of a schema
TYPES: Final[Mapping[type, str]] = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    list: "array",
    dict: "object",
    type(None): "null",
}
"""JSON Schema's names of types."""


class SchemaRefused(ValueError):
    """A schema cannot be used at all; the message says why."""


def modern(schema: Any) -> Any:
    """Translate a schema to the draft 2020-12, without annotations.

    Raises:
        SchemaRefused: with all that it refers to it has too many parts.
    """
    return _Dialect(schema).whole()


def name_of(schema: Mapping[str, Any]) -> str:
    """Return the name of the definition that a modern schema refers to; empty if it is none."""
    return str(schema.get("$ref", "")).removeprefix("#/$defs/")


def subschemas(schema: dict[str, Any]) -> list[tuple[str, Any]]:
    """Return the direct subschemas of a modern schema, each with its place."""
    found = list[tuple[str, Any]]()
    map_subschemas(schema, lambda one, place: found.append((place, one)))
    return found


def map_subschemas(schema: dict[str, Any], change: Callable[[Any, str], Any]) -> dict[str, Any]:
    """Replace each direct subschema of a modern schema by `change(subschema, place)`."""
    found = dict(schema)
    for name, one in schema.items():
        if name in _LISTS and isinstance(one, list):
            found[name] = [change(each, f"{name}[{i}]") for i, each in enumerate(one)]
        elif name in _NAMED and isinstance(one, dict):
            found[name] = {key: change(each, f"{name}.{key}") for key, each in one.items()}
        elif name in _INNER:
            found[name] = change(one, name)
    return found


@dataclass(frozen=True, slots=True)
class ValueForm:
    """The values that a JSON Schema allows, over all its branches.

    Attributes:
        types: the types that it names; empty if it, or one of its branches, names none.
        listed: the values that it lists.
        closed: whether it allows no others.
    """

    types: frozenset[str]
    listed: Sequence[Any]
    closed: bool


def value_form(schema: Any, references: References) -> ValueForm:
    """Return the values that a JSON Schema allows; `references` are those of the whole schema."""
    types, listed, free, closed = set[str](), list[Any](), False, True
    for one in _branches(schema, references):
        named = one.get("type")
        named = named if isinstance(named, list) else [named]
        kinds = {kind for kind in named if isinstance(kind, str)}
        values = one["enum"] if isinstance(one.get("enum"), list) else None
        if "const" in one:
            values = [one["const"]]
        elif values is None and kinds == {"null"}:
            values = [None]
        kinds = kinds or {TYPES[type(value)] for value in values or ()}
        types |= kinds | ({"integer"} if "number" in kinds else set())
        listed += values or ()
        free, closed = free or not kinds, closed and values is not None
    return ValueForm(frozenset() if free else frozenset(types), listed, closed)


def _branches(schema: Any, references: References) -> list[dict[str, Any]]:
    """Return the schemas of which a value must match one, following each reference once; if there
    are too many, the first ones and an empty one."""
    found, left, seen = list[dict[str, Any]](), [schema], set[str]()
    for _ in range(_MOST_BRANCHES):
        if not left:
            return found
        one = left.pop()
        one = one if isinstance(one, dict) else {}
        if one.get("nullable") is True:  # OpenAPI 3.0
            found.append({"type": "null"})
        ref, inner = one.get("$ref"), next((one[name] for name in _UNIONS if name in one), None)
        every = one.get("allOf")
        if one.keys() & {"type", "enum", "const"}:
            found.append(one)
        elif isinstance(ref, str):
            left += [] if ref in seen else [references.target_of(ref)[1]]
            seen.add(ref)
        elif isinstance(inner, list):
            left += reversed(inner)
        elif isinstance(every, list) and (saying := [each for each in every if _names(each)]):
            left += reversed(saying)
        else:
            found.append(one)
    return [*found, {}]


def _names(schema: Any) -> bool:
    """Return whether a schema may name the type of a value."""
    return isinstance(schema, dict) and bool(
        schema.keys() & {"type", "enum", "const", "$ref", "allOf", *_UNIONS}
    )


def properties_of(schema: Any) -> dict[str, Any]:
    named = schema.get("properties") if isinstance(schema, dict) else None
    return named if isinstance(named, dict) else {}


class _Dialect:
    """Translates one schema to the draft 2020-12."""

    def __init__(self, root: Any) -> None:
        self._root, self._references = root, References(root)
        draft = str(root.get("$schema")) if isinstance(root, dict) else ""
        # Up to the draft 7, a reference hides the keywords beside it.
        self._hides = bool(re.search(r"draft-0[3-7]/", draft))
        self._names: dict[int, str] = {}  # of the targets of references, by `id`
        self._targets: list[tuple[str, Any]] = []
        self._given = Counter[str]()  # how often each name was given
        self._parts = 0

    def whole(self) -> Any:
        found, defs = self._schema(self._root), dict[str, Any]()
        for name, target in self._targets:  # each may add more
            defs[name] = self._schema(target)
        return {**found, "$defs": defs} if defs else found

    def _schema(self, schema: Any, _place: str = "") -> Any:
        self._parts += 1
        if self._parts > MOST_PARTS:
            raise SchemaRefused(f"with what it refers to it has more than {MOST_PARTS} parts")
        if not isinstance(schema, dict):
            return schema
        if self._hides and "$ref" in schema:
            schema = {"$ref": schema["$ref"]}
        found = {
            name: one
            for name, one in schema.items()
            if name in _KEYWORDS and (one is not None or name == "const")
        }
        if isinstance(schema.get("items"), list):  # a tuple of drafts up to 2019-09
            found["prefixItems"] = found.pop("items")
            if "additionalItems" in schema:
                found["items"] = schema["additionalItems"]
        for name, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
            if isinstance(given := found.get(name), bool):  # the draft 4 and OpenAPI 3.0
                del found[name]
                if given and bound in found:
                    found[name] = found.pop(bound)
        for name in found.keys() & _COUNTS:
            if isinstance(found[name], float) and found[name].is_integer():
                found[name] = int(found[name])
        if isinstance(required := found.get("required"), list):
            found["required"] = list({json.dumps(one): one for one in required}.values())
        if found.get("format") not in FORMATS:
            found.pop("format", None)
        if isinstance(found.get("pattern"), str):
            found["pattern"] = without_bare_classes(found["pattern"])
        if isinstance(found.get("$ref"), str):
            found["$ref"] = self._named(found["$ref"])
        found = map_subschemas(found, self._schema)
        if schema.get("nullable") is True:  # OpenAPI 3.0
            return {"anyOf": [found, {"type": "null"}]}
        return found

    def _named(self, ref: str) -> str:
        """Return the reference to the entry of `$defs` for the target of `ref`; add it if new."""
        found, target = self._references.target_of(ref)
        if not found:
            return ref
        if id(target) not in self._names:
            path = unquote(ref).rpartition("/")[2]
            # The library reads names as parts of a URI.
            name = self._unique(re.sub(r"[^\w.-]+", "_", path, flags=re.ASCII) or "root")
            self._names[id(target)] = name
            self._targets.append((name, target))
        return f"#/$defs/{self._names[id(target)]}"

    def _unique(self, name: str) -> str:
        """Return this name, with a number if another definition has it."""
        found = name
        while self._given[found]:
            self._given[name] += 1
            found = f"{name}_{self._given[name]}"
        self._given[found] = 1
        return found


class References:
    """Resolves references within a schema."""

    def __init__(self, root: Any) -> None:
        self.root = root

    def target_of(self, ref: str) -> tuple[bool, Any]:
        """Return whether a reference (RFC 6901, or a name) has a target, and the target."""
        if ref != "#" and not ref.startswith("#/"):
            found = self._called.get(ref, self._called.get(ref.removesuffix("#")))
            return found is not None, found
        found = self.root
        for part in unquote(ref[1:]).split("/")[1:]:
            part = part.replace("~1", "/").replace("~0", "~")
            if isinstance(found, list) and part.isdecimal() and int(part) < len(found):
                found = found[int(part)]
            elif isinstance(found, dict) and part in found:
                found = found[part]
            else:
                return False, None
        return True, found

    @cached_property
    def _called(self) -> dict[str, Any]:
        """The objects with a name; the first one if several have the same."""
        called = dict[str, Any]()
        for one in _all(self.root):
            anchor = one.get("$anchor")
            for name in (isinstance(anchor, str) and f"#{anchor}", one.get("$id"), one.get("id")):
                if isinstance(name, str):
                    called.setdefault(name, one)
        return called


def _all(value: Any) -> Iterator[dict[str, Any]]:
    """Yield every object in a JSON value."""
    left = [value]
    while left:
        one = left.pop()
        if isinstance(one, dict):
            yield one
        left += one.values() if isinstance(one, dict) else one if isinstance(one, list) else ()
