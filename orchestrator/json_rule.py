"""JSON Schemas as rules of the grammars' library, and that library's messages."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any, Final

from llguidance import LLMatcher, LLParserLimits

LIMITS: Final = LLParserLimits(max_items_in_row=4000, initial_lexer_fuel=2_000_000)
_LAYOUT: Final = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


def json_rule(schema: Any) -> str:
    """Return the body of a grammar's rule: JSON that matches a schema."""
    if isinstance(schema, dict):
        schema = {**schema, "x-guidance": _LAYOUT}
    return f"%json {json.dumps(schema)}"


@lru_cache(maxsize=64)
def fault_of(grammar: str) -> str:
    """Return the library's message about a grammar; empty if it is valid."""
    fault = LLMatcher.validate_grammar(grammar, limits=LIMITS)
    return "" if fault.startswith("WARNING") else reason(fault)


def reason(text: str) -> str:
    """Return the first line of the library's message; a picture of the grammar follows it."""
    lines = text.strip().split("\n")
    said = [line for line in lines if line.startswith("error: ")] or lines[:1]
    return said[0].removeprefix("error: ").rpartition("JSON schema: ")[2][:300]
