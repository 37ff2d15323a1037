"""A JSON Schema without what the grammars' library refuses, wherever in it that is.

The library names no place. So parts of a schema are tried by themselves, many at once: the halves
of those that are refused are tried in their turn.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, Final

from llguidance import LLMatcher, LLParserLimits

from orchestrator.json_schema import TooLarge, changed, inner

LIMITS: Final = LLParserLimits(max_items_in_row=4000, initial_lexer_fuel=2_000_000)
_LAYOUT: Final = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_MOST_TRIED: Final = 1 << 19  # characters of all that is tried
_MOST_OF_LARGE: Final = 1 << 16  # likewise, where the library takes its time to refuse the whole
_OF_A_TRY: Final = 1 << 11  # characters that one counts for beside its own
_SHAPES: Final = {
    *("$ref", "const", "enum", "allOf", "anyOf", "oneOf", "required", "properties"),
    *("patternProperties", "additionalProperties", "prefixItems", "items"),
}
"""What says of which parts a value is made."""
_Parts = Sequence[tuple[str, dict[str, Any]]]


def json_rule(schema: Any) -> str:
    """The body of a rule: JSON that matches a schema."""
    if isinstance(schema, dict):
        schema = {**schema, "x-guidance": _LAYOUT}
    return f"%json {json.dumps(schema)}"


@lru_cache(maxsize=64)
def fault_of(grammar: str) -> str:
    """What is wrong with a grammar; empty for nothing."""
    return _fault_of(grammar)


def _fault_of(grammar: str) -> str:
    fault = LLMatcher.validate_grammar(grammar, limits=LIMITS)
    return "" if fault.startswith("WARNING") else reason(fault)


def reason(text: str) -> str:
    """The first line of a message of the library; a picture of the grammar follows there."""
    lines = text.strip().split("\n")
    said = [line for line in lines if line.startswith("error: ")] or lines[:1]
    return said[0].removeprefix("error: ").rpartition("JSON schema: ")[2][:300]


def joined(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name


class Mending:
    """Leaves out of the parts of a schema what the library refuses.

    Attributes:
        faults: what was left out: its place, and why.
        read: how much the library has read, in characters.
    """

    def __init__(self) -> None:
        self.faults = list[str]()
        self.read = self._most = 0
        self._fault = ""

    def fault_of(self, schema: Any) -> str:
        """What the library finds wrong with a whole schema; empty for nothing."""
        rule = f"start: {json_rule(schema)}"
        self._fault = _fault_of(rule)
        self.read += len(rule) + _OF_A_TRY
        is_large = "too large" in self._fault or "too big" in self._fault
        self._most = self.read + (_MOST_OF_LARGE if is_large else _MOST_TRIED)
        return self._fault

    def mended(self, schema: Any, place: str) -> Any:
        """A schema without what is refused whatever it refers to; what is refused together with
        that is found once it is gone.

        Raises:
            TooLarge: so much is that not all of it can be found; names the first place.
        """
        is_refused = isinstance(schema, dict) and bool(self._alone(schema))
        return self._without(schema, place) if is_refused else schema

    def _without(self, schema: dict[str, Any], place: str) -> dict[str, Any]:
        parts = [(at, one) for at, one in inner(schema) if isinstance(one, dict)]
        is_within = not self._alone(changed(schema, lambda _one, _at: True))
        refused = self._refused(parts, is_sure=is_within)
        new = {at: self._without(one, joined(place, at)) for at, one in refused}
        found = changed(schema, lambda one, at: new.get(at, one))
        if (new and is_within) or not self._alone(found):
            return found
        # What says most of a value comes last: another one may go in its place.
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
        """Those of some schemas, each with its place, that are refused by themselves; `is_sure`:
        whether one of them is."""
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
        """Whether one of some schemas is."""
        named = {str(i): one for i, (_, one) in enumerate(parts)}
        return bool(self._alone({"type": "object", "properties": named, "required": list(named)}))

    def _leave_out(self, found: dict[str, Any], place: str, keyword: str, why: str) -> None:
        if keyword in found:
            del found[keyword]
            self.faults.append(f"{joined(place, keyword)}: {why}")

    def _alone(self, schema: dict[str, Any]) -> str:
        """What is wrong with a schema, whatever it refers to."""
        rule = f"start: {json_rule(_without_references(schema, ''))}"
        self.read += len(rule) + _OF_A_TRY
        if self.read > self._most:
            raise TooLarge(self.faults[0] if self.faults else self._fault)
        return _fault_of(rule)


def _without_references(schema: Any, _place: str) -> Any:
    if not isinstance(schema, dict):
        return schema
    rest = {name: one for name, one in schema.items() if name != "$ref"}
    return changed(rest, _without_references)
