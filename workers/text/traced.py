"""Texts of a conversation that a chat template reads, and that stay recognisable in its output.

A template may look for `</think>` in one, split it or trim it as usual. But their characters are
stored as *twins*, in planes that Unicode leaves empty, and stay twins in every operation: no
content becomes markup. A string method that is not defined here reads twins, so it finds nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, SupportsIndex

_PLANES = {0: 4, 1: 5, 2: 6, 3: 7, 14: 8, 15: 9, 16: 10}
"""From each plane to that of its characters' twins; `_rare` makes twins for other planes."""
_TO_TWIN = bytes(_PLANES.get(plane, plane) for plane in range(256))
_FROM_TWIN = bytes({to: plane for plane, to in _PLANES.items()}.get(i, i) for i in range(256))
_EMPTY = re.compile("([\U00040000-\U000dffff])")
_TWINS = re.compile("([\U00040000-\U000cffff]+)")
_PAIR = re.compile("([\U000b0000-\U000bffff])([\U000c0000-\U000cffff])")


class Traced(str):
    """A text whose contents are twins, but which compares and splits as its plain text."""

    __slots__ = ("_seen",)
    _seen: str

    def __new__(cls, twins: str, seen: str | None = None) -> Traced:
        """`seen` is the plain text that a template reads, if known already."""
        if isinstance(twins, Traced):
            return twins
        self = super().__new__(cls, twins)
        self._seen = _shifted(twins, _FROM_TWIN) if seen is None else seen
        return self

    def __str__(self) -> str:
        return self

    def __repr__(self) -> str:
        quote, inside = repr(self._seen)[0], [(repr(one)[1:-1], ours) for one, ours in pieces(self)]
        return f"{quote}{''.join(twins(text) if ours else text for text, ours in inside)}{quote}"

    def __eq__(self, other: object) -> bool:
        return bool(self._seen == _seen(other))

    def __ne__(self, other: object) -> bool:
        return bool(self._seen != _seen(other))

    def __hash__(self) -> int:
        return hash(self._seen)

    def __contains__(self, text: object) -> bool:
        return isinstance(text, str) and _seen(text) in self._seen

    def __iter__(self) -> Iterator[str]:
        return map(Traced, super().__iter__())

    def __getitem__(self, key: SupportsIndex | slice) -> Traced:
        return Traced(super().__getitem__(key), self._seen[key])

    def __add__(self, text: str) -> Traced:
        return Traced(super().__add__(text), self._seen + Traced(text)._seen)

    def __radd__(self, text: str) -> Traced:
        return Traced(str.__add__(text, self), Traced(text)._seen + self._seen)

    def join(self, texts: Iterable[str]) -> Traced:
        return Traced(super().join(texts))

    def strip(self, chars: str | None = None) -> Traced:
        return self.lstrip(chars).rstrip(chars)

    def lstrip(self, chars: str | None = None) -> Traced:
        return self[len(self) - len(self._seen.lstrip(_seen(chars))) :]

    def rstrip(self, chars: str | None = None) -> Traced:
        return self[: len(self._seen.rstrip(_seen(chars)))]

    def removeprefix(self, prefix: str) -> Traced:
        return self[len(prefix) :] if self._seen.startswith(_seen(prefix)) else self

    def removesuffix(self, suffix: str) -> Traced:
        found = suffix and self._seen.endswith(_seen(suffix))
        return self[: -len(suffix)] if found else self

    def partition(self, separator: str) -> tuple[str, str, str]:
        return self._in_three(self._seen.partition(_seen(separator)))

    def rpartition(self, separator: str) -> tuple[str, str, str]:
        return self._in_three(self._seen.rpartition(_seen(separator)))

    def split(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        return self._cut(self._seen.split(_seen(sep), maxsplit), sep)

    def rsplit(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        return self._cut(self._seen.rsplit(_seen(sep), maxsplit), sep)

    def splitlines(self, keepends: bool = False) -> list[str]:
        whole = self._cut(self._seen.splitlines(True), "")
        bare = self._seen.splitlines(keepends)
        return [one[: len(text)] for one, text in zip(whole, bare, strict=True)]

    def replace(self, old: str, new: str, count: SupportsIndex = -1, /) -> Traced:
        if old:
            return Traced(str.join(new, self.split(old, count)))
        places = len(self) + 1 if int(count) < 0 else min(int(count), len(self) + 1)
        begun = "".join(new + str.__getitem__(self, slice(i, i + 1)) for i in range(places))
        return Traced(begun + str.__getitem__(self, slice(places, None)))

    def _in_three(self, texts: tuple[str, str, str]) -> tuple[str, str, str]:
        first, second, third = self._cut(texts, "")
        return first, second, third

    def _cut(self, texts: Iterable[str], separator: str | None) -> list[str]:
        """Return these parts of this text, which have a separator or white space between them."""
        parts, at = list[str](), 0
        for text in texts:
            if separator is None:
                at = self._seen.index(text, at)
            parts.append(self[at : at + len(text)])
            at += len(text) + len(separator or "")
        return parts


def _reading(name: str) -> Callable[..., Any]:
    """Make a string method that only reads."""

    def method(self: Traced, *given: Any) -> Any:
        return getattr(self._seen, name)(*map(_seen, given))

    return method


def _rewriting(name: str) -> Callable[..., Any]:
    """Make a string method that rewrites each character, at times as several."""

    def method(self: Traced) -> Traced:
        seen, at, written = getattr(self._seen, name)(), 0, ""
        alike = len(seen) == len(self)
        for text, is_content in pieces(self):
            new = seen[at : at + len(text)] if alike else getattr(text, name)()
            written += twins(new) if is_content else new
            at += len(text)
        return Traced(written)

    return method


for _name in (
    "startswith", "endswith", "find", "rfind", "index", "rindex", "count", "isalnum", "isalpha",
    "isascii", "isdecimal", "isdigit", "islower", "isnumeric", "isspace", "istitle", "isupper",
    "__lt__", "__le__", "__gt__", "__ge__",
):  # fmt: skip
    setattr(Traced, _name, _reading(_name))
for _name in ("capitalize", "casefold", "lower", "swapcase", "title", "upper"):
    setattr(Traced, _name, _rewriting(_name))


def traced(text: str, hidden: Iterable[str] = ()) -> Traced:
    """Return a content for a template, which does not recognise the texts `hidden` in it."""
    parts = [text]
    if any(one and one in text for one in hidden):
        parts = re.split("(" + "|".join(map(re.escape, filter(None, hidden))) + ")", text)
    made = "".join(_rare(part) if i % 2 else twins(part) for i, part in enumerate(parts))
    return Traced(made, text if len(made) == len(text) else None)  # else some are two for one


def twins(text: str) -> str:
    """Return a content's twins, which a template's output holds for it."""
    parts = _EMPTY.split(text)
    return "".join(_rare(p) if i % 2 else _shifted(p, _TO_TWIN) for i, p in enumerate(parts))


def pieces(text: str) -> Iterator[tuple[str, bool]]:
    """Yield the pieces of a template's output, and whether each is of contents."""
    for i, piece in enumerate(_TWINS.split(text)):
        if piece:
            yield (_untwinned(piece) if i % 2 else piece), bool(i % 2)


def plain(text: str) -> str:
    """Return a template's output with contents as plain text."""
    return "".join(piece for piece, _ in pieces(text))


def has_twins(text: str) -> bool:
    """Whether a template's output holds contents."""
    return _TWINS.search(text) is not None


def again(value: Any) -> Any:
    """Return a text with twins as `Traced`, and any other value as it is."""
    if isinstance(value, str) and not isinstance(value, Traced) and has_twins(value):
        return Traced(str.__str__(value))
    return value


def _seen(value: Any) -> Any:
    return value._seen if isinstance(value, Traced) else value


def _shifted(text: str, table: bytes) -> str:
    """Return a text with its characters moved to other planes."""
    units = bytearray(text.encode("utf-32-le", "surrogatepass"))
    units[2::4] = units[2::4].translate(table)
    return units.decode("utf-32-le", "surrogatepass")


def _rare(text: str) -> str:
    """Return twins of another kind, two for a character: for planes without `_PLANES`, and for
    texts that a template must not recognise."""
    places = (divmod(ord(character), 1 << 16) for character in text)
    return "".join(chr(0xB0000 + plane) + chr(0xC0000 + place) for plane, place in places)


def _untwinned(text: str) -> str:
    shifted = _shifted(text, _FROM_TWIN)
    return _PAIR.sub(lambda pair: chr((ord(pair[1]) & 0xFF) << 16 | ord(pair[2]) & 0xFFFF), shifted)
