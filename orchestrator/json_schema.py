"""What a JSON Schema says, in one dialect.

Tools write JSON Schema by its drafts (4 to 2020-12) and by OpenAPI. `modern` puts all of them into
the draft 2020-12: remarks are left out, tuples are `prefixItems`, `nullable` is a choice, and each
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

from orchestrator.rust_patterns import conjuncts, without_bare_classes

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
    *(
        "$ref",
        "$dynamicRef",
        "$recursiveRef",
        "type",
        "enum",
        "const",
        "required",
        "dependentRequired",
        "uniqueItems",
    ),
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    *("pattern", "format"),
}
"""Those that may make a value invalid; every other one is a remark, or points somewhere."""
FORMATS: Final = (
    *("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"),
)
"""Those that ask for something; by the draft 2020-12 every one is a remark."""
_MOST_BRANCHES: Final = 512  # of a schema, looked at for each property
MOST_PARTS: Final = 1 << 14  # of a schema
TYPES: Final[Mapping[type, str]] = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    list: "array",
    dict: "object",
    type(None): "null",
}
"""What a JSON Schema calls the type of a value."""


class TooLarge(ValueError):
    """It takes too long to look at a whole schema; says why."""


def modern(schema: Any) -> Any:
    """The same schema by the draft 2020-12, without remarks.

    Raises:
        TooLarge: references into each other's targets make too much of it.
    """
    return _Dialect(schema).whole()


def name_of(schema: Mapping[str, Any]) -> str:
    """The definition that a modern schema refers to; empty if it refers to none."""
    return str(schema.get("$ref", "")).removeprefix("#/$defs/")


def inner(schema: dict[str, Any]) -> list[tuple[str, Any]]:
    """The schemas right within a modern one, each with its place."""
    found = list[tuple[str, Any]]()
    changed(schema, lambda one, place: found.append((place, one)))
    return found


def changed(schema: dict[str, Any], change: Callable[[Any, str], Any]) -> dict[str, Any]:
    """A modern schema, with `change(schema, place)` for each of those right within it."""
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
    """What a JSON Schema says of a value, whichever of its branches holds.

    Attributes:
        types: those that it names; none where it, or one of its branches, names none.
        listed: the values that it names one by one.
        closed: whether there are no others.
    """

    types: frozenset[str]
    listed: Sequence[Any]
    closed: bool


def value_form(schema: Any, references: References) -> ValueForm:
    """What a JSON Schema says of a value, by the references of the schema that it is part of."""
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
    """The schemas of which a value matches one, each reference followed once; of very many, the
    first, and one that says nothing."""
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
    """Whether a schema says of which type a value is."""
    return isinstance(schema, dict) and bool(
        schema.keys() & {"type", "enum", "const", "$ref", "allOf", *_UNIONS}
    )


def properties_of(schema: Any) -> dict[str, Any]:
    """The properties that a JSON Schema names."""
    named = schema.get("properties") if isinstance(schema, dict) else None
    return named if isinstance(named, dict) else {}


class _Dialect:
    """A schema on its way into the draft 2020-12."""

    def __init__(self, root: Any) -> None:
        self._root, self._references = root, References(root)
        draft = str(root.get("$schema")) if isinstance(root, dict) else ""
        # Up to the draft 7, a reference hides what is beside it.
        self._hides = bool(re.search(r"draft-0[3-7]/", draft))
        self._names: dict[int, str] = {}  # by the identity of what references point to
        self._targets: list[tuple[str, Any]] = []
        self._given = Counter[str]()  # how often a name was wanted
        self._parts = 0

    def whole(self) -> Any:
        found, defs = self._schema(self._root), dict[str, Any]()
        for name, target in self._targets:  # each may refer to more
            defs[name] = self._schema(target)
        return {**found, "$defs": defs} if defs else found

    def _schema(self, schema: Any, _place: str = "") -> Any:
        self._parts += 1
        if self._parts > MOST_PARTS:
            raise TooLarge(f"with what it refers to it has more than {MOST_PARTS} parts")
        if not isinstance(schema, dict):
            return schema
        if self._hides and "$ref" in schema:
            schema = {"$ref": schema["$ref"]}
        found = {
            name: one
            for name, one in schema.items()
            if name in _KEYWORDS and (one is not None or name == "const")
        }
        self._tuple(schema, found)
        self._dependencies(schema, found)
        for name, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
            if isinstance(given := found.get(name), bool):  # the draft 4 and OpenAPI 3.0
                del found[name]
                if given and bound in found:
                    found[name] = found.pop(bound)
        for name in found.keys() & _COUNTS:
            if isinstance(found[name], float) and found[name].is_integer():
                found[name] = int(found[name])
        if isinstance(required := found.get("required"), bool):  # the draft 3
            del found["required"]
        elif isinstance(required, list):
            found["required"] = list({json.dumps(one): one for one in required}.values())
        if found.get("format") not in FORMATS:
            found.pop("format", None)
        if isinstance(found.get("pattern"), str):
            found["pattern"], *ahead = conjuncts(without_bare_classes(found["pattern"]))
            if ahead:
                found["allOf"] = [*found.get("allOf", ()), *({"pattern": one} for one in ahead)]
        if isinstance(found.get("$ref"), str):
            found["$ref"] = self._named(found["$ref"])
        found = changed(found, self._schema)
        if schema.get("nullable") is True:  # OpenAPI 3.0
            return {"anyOf": [found, {"type": "null"}]}
        return found

    def _tuple(self, schema: dict[str, Any], found: dict[str, Any]) -> None:
        """A tuple, up to the draft 2019-09."""
        if isinstance(schema.get("items"), list):
            found["prefixItems"] = found.pop("items")
            if "additionalItems" in schema:
                found["items"] = schema["additionalItems"]

    def _dependencies(self, schema: dict[str, Any], found: dict[str, Any]) -> None:
        """What depends on a property, up to the draft 7."""
        if isinstance(named := schema.get("dependencies"), dict):
            for name, one in named.items():
                kind = "dependentRequired" if isinstance(one, list) else "dependentSchemas"
                found[kind] = {**found.get(kind, {}), name: one}

    def _named(self, ref: str) -> str:
        """The reference to that entry of `$defs` that stands for what another one points to."""
        found, target = self._references.target_of(ref)
        if not found:
            return ref
        if id(target) not in self._names:
            path = unquote(ref).rpartition("/")[2]
            # The library reads names as parts of an address.
            name = self._unique(re.sub(r"[^\w.-]+", "_", path, flags=re.ASCII) or "root")
            self._names[id(target)] = name
            self._targets.append((name, target))
        return f"#/$defs/{self._names[id(target)]}"

    def _unique(self, name: str) -> str:
        """A name that no other definition has: this one, or with a number."""
        found = name
        while self._given[found]:
            self._given[name] += 1
            found = f"{name}_{self._given[name]}"
        self._given[found] = 1
        return found


class References:
    """What references within a schema point to."""

    def __init__(self, root: Any) -> None:
        self.root = root

    def target_of(self, ref: str) -> tuple[bool, Any]:
        """Whether a reference points to something (RFC 6901, or by its name), and to what."""
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
        """The objects that have a name, the first one of each name."""
        called = dict[str, Any]()
        for one in _all(self.root):
            anchor = one.get("$anchor")
            names = (
                f"#{anchor}" if isinstance(anchor, str) else None,
                one.get("$id"),
                one.get("id"),
            )
            for name in names:
                if isinstance(name, str):
                    called.setdefault(name, one)
        return called


def _all(value: Any) -> Iterator[dict[str, Any]]:
    """Every object in a value of JSON."""
    left = [value]
    while left:
        one = left.pop()
        if isinstance(one, dict):
            yield one
        left += one.values() if isinstance(one, dict) else one if isinstance(one, list) else ()
