"""Translates JSON Schema's regular expressions to the notation of the grammars' library."""

from __future__ import annotations

import re
from typing import Final

_SPACE: Final = r"\t\n\v\f\r \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"
_TOKEN: Final = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]?", re.DOTALL)
_PART: Final = re.compile(rf"{_TOKEN.pattern}|\.", re.DOTALL)
_IN_CLASS: Final = re.compile(r"\\.|[\[&~]|(?<=-)-", re.DOTALL)
_INSIDE: Final = {r"\s": _SPACE, r"\S": f"[^{_SPACE}]"}
_ALONE: Final = {r"\s": f"[{_SPACE}]", r"\S": f"[^{_SPACE}]", ".": r"[^\n\r\u2028\u2029]"}


def without_bare_classes(pattern: str) -> str:
    """Replace JavaScript's `[^]` (any character) and `[]` (none) in a pattern."""
    bare = {"[^]": r"[\s\S]", "[]": r"[^\s\S]"}
    return _TOKEN.sub(lambda found: bare.get(found[0], found[0]), pattern)


def rust_pattern(pattern: str) -> str:
    """Translate a regular expression of JSON Schema (ECMA-262) to Rust's notation."""
    return _PART.sub(_translated, pattern)


def _translated(part: re.Match[str]) -> str:
    if not part[0].startswith("["):
        return _ALONE.get(part[0], part[0])
    return "[" + _IN_CLASS.sub(_in_class, part[0][1:])


def _in_class(part: re.Match[str]) -> str:
    """Translate a part of a class: Rust's classes may hold classes and operators, so escape
    their characters."""
    return _INSIDE.get(part[0], part[0] if part[0][0] == "\\" else f"\\{part[0]}")
