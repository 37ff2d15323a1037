"""Streaming parser for text and tool calls.

Calls are found in the model's own format. Models also write "loose" calls that their template does
not teach: a JSON object, or a fenced block of code, maybe with doubled outer braces, as the
template of Qwen2.5-Coder has them by mistake. Such a block is a call if it names a tool that may be
called and, if that is `strict`, its arguments fit the schema; else it is text. A call that has
begun stays a call: its arguments are passed on as they come, and may be cut off with the answer. If
a model writes each argument in tags, its value is the text there, or that text read as JSON if the
tool's schema wants no text.

A call that breaks off and is written again, maybe by another model, is one call. If only one call
is allowed, the answer ends with the first: text after it is dropped, since the model does not know
the call's result yet.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
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
from orchestrator.http.ask import Choice
from orchestrator.http.body import FINITE_JSON
from orchestrator.http.tools.tagged_arguments import TaggedArguments, dumped
from orchestrator.loop.accumulator import ResponseAccumulator
from orchestrator.loop.stop_strings import overlap
from orchestrator.types import CallFormat, ToolCall

FENCE = "```"
_OPENING = re.compile(r"(```[a-zA-Z_]{0,64})\s{0,64}(\S?)")  # bounded: tried with each piece
_MOST_NAME = 128
_BROKEN_OFF = re.compile(
    r'[^"{]{0,80}\{\{?\s{0,64}"name"\s{0,64}:\s{0,64}"([\w.:/-]{1,128})'
    r'("\s{0,64}(?:,\s{0,64}(?:"\w{0,16}(?:"\s{0,64}:?)?)?)?)?\s{0,64}'
)
_AGAIN = re.compile(
    r"(?:```[a-zA-Z_]{0,64}\s{0,64}|<[^<>\s]{1,64}>\s{0,64})?"
    r'\{\{?\s{0,64}"name"\s{0,64}:\s{0,64}"([\w.:/-]{1,128})"'
)
_MOST_AT_END = 32  # calls at the end of a thought
_MOST_AGAIN = 512
"""Characters, at most, of the second beginning of a call that broke off before its arguments."""


@dataclass(frozen=True, slots=True)
class CallPiece:
    """A part of a call: the first names it, all add to its arguments."""

    index: int
    id: str
    name: str | None
    arguments: str


Piece = str | CallPiece


class AnswerReader:
    """Reads a request's answer as it comes: text, and calls if there are tools.

    A thought that continues in the answer holds only text, so calls are held back while a thought
    may still end after them. `start` counts the characters of the answer that are left out.
    """

    def __init__(self, choice: Choice, response: ResponseAccumulator, start: int = 0) -> None:
        self._choice, self._response = choice, response
        self._reader: CallReader | None = None
        self._start = self._fed = start
        self._waiting: list[Piece] = []

    def feed(self, text: str) -> list[Piece]:
        """Return the pieces that are certain after this text."""
        thought, start = "", self._response.reply_start
        pieces: list[Piece] = []
        if start > self._start:
            thought, text = text[: start - self._fed], text[start - self._fed :]
            pieces += [one for one in [*self._feed(thought), *self._rest()] if isinstance(one, str)]
            self._reader, self._start = None, start
        self._fed += len(thought) + len(text)
        return pieces + self._feed(text)

    def _feed(self, text: str) -> list[Piece]:
        calls, tools = self._response.calls, self._choice.ask.tools
        if self._reader is None and calls is not None and tools is not None and tools.names:
            self._reader = CallReader(
                calls,
                tools.names,
                f"call_{self._choice.trace_id}_",
                strict=tools.strict,
                parallel=tools.parallel,
                schemas=tools.schemas,
            )
        if self._reader is None:
            return [text]
        pieces, self._waiting = [*self._waiting, *self._reader.feed(text)], []
        if self._response.thinks_on:
            calling = (i for i, piece in enumerate(pieces) if isinstance(piece, CallPiece))
            size = next(calling, len(pieces))
            pieces, self._waiting = pieces[:size], pieces[size:]
        return pieces

    def end(self) -> list[Piece]:
        return [*self.feed(""), *self._rest()]

    def _rest(self) -> list[Piece]:
        pieces, self._waiting = self._waiting, []
        return pieces if self._reader is None else [*pieces, *self._reader.end()]

    @property
    def calls(self) -> Sequence[ToolCall]:
        return () if self._reader is None else self._reader.calls


def read_answer(choice: Choice, response: ResponseAccumulator) -> tuple[str, Sequence[ToolCall]]:
    """Return a whole answer's text, and the calls of tools in it."""
    reader = AnswerReader(choice, response, response.reply_start)
    pieces = [*reader.feed(response.raw_answer), *reader.end()]  # as a stream reads it
    if not reader.calls:
        return response.answer, ()
    text = "".join(piece for piece in pieces if isinstance(piece, str)).rstrip()
    return text if response.continues else text.lstrip(), reader.calls


