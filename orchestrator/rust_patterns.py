"""Translates JSON Schema's regular expressions to the notation of the grammars' library."""

from __future__ import annotations

import re
from typing import Final

_SPACE: Final = r"\t\n\v\f\r \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"
_TOKEN: Final = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]?", re.DOTALL)


def without_bare_classes(pattern: str) -> str:
    """Replace JavaScript's `[^]` (any character) and `[]` (none) in a pattern."""
    bare = {"[^]": r"[\s\S]", "[]": r"[^\s\S]"}
    return _TOKEN.sub(lambda found: bare.get(found[0], found[0]), pattern)


def rust_pattern(pattern: str) -> str:
    """Translate a regular expression of JSON Schema (ECMA-262) to Rust's notation."""
    found, inside, at = list[str](), False, 0
    while at < len(pattern):
        one = pattern[at]
        if one == "\\" and at + 1 < len(pattern):
            one = pattern[at : at + 2]
            found.append(_escape_of(pattern, at, inside=inside))
            at += one == r"\c" and found[-1].startswith(r"\x")
        elif inside:
            inside = one != "]"
            # Rust's classes may hold classes and operators, so escape their characters.
            doubled = one == "-" and pattern[at - 1] == "-"
            found.append(f"\\{one}" if one in "[&~" or doubled else one)
        elif one == "[":
            inside = True
            found.append(one)
        else:
            found.append(r"[^\n\r\u2028\u2029]" if one == "." else one)
        at += len(one)
    return "".join(found)


def _escape_of(pattern: str, at: int, *, inside: bool) -> str:
    letter = pattern[at + 1]
    if letter == "s":
        return _SPACE if inside else f"[{_SPACE}]"
    if letter == "S":
        return f"[^{_SPACE}]"
    if letter == "c" and pattern[at + 2 : at + 3].isalpha():
        return f"\\x{ord(pattern[at + 2]) % 32:02x}"
    if letter == "b" and inside:
        return r"\x08"
    return r"\x00" if letter == "0" else f"\\{letter}"
