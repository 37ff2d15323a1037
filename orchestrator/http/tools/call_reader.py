"""Streaming parser for text and tool calls.

Calls are found in the model's own format. Models also write "loose" calls that their template does
not teach: a JSON object, or a fenced block of code, maybe with doubled outer braces, as the
template of Qwen2.5-Coder has them by mistake. Such a block is a call if it names a tool that may be
called and, if that is `strict`, its arguments fit the schema; else it is text. A call that has
begun stays a call: its arguments are passed on as they come, and may be cut off with the answer. If
a model writes each argument in tags, its value is the text there, or that text read as JSON if the
tool's schema wants no text.

If only one call is allowed, the answer ends with the first: text after it is dropped, since the
model does not know the call's result yet.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from orchestrator.call_markup import (
    begin_of_call,
    begins,
    end_of_name,
    last_tags,
    matched,
    may_be_name,
)
from orchestrator.grammar import fits
from orchestrator.http.body import FINITE_JSON, read_json
from orchestrator.http.tools.tagged_arguments import TaggedArguments, dumped
from orchestrator.loop.stop_strings import overlap
from orchestrator.types import CallFormat, ToolCall

FENCE = "```"
_OPENING = re.compile(r"(```[a-zA-Z_]{0,64})\s{0,64}(\S?)")  # bounded: tried with each piece
_MOST_NAME = 128


@dataclass(frozen=True, slots=True)
class CallPiece:
    """A part of a call: the first names it, all add to its arguments."""

    index: int
    id: str
    name: str | None
    arguments: str


Piece = str | CallPiece


class CallReader:
    """Reads one answer in a known format.

    Args:
        calls: how the model writes calls.
        names: the tools that may be called.
        prefix: the ids of calls begin with it.
        strict: by tool, the schema that the arguments of a loose call must fit.
        parallel: whether there may be several calls; else the answer ends with the first.
        schemas: by tool, the schema of its arguments, if any.
    """

    def __init__(
        self,
        calls: CallFormat,
        names: Collection[str],
        prefix: str,
        *,
        strict: Mapping[str, Any] = MappingProxyType({}),
        parallel: bool = True,
        schemas: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self._schemas, self._strict = schemas, strict
        self._format, self._names, self._prefix = calls, names, prefix
        self._parallel = parallel
        self._held, self._blank = "", True
        self._state: Literal[
            "text", "call", "loose", "code", "name", "arguments", "after", "tag"
        ] = "text"
        self._object = _JsonEnd()
        self._begin = ""  # of a call, before its name
        self._tags: TaggedArguments | None = None  # if the last call's arguments are in tags
        self._doubled = False  # a loose call's outer braces
        self._searched = 0  # of what is held, for the end of a loose call
        self._found: list[ToolCall] = []

    @property
    def calls(self) -> Sequence[ToolCall]:
        return self._found if self._parallel else self._found[:1]

    @property
    def are_whole(self) -> bool:
        """Whether all calls have all their arguments, and these fit strict tools' schemas."""
        return all(
            self._fitting(call.name, read_json(call.arguments)) is not None for call in self.calls
        )

    def feed(self, text: str) -> list[Piece]:
        """Return the pieces that are certain after this text."""
        self._held += text
        return self._read(ended=False)

    def end(self) -> list[Piece]:
        return self._read(ended=True)

    def _read(self, *, ended: bool) -> list[Piece]:
        pieces: list[Piece] = []
        while True:
            state, length = self._state, len(self._held)
            step = getattr(self, f"_in_{state}")
            pieces += step(ended)
            if not (self._held or ended) or (self._state == state and len(self._held) == length):
                break
        return [one for one in pieces if isinstance(one, str) or self._parallel or one.index == 0]

    def _in_text(self, ended: bool) -> list[Piece]:
        if self._found and not self._parallel:
            self._held = ""
            return []
        held, trigger = self._held, self._format.trigger
        starts = [at for mark in (trigger, FENCE) if mark and (at := held.find(mark)) >= 0]
        if self._blank and held.lstrip().startswith("{"):
            starts.append(len(held) - len(held.lstrip()))
        if starts:
            self._state = "call"
            return self._text(min(starts))
        kept = 0 if ended else max(overlap(held, trigger), overlap(held, FENCE))
        return self._text(len(held) - kept)

    def _in_call(self, ended: bool) -> list[Piece]:
        held, before = self._held, self._format.before.lstrip()
        if self._format.trigger or not held.startswith(FENCE):
            if found := begin_of_call(self._format, held):
                self._begin, self._state = found[0], "name"
                self._held = held[found.end() :]
                return []
            if begins(before, held) and not ended:
                return []
        self._begin_loose()
        return []

    def _in_name(self, ended: bool) -> list[Piece]:
        held = self._held
        for name in sorted(self._names, key=len, reverse=True):
            if held.startswith(name) and (found := end_of_name(self._format, held, len(name))):
                self._held, self._state, self._object = held[found.end() :], "arguments", _JsonEnd()
                self._searched = 0
                if self._format.each is not None:
                    self._tags = TaggedArguments(self._format, self._schemas.get(name), self._names)
                return [self._called(name, "")]
        if not ended and any(may_be_name(self._format, held, name) for name in self._names):
            return []
        self._held = self._begin + held
        self._begin_loose()
        return []

    def _in_arguments(self, ended: bool) -> list[Piece]:
        if self._tags is not None:
            return self._in_tags(self._tags, ended)
        if not self._begun:
            begin = self._held.lstrip()
            if not begin and not ended:
                return []
            if begin[:1] in ('"', "n"):
                return self._in_other_arguments(begin, ended)
        end = self._object.feed(self._held)
        if end is not None:
            self._state = "after"
        text, self._held = self._held[:end], "" if end is None else self._held[end:]
        return self._argue(text)

    def _in_other_arguments(self, held: str, ended: bool) -> list[Piece]:
        """Read a string of JSON, or null, in place of the object of arguments."""
        size = len("null") if "null".startswith(held[:4]) else None
        if size is None:
            found = self._object.feed(held[self._searched :])
            size = None if found is None else self._searched + found
            self._searched = len(held)
        if not ended and (size is None or len(held) < size):
            self._held = held
            return []
        size = size or len(held)
        value, self._held, self._state = held[:size], held[size:], "after"
        if value == "null":
            return self._argue("{}")
        text = read_json(value)
        arguments = read_json(text) if isinstance(text, str) else None
        return self._argue(dumped(arguments) if isinstance(arguments, dict) else value)

    def _in_tags(self, tags: TaggedArguments, ended: bool) -> list[Piece]:
        """Read the next argument, or the end of the arguments.

        An answer that ends after an argument also ends its call; one that is cut off inside an
        argument leaves the call open, without that argument.
        """
        found = tags.next(self._held, ended=ended)
        if found is None:
            return []
        member, end = found
        self._held = self._held[end:]
        if member:
            return self._argue((", " if self._begun else "{") + member)
        self._state = "after"
        return self._argue("}" if self._begun else "{}")

    @property
    def _begun(self) -> bool:
        return bool(self._found[-1].arguments)

    def _argue(self, text: str) -> list[Piece]:
        """Add to the last call's arguments."""
        if not text:
            return []
        index = len(self._found) - 1
        call = self._found[index]
        self._found[index] = ToolCall(call.id, call.name, call.arguments + text)
        return [CallPiece(index, call.id, None, text)]

    def _in_after(self, ended: bool) -> list[Piece]:
        """Read another call's beginning, or the end of the calls; white space may differ, and the
        first tags may be missing."""
        held, afters = self._held.lstrip(), last_tags(self._format.after)
        betweens = last_tags(self._format.between or "")
        if found := _first_matched(betweens, held):
            self._held, self._state = held[found.end() :], "name"
        elif not ended and any(begins(one, held) for one in betweens):
            pass
        elif found := _first_matched(afters, held):
            self._held, self._state = held[found.end() :], "text"
        elif not (begun := any(begins(one, held) for one in afters)) or ended:
            self._held, self._state = "" if begun else self._held, "text"
        return []

    def _begin_loose(self) -> None:
        self._state, self._object, self._searched = "loose", _JsonEnd(), 0
        self._doubled = False

    def _in_loose(self, ended: bool) -> list[Piece]:
        """Read a loose call: one in another form than the model's own. Search nothing twice."""
        held, trigger = self._held, self._format.trigger
        if held.startswith(FENCE):
            opening = _OPENING.match(held)
            assert opening is not None
            if opening[2] and opening[2] not in "{[":  # neither an object nor a list of some
                self._state = "code"
                return self._text(opening.end(1))
            end = held.find(FENCE, max(len(FENCE), self._searched - len(FENCE) + 1))
            self._searched = len(held)
            if end < 0 and not ended:
                return []
            body = held[opening.end(1) : len(held) if end < 0 else end]
            size = len(held) if end < 0 else end + len(FENCE)
        else:
            most = len(self._format.before) + _MOST_NAME
            another = held.find(trigger, 1, most) if trigger else -1
            begin = held.find("{", 0, most if another < 0 else another)
            if begin < 0:
                waits = another < 0 and len(held) < most and not ended
                return [] if waits else self._give_up(len(trigger) or len(held))
            if begin == len(held) - 1 and not ended:
                return []  # the next one may be another brace
            self._doubled = held.startswith("{{", begin)
            begin += self._doubled
            start = max(begin, self._searched)
            found = self._object.feed(held[start:])
            if found is None and not ended:
                self._searched = len(held)
                return []
            size = len(held) if found is None else start + found
            body = held[begin:size]
        values = _objects(body)
        calls = [call for one in values for call in self._calls_in(one)]
        if not calls:
            mark = -1 if values or not trigger else held.find(trigger, 1, size)
            return self._give_up(size if mark < 0 else mark)
        self._held, self._state = held[size:], "tag"
        return [self._called(*call) for call in calls]

    def _in_code(self, ended: bool) -> list[Piece]:
        held = self._held
        if (at := held.find(FENCE)) >= 0:
            return self._give_up(at + len(FENCE))
        return self._text(len(held) - (0 if ended else overlap(held, FENCE)))

    def _called(self, name: str, arguments: str) -> CallPiece:
        index = len(self._found)
        call = ToolCall(f"{self._prefix}{index}", name, arguments)
        self._found.append(call)
        return CallPiece(index, call.id, name, arguments)

    def _in_tag(self, ended: bool) -> list[Piece]:
        """Read the closing tag of a loose call, if it has one."""
        rest = self._held.lstrip()
        if self._doubled and rest:
            rest, self._doubled = rest.removeprefix("}").lstrip(), False
            self._held = rest
        if tag := re.match(r"</[^>]*>", rest):
            self._held, self._state = rest[tag.end() :], "text"
        elif ended or (rest and not "</".startswith(rest[:2])):
            self._state = "text"
        return []

    def _give_up(self, size: int) -> list[Piece]:
        """Return the first `size` characters as text: they are no call."""
        self._state = "text"
        return self._text(size)

    def _text(self, size: int) -> list[Piece]:
        text, self._held = self._held[:size], self._held[size:]
        self._blank = self._blank and not text.strip()
        return [text] if text else []

    def _calls_in(self, value: Any) -> list[tuple[str, str]]:
        """Return name and arguments of the calls in a JSON value; empty if it is something else."""
        if isinstance(value, list):
            found = [self._calls_in(one) for one in value]
            return [call for one in found for call in one] if all(found) else []
        # A tool's own definition has `parameters` as well.
        named = "parameters" if "parameters" in self._format.middle else "arguments"
        name = value.get("name") if isinstance(value, dict) else None
        if not isinstance(name, str) or name not in self._names or named not in value:
            return []
        given = {} if value[named] is None else value[named]
        arguments = self._fitting(name, read_json(given) if isinstance(given, str) else given)
        return [] if arguments is None else [(name, dumped(arguments))]

    def _fitting(self, name: str, arguments: Any) -> dict[str, Any] | None:
        """Return a call's arguments if they are an object that fits a strict tool's schema."""
        if not isinstance(arguments, dict):
            return None
        strict = self._strict.get(name)
        return arguments if strict is None or fits(arguments, strict) else None


class _JsonEnd:
    """Finds the end of a JSON object or string, in a text that comes in pieces."""

    def __init__(self) -> None:
        self._depth, self._in_string, self._escaped = 0, False, False

    def feed(self, text: str) -> int | None:
        """Return the index in this piece after the end; None: not yet."""
        for i, letter in enumerate(text):
            if self._escaped:
                self._escaped = False
            elif self._in_string:
                self._escaped = letter == "\\"
                self._in_string = letter != '"'
                if not self._in_string and self._depth == 0:
                    return i + 1
            elif letter == '"':
                self._in_string = True
            elif letter in "{[":
                self._depth += 1
            elif letter in "}]":
                self._depth -= 1
                if self._depth <= 0:
                    return i + 1
        return None


def _first_matched(markups: Iterable[str], text: str) -> re.Match[str] | None:
    return next((found for one in markups if (found := matched(one, text))), None)


def _objects(text: str) -> list[Any]:
    """Return the JSON values of a text; empty if it holds anything else."""
    values, text = [], text.strip().rstrip(",")
    while text:
        try:
            value, end = FINITE_JSON.raw_decode(text)
        except (ValueError, RecursionError):
            return []
        values.append(value)
        text = text[end:].strip().lstrip(",").lstrip()
    return values