def calls_at_end(choice: Choice, response: ResponseAccumulator, thought: str) -> str:
    """Return the text of the complete calls at the end of a thought; empty if there are none."""
    calls, tools, text = response.calls, choice.ask.tools, thought.rstrip()
    if calls is None or tools is None or not tools.names:
        return ""
    mark = re.escape(calls.trigger) or r"^(?=\{)"
    for found in [*re.finditer(mark, text, re.MULTILINE)][-_MOST_AT_END:]:
        written = text[found.start() :]
        reader = CallReader(calls, tools.names, "", strict=tools.strict, schemas=tools.schemas)
        pieces = [*reader.feed(written), *reader.end()]
        rest = "".join(piece for piece in pieces if isinstance(piece, str))
        whole = all(_is_whole(call, tools.strict.get(call.name)) for call in reader.calls)
        if reader.calls and whole and not rest.strip():
            return written
    return ""


def _is_whole(call: ToolCall, schema: Any) -> bool:
    """Return whether a call has all its arguments, and these fit a strict tool's `schema`."""
    try:
        arguments = FINITE_JSON.decode(call.arguments)
    except (ValueError, RecursionError):
        return False
    return isinstance(arguments, dict) and (schema is None or fits(arguments, schema))


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
        self._broken_off, self._named = "", ""  # a call, held back since it may be written again
        self._in_fence = False  # whether it opened a block that is still to be closed
        self._found: list[ToolCall] = []

    @property
    def calls(self) -> Sequence[ToolCall]:
        return self._found if self._parallel else self._found[:1]

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
        if ended:
            pieces += self._text("")
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
            at = min(starts)
            self._held, self._state = held[at:], "call"
            return self._text(held[:at])
        kept = 0 if ended else max(overlap(held, trigger), overlap(held, FENCE))
        self._held = held[len(held) - kept :]
        return self._text(held[: len(held) - kept])

    def _in_call(self, ended: bool) -> list[Piece]:
        held, before = self._held, self._format.before.lstrip()
        if self._format.trigger or not held.startswith(FENCE):
            if found := begin_of_call(self._format, held):
                self._begin, self._held, self._state = (
                    held[: found.end()],
                    held[found.end() :],
                    "name",
                )
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
                return self._called(name, "")
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
        text, self._held = self._held[:end], self._held[len(self._held) if end is None else end :]
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
        with suppress(ValueError, RecursionError):
            text = FINITE_JSON.decode(value)
            if text is None:
                return self._argue("{}")
            if isinstance(arguments := FINITE_JSON.decode(text), dict):
                return self._argue(dumped(arguments))
        return self._argue(value)

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
        held = self._held
        if held.startswith(FENCE):
            opening = _OPENING.match(held)
            assert opening is not None
            if opening[2] and opening[2] not in "{[":  # neither an object nor a list of some
                pieces, self._state = self._give_up(opening.end(1)), "code"
                return pieces
            end = held.find(FENCE, max(len(FENCE), self._searched - len(FENCE) + 1))
            self._searched = len(held)
            if end < 0 and not ended:
                return []
            body = held[opening.end(1) : len(held) if end < 0 else end]
            size = len(held) if end < 0 else end + len(FENCE)
        else:
            trigger, most = self._format.trigger, len(self._format.before) + _MOST_NAME
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
            if (found := self._object.feed(held[start:])) is None:
                self._searched = len(held)
                return self._break_off(len(held), ended) if ended else []
            size = start + found
            body = held[begin:size]
        values = _objects(body)
        calls = [call for one in values for call in self._calls_in(one)]
        if not calls:
            return self._give_up(size) if values else self._break_off(size, ended)
        self._held, self._state = held[size:], "tag"
        return [piece for call in calls for piece in self._called(*call)]

    def _break_off(self, size: int, ended: bool) -> list[Piece]:
        """Hold back a beginning of a call that is no JSON and that a second beginning of this call
        follows, before any arguments and once in an answer; any other beginning is text."""
        held, found = self._held, _BROKEN_OFF.match(self._held)
        if self._named or not found or not any(n.startswith(found[1]) for n in self._names):
            return self._give_up(size)
        again = _AGAIN.match(held, end := found.end())
        if again is None:
            if held.startswith(FENCE, end) and len(held) < end + _MOST_AGAIN and not ended:
                self._searched = end  # what ends the block may begin another
                return []
            return self._give_up(size)
        if again[1] != found[1] if found[2] else not again[1].startswith(found[1]):
            another = bool(self._format.trigger) and held.startswith(self._format.trigger, end)
            return self._give_up(end if another else size)
        self._broken_off, self._named = held[:end], again[1]
        self._in_fence = held.startswith(FENCE) and not again[0].startswith(FENCE)
        self._held, self._state = held[end:], "call"
        return []

    def _in_code(self, ended: bool) -> list[Piece]:
        held = self._held
        if (at := held.find(FENCE)) >= 0:
            return self._give_up(at + len(FENCE))
        kept = 0 if ended else overlap(held, FENCE)
        self._held = held[len(held) - kept :]
        return self._text(held[: len(held) - kept])

    def _called(self, name: str, arguments: str) -> list[Piece]:
        if name == self._named:
            self._broken_off = ""
        pieces = self._text("")
        call = ToolCall(f"{self._prefix}{len(self._found)}", name, arguments)
        self._found.append(call)
        return [*pieces, CallPiece(len(self._found) - 1, call.id, name, arguments)]

    def _in_tag(self, ended: bool) -> list[Piece]:
        """Read the closing tag of a loose call, if it has one."""
        rest = self._held.lstrip()
        if self._doubled and rest:
            rest, self._doubled = rest.removeprefix("}").lstrip(), False
            self._held = rest
        end = FENCE if self._in_fence else "</"
        if tag := re.match(FENCE if self._in_fence else r"</[^>]*>", rest):
            self._held, self._state, self._in_fence = rest[tag.end() :], "text", False
        elif ended or (rest and not end.startswith(rest[: len(end)])):
            self._state, self._in_fence = "text", False
        return []

    def _give_up(self, size: int) -> list[Piece]:
        """Return the first `size` characters as text: they are no call."""
        text, self._held, self._state = self._held[:size], self._held[size:], "text"
        return self._text(text)

    def _text(self, text: str) -> list[Piece]:
        """Return text, with a call before it that broke off and was not written again."""
        text, self._broken_off = self._broken_off + text, ""
        self._blank = self._blank and not text.strip()
        return [text] if text else []

    def _calls_in(self, value: Any) -> list[tuple[str, str]]:
        """Return name and arguments of the calls in a JSON value; empty if it is something else."""
        if isinstance(value, list):
            found = [self._calls_in(one) for one in value]
            return [call for one in found for call in one] if all(found) else []
        if not isinstance(value, dict) or not isinstance(name := value.get("name"), str):
            return []
        if name not in self._names:
            return []
        # A tool's own definition has `parameters` as well.
        named = "parameters" if "parameters" in self._format.middle else "arguments"
        arguments = value.get(named)
        if arguments is None and named in value:
            arguments = {}
        if isinstance(arguments, str):
            try:
                arguments = FINITE_JSON.decode(arguments)
            except (ValueError, RecursionError):
                return []
        if not isinstance(arguments, dict):
            return []
        if name in self._strict and not fits(arguments, self._strict[name]):
            return []
        return [(name, dumped(arguments))]


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
