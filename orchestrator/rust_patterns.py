"""Translates JSON Schema's regular expressions to the notation of the grammars' library."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

_SPACE: Final = r"\t\n\v\f\r \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"
_MOST_AHEAD: Final = 16  # groups that look ahead
_TOKEN: Final = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]?|[()|]", re.DOTALL)


def without_bare_classes(pattern: str) -> str:
    """Replace JavaScript's `[^]` (any character) and `[]` (none) in a pattern."""
    bare = {"[^]": r"[\s\S]", "[]": r"[^\s\S]"}
    return _TOKEN.sub(lambda found: bare.get(found[0], found[0]), pattern)


def conjuncts(pattern: str) -> list[str]:
    """Split a pattern that begins with lookaheads into patterns all of which a text must match.

    `^(?=.*[0-9]).{8,}$` asks for a digit, and for eight characters or more.
    """
    ahead, begin = list[str](), 0
    while pattern.startswith("^(?=" if begin == 0 else "(?=", begin):
        inside = begin + (4 if begin == 0 else 3)
        end = _end_of_group(pattern, inside)
        if not end or len(ahead) == _MOST_AHEAD:
            return [pattern]
        ahead.append(f"^(?:{pattern[inside:end]})")
        begin = end + 1
    rest = f"^{pattern[begin:]}" if ahead else pattern
    alternatives = any(depth == 0 and letter == "|" for _, letter, depth in _brackets(rest, 0))
    return [pattern] if alternatives else [rest, *ahead]


def _end_of_group(pattern: str, begin: int) -> int:
    """Return the index of the end of the group whose content begins at `begin`; 0 if none."""
    return next((at for at, letter, depth in _brackets(pattern, begin) if depth < 0), 0)


def _brackets(pattern: str, begin: int) -> Iterator[tuple[int, str, int]]:
    """Yield the brackets and bars from `begin` on, each with its index and depth of groups."""
    depth = 0
    for found in _TOKEN.finditer(pattern, begin):
        letter = found[0]
        if letter in "()|":
            depth -= letter == ")"
            yield found.start(), letter, depth
            depth += letter == "("


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
