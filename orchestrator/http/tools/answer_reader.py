"""A request's answer: what was thought, the text, and the calls of tools in it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Literal

from orchestrator.http.ask import Choice
from orchestrator.http.rendering import Stripped
from orchestrator.http.tools.call_reader import CallPiece, CallReader, Piece
from orchestrator.loop.accumulator import ResponseAccumulator
from orchestrator.loop.events import Event, TextDelta
from orchestrator.types import ToolCall

Phase = Literal["thought", "answer"]
_MOST_AT_END = 32  # calls at the end of a thought


class AnswerReader:
    """Reads a request's answer as it comes: text, stripped, and calls if there are tools.

    A thought that continues in the answer holds only text, so calls are held back while a thought
    may still end after them. `begun`: the answer continues a text of the request.
    """

    def __init__(
        self, choice: Choice, response: ResponseAccumulator, *, begun: bool = False
    ) -> None:
        self._choice, self._response, self._strip = choice, response, Stripped(begun=begun)
        self._reader: CallReader | None = None
        self._start = self._fed = 0  # characters: of a thought in the answer, and read so far
        self._waiting: list[Piece] = []

    def read(self, events: Sequence[Event]) -> Iterator[tuple[Phase, Piece]]:
        """Yield the pieces of the thought and the answer that are certain after these events."""
        texts = [event for event in events if isinstance(event, TextDelta)]
        for phase, group in groupby(texts, key=lambda text: text.phase):
            text = "".join(one.text for one in group)
            for piece in [text] if phase == "thought" else self._stripped(self._feed(text)):
                yield phase, piece

    def end(self) -> list[Piece]:
        return self._stripped([*self._feed(""), *self._rest()])

    def whole(self) -> list[Piece]:
        """Return the pieces of a finished answer, without what was still a thought in it."""
        self._start = self._fed = self._response.reply_start
        return [*self._stripped(self._feed(self._response.raw_answer)), *self.end()]

    @property
    def calls(self) -> Sequence[ToolCall]:
        return () if self._reader is None else self._reader.calls

    def _feed(self, text: str) -> list[Piece]:
        thought, start = "", self._response.reply_start
        pieces: list[Piece] = []
        if start > self._start:
            thought, text = text[: start - self._fed], text[start - self._fed :]
            pieces += [one for one in [*self._read(thought), *self._rest()] if isinstance(one, str)]
            self._reader, self._start = None, start
        self._fed += len(thought) + len(text)
        return pieces + self._read(text)

    def _read(self, text: str) -> list[Piece]:
        if self._reader is None:
            parallel = self._choice.ask.tools is None or self._choice.ask.tools.parallel
            self._reader = _call_reader(self._choice, self._response, parallel=parallel)
        if self._reader is None:
            return [text]
        pieces, self._waiting = [*self._waiting, *self._reader.feed(text)], []
        if self._response.thinks_on:
            calling = (i for i, piece in enumerate(pieces) if isinstance(piece, CallPiece))
            size = next(calling, len(pieces))
            pieces, self._waiting = pieces[:size], pieces[size:]
        return pieces

    def _rest(self) -> list[Piece]:
        pieces, self._waiting = self._waiting, []
        return pieces if self._reader is None else [*pieces, *self._reader.end()]

    def _stripped(self, pieces: Iterable[Piece]) -> list[Piece]:
        stripped = (self._strip.feed(one) if isinstance(one, str) else one for one in pieces)
        return [one for one in stripped if one != ""]


def _call_reader(
    choice: Choice, response: ResponseAccumulator, *, parallel: bool
) -> CallReader | None:
    """Return a reader of the answer's calls; None if there can be none."""
    calls, tools = response.calls, choice.ask.tools
    if calls is None or tools is None or not tools.names:
        return None
    prefix, schemas = f"call_{choice.trace_id}_", tools.schemas
    return CallReader(
        calls, tools.names, prefix, strict=tools.strict, parallel=parallel, schemas=schemas
    )


def calls_of(choice: Choice, response: ResponseAccumulator) -> Sequence[ToolCall]:
    """Return the calls of tools in a finished answer."""
    reader = AnswerReader(choice, response)
    reader.whole()
    return reader.calls


def calls_at_end(choice: Choice, response: ResponseAccumulator, thought: str) -> str:
    """Return the text of the complete calls at the end of a thought; empty if there are none."""
    text = thought.rstrip()
    if response.calls is None or _call_reader(choice, response, parallel=True) is None:
        return ""
    mark = re.escape(response.calls.trigger) or r"^(?=\{)"
    for found in [*re.finditer(mark, text, re.MULTILINE)][-_MOST_AT_END:]:
        written, reader = text[found.start() :], _call_reader(choice, response, parallel=True)
        assert reader is not None
        pieces = [*reader.feed(written), *reader.end()]
        rest = "".join(piece for piece in pieces if isinstance(piece, str))
        if reader.calls and reader.are_whole and not rest.strip():
            return written
    return ""
