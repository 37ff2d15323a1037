"""Reads the arguments of a call, each in tags, as members of a JSON object."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Collection
from contextlib import suppress
from typing import Any

from orchestrator.call_markup import ends_of_answers, ends_of_values, spaced
from orchestrator.http.body import read_json
from orchestrator.json_schema import TYPES, References, ValueForm, properties_of, value_form
from orchestrator.types import CallFormat

_MOST_NAME = 256
_MOST_NAMES = 256  # in one regular expression
_MOST_END = 1024  # characters of a value's end, white space included
_MOST_LITERAL = 1 << 14
_MOST_TRIES = 16  # ends of a value at which it is parsed


class TaggedArguments:
    """Reads the arguments of one call, from a text that comes in pieces.

    Args:
        calls: how the model writes them.
        schema: that of the arguments, if there is one.
        tools: the names of all tools that may be called.
    """

    def __init__(self, calls: CallFormat, schema: Any, tools: Collection[str]) -> None:
        assert calls.each is not None
        self._calls, self._form = calls, calls.each
        self._references = References(schema)
        self._schemas = properties_of(schema)
        self._given: set[str] = set()
        self._tools = "|".join(map(re.escape, sorted(tools)))
        # How far the value's end was searched, and where the last false end is.
        self._searched = self._past = 0
        self._tries = 0

    def next(self, text: str, *, ended: bool) -> tuple[str, int] | None:
        """Return the next member of the JSON object and the index after it; None: not yet.

        The member is empty if there are no more arguments: then read no further. One that the
        answer's end cuts off is never returned.
        """
        begin = self._form.before.strip()
        start = len(text) - len(text.lstrip())
        if not text.startswith(begin, start):
            if not begin.startswith(text[start:]):
                return "", start
            return ("", len(text)) if ended else None
        opening = self._opening.match(text, start)
        if opening is None:
            return None if ended or len(text) < start + _MOST_END else ("", start)
        name = opening["name"].strip()
        form = value_form(self._schemas.get(name), self._references)
        names = [re.escape(one) for one in self._schemas if one not in self._given | {name}]
        known = "|".join(names) if len(names) <= _MOST_NAMES else ""
        ends = re.compile(ends_of_values(self._calls, known, self._tools))
        found = self._value(text, opening.end(), ends, form, ended=ended)
        if found is None:
            return None
        value, end = found
        self._given.add(name)
        self._searched = self._past = self._tries = 0
        is_text = opening["text"] is not None if self._form.other else None
        member = _argument(value, form, is_text, python=self._form.python)
        return f"{dumped(name)}: {member}", end

    @property
    def _opening(self) -> re.Pattern[str]:
        form = self._form
        begin, middle, other = (
            spaced(one.strip()) for one in (form.before, form.middle, form.other or form.middle)
        )
        name = rf"(?P<name>[^<>]{{1,{_MOST_NAME}}}?)"
        return re.compile(rf"{begin}{name}(?:(?P<text>{middle})|{other})")

    def _value(
        self, text: str, start: int, ends: re.Pattern[str], form: ValueForm, *, ended: bool
    ) -> tuple[str, int] | None:
        """Return the value that begins at `start`, and the index after it. Search nothing twice."""
        white = self._form.middle[len(self._form.middle.rstrip()) :]
        start += len(white) if text.startswith(white, start) else 0
        if (quotes := self._form.quotes) and text.startswith(quotes[0], start):
            end = re.escape(quotes[1]) + spaced(self._form.after.strip())
            start += len(quotes[0])
            close = re.compile(end).search(text, max(start, self._searched - _MOST_END))
            self._searched = len(text)
            return None if close is None else (text[start : close.start()], close.end())
        searched = max(start, self._past, self._searched - _MOST_END)
        while place := ends.search(text, searched):
            if self._is_whole(text[start : place.start()], form):
                break
            searched = self._past = place.end()
        self._searched = len(text)
        if place is None and ended:
            ways = ends_of_answers(self._calls)
            places = (re.compile(way).search(text, start) for way in (ends.pattern, *ways))
            place = next((one for one in places if one), None)
            if place is None:  # nothing ends the call
                tag = re.compile(f"(?P<end>{spaced(self._form.after.strip())})")
                *_, place = [None, *tag.finditer(text, start)]
        if place is None:
            return None
        value = text[start : place.start()]
        if not place["end"]:
            return value, place.end()
        white = self._form.after[: -len(self._form.after.lstrip())]
        return value.removesuffix(white), place.end("end")

    def _is_whole(self, text: str, form: ValueForm) -> bool:
        """Return whether a value may end here: not in the middle of an object or a list. Each try
        parses it from its beginning, so there are few."""
        if not form.types or "string" in form.types or text.lstrip()[:1] not in ("{", "["):
            return True
        if self._tries >= _MOST_TRIES:
            return True
        if text.rstrip()[-1:] not in ("}", "]"):
            return False
        self._tries += 1
        return _decoded(text, python=True) is not None


def _argument(text: str, form: ValueForm, is_text: bool | None, *, python: bool) -> str:
    """Return an argument's JSON from the text between its tags: a string if its schema wants one.

    If the schema allows strings beside other values, a text that reads as one of the others is not
    a string, unless the model marks it as one (`is_text`).
    """
    may_be_text = not form.types or "string" in form.types
    if form.types == {"string"} or text in form.listed or (may_be_text and is_text):
        return dumped(text)
    found = _decoded(text, python=python or not may_be_text)
    if found is not None:
        (value,) = found
        named = TYPES[type(value)] in form.types and not isinstance(value, str)
        if named or "string" not in form.types:
            return dumped(value)
    return dumped(text)


def _decoded(text: str, *, python: bool) -> tuple[Any] | None:
    """Return the value of a text of JSON, or of a Python literal that is no string."""
    if (value := read_json(text)) is not None or text.strip() == "null":
        return (value,)
    if python and len(text) < _MOST_LITERAL:
        with suppress(ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            value = ast.literal_eval(text.strip())
            if type(value) in TYPES and not isinstance(value, str):
                return (json.loads(json.dumps(value, allow_nan=False)),)
    return None


def dumped(value: Any) -> str:
    """Return a value's JSON: in ASCII if it holds a lone surrogate, which UTF-8 cannot encode."""
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value)
    return text
