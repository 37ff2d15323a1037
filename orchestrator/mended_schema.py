"""Leaves out of a JSON Schema the parts that the grammars' library refuses.

The library names no place. So parts of a schema are tried many at once, and if it refuses them, in
halves, down to single ones.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, Final

from llguidance import LLMatcher, LLParserLimits

from orchestrator.json_schema import TooLarge, map_subschemas, subschemas

LIMITS: Final = LLParserLimits(max_items_in_row=4000, initial_lexer_fuel=2_000_000)
_LAYOUT: Final = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_MOST_TRIED: Final = 1 << 19  # characters of all tries
_MOST_OF_LARGE: Final = 1 << 16  # likewise, for a schema that the library is slow to refuse
_OF_A_TRY: Final = 1 << 11  # characters that each try counts for, beside its own
_SHAPES: Final = {
    *("$ref", "const", "enum", "allOf", "anyOf", "oneOf", "required", "properties"),
    *("patternProperties", "additionalProperties", "prefixItems", "items"),
}
"""Keywords that name a value's parts."""
_SAID: Final = {
    "Unimplemented keys": "no grammar can hold an answer to it",
    "oneOf constraints are not supported": "two choices may both match, as far as can be seen: try "
    "anyOf, or a constant property in each",
}
"""Messages of the library, by their beginnings, in the user's words."""
_Parts = Sequence[tuple[str, dict[str, Any]]]


def json_rule(schema: Any) -> str:
    """Return the body of a grammar's rule: JSON that matches a schema."""
    if isinstance(schema, dict):
        schema = {**schema, "x-guidance": _LAYOUT}
    return f"%json {json.dumps(schema)}"


@lru_cache(maxsize=64)
def fault_of(grammar: str) -> str:
    """Return the library's message about a grammar; empty if it is valid."""
    return _fault_of(grammar)


def _fault_of(grammar: str) -> str:
    fault = LLMatcher.validate_grammar(grammar, limits=LIMITS)
    return "" if fault.startswith("WARNING") else reason(fault)


def reason(text: str) -> str:
    """Return the first line of the library's message; a picture of the grammar follows it."""
    lines = text.strip().split("\n")
    said = [line for line in lines if line.startswith("error: ")] or lines[:1]
    message = said[0].removeprefix("error: ").rpartition("JSON schema: ")[2][:300]
    return next((ours for theirs, ours in _SAID.items() if message.startswith(theirs)), message)


def joined(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name


class Mending:
    """Leaves out the parts of a schema that the library refuses.

    Attributes:
        faults: the parts that were left out, each as its place and the reason.
        read: how many characters the library has read.
    """

    def __init__(self) -> None:
        self.faults = list[str]()
        self.read = self._most = 0
        self._fault = ""

    def fault_of(self, schema: Any) -> str:
        """Return the library's message about a whole schema; empty if it is valid."""
        rule = f"start: {json_rule(schema)}"
        self._fault = _fault_of(rule)
        self.read += len(rule) + _OF_A_TRY
        is_large = "too large" in self._fault or "too big" in self._fault
        self._most = self.read + (_MOST_OF_LARGE if is_large else _MOST_TRIED)
        return self._fault

    def mended(self, schema: Any, place: str) -> Any:
        """Return a schema without the parts that are refused whatever their references mean.

        Raises:
            TooLarge: finding all of them would take too long; names the first place.
        """
        is_refused = isinstance(schema, dict) and bool(self._alone(schema))
        return self._without(schema, place) if is_refused else schema

    def _without(self, schema: dict[str, Any], place: str) -> dict[str, Any]:
        parts = [(at, one) for at, one in subschemas(schema) if isinstance(one, dict)]
        is_within = not self._alone(map_subschemas(schema, lambda _one, _at: True))
        refused = self._refused(parts, is_sure=is_within)
        new = {at: self._without(one, joined(place, at)) for at, one in refused}
        found = map_subschemas(schema, lambda one, at: new.get(at, one))
        if (new and is_within) or not self._alone(found):
            return found
        # The keywords of a value's parts come last: leaving out another one may be enough.
        keywords = sorted((name for name in found if name != "type"), key=_SHAPES.__contains__)
        for keyword in keywords:
            part = {name: found[name] for name in found if name in ("type", keyword)}
            if why := self._alone(part):
                self._leave_out(found, place, keyword, why)
        for keyword in keywords:
            rest = {name: one for name, one in found.items() if name != keyword}
            if (why := self._alone(found)) and not self._alone(rest):
                self._leave_out(found, place, keyword, why)
        return found

    def _refused(self, parts: _Parts, *, is_sure: bool) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the schemas, each with its place, that are refused by themselves; `is_sure`: at
        least one of them is."""
        if not parts or not (is_sure or self._is_refused(parts)):
            return
        if len(parts) == 1:
            yield parts[0]
            return
        first, second = parts[: len(parts) // 2], parts[len(parts) // 2 :]
        is_first = self._is_refused(first)
        yield from self._refused(first if is_first else (), is_sure=True)
        yield from self._refused(second, is_sure=not is_first)

    def _is_refused(self, parts: _Parts) -> bool:
        named = {str(i): one for i, (_, one) in enumerate(parts)}
        return bool(self._alone({"type": "object", "properties": named, "required": list(named)}))

    def _leave_out(self, found: dict[str, Any], place: str, keyword: str, why: str) -> None:
        if keyword in found:
            given = found.pop(keyword)
            if keyword == "oneOf":
                found.setdefault("anyOf", given)
            self.faults.append(f"{joined(place, keyword)}: {why}")

    def _alone(self, schema: dict[str, Any]) -> str:
        """Return the library's message about a schema without its references."""
        rule = f"start: {json_rule(_without_references(schema, ''))}"
        self.read += len(rule) + _OF_A_TRY
        if self.read > self._most:
            raise TooLarge(self.faults[0] if self.faults else self._fault)
        return _fault_of(rule)


def _without_references(schema: Any, _place: str) -> Any:
    if not isinstance(schema, dict):
        return schema
    rest = {name: one for name, one in schema.items() if name != "$ref"}
    return map_subschemas(rest, _without_references)
