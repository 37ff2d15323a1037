"""What responses and messages share: an answer as blocks, one after the other.

A block is the thought, a text of the answer, or a call of a tool. A stream opens each, adds to it
and closes it; a whole answer is made of the same blocks.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Literal

from orchestrator.http.ask import Choice, Encoder
from orchestrator.http.body import Json
from orchestrator.http.tools.answer_reader import AnswerReader
from orchestrator.http.tools.call_reader import CallPiece, Piece
from orchestrator.loop.accumulator import ResponseAccumulator
from orchestrator.loop.events import Event

Kind = Literal["thought", "answer", "call"]
"""The content of a block."""


class BlockEncoder(Encoder):
    """Encodes an answer as blocks. A subclass writes the events of each, by `opened`, `added` and
    `closed`, and keeps the finished block in `blocks`.

    Attributes:
        open: the kind of the open block, if any.
        call: the first piece of the last call.
        text: what the open block holds so far.
        blocks: the finished blocks.
    """

    def __init__(
        self, choice: Choice, response: ResponseAccumulator, *, begun: bool = False
    ) -> None:
        super().__init__(choice, response)
        self._answer = AnswerReader(choice, response, begun=begun)
        self.open: Kind | None = None
        self.call: CallPiece | None = None
        self.text = ""
        self.blocks: list[Json] = []

    @abstractmethod
    def opened(self, kind: Kind) -> Iterator[bytes]:
        """Yield the events of a block that begins."""

    @abstractmethod
    def added(self, kind: Kind, text: str) -> Iterator[bytes]:
        """Yield the events of more text in the open block."""

    @abstractmethod
    def closed(self, kind: Kind, *, last: bool) -> Iterator[bytes]:
        """Add the open block to `blocks`; yield the events of its end. A cap may have cut the
        `last` one."""

    def more(self, events: Sequence[Event]) -> bytes:
        read = (self._piece(phase, piece) for phase, piece in self._answer.read(events))
        return b"".join(data for written in read for data in written)

    def read_whole(self) -> None:
        """Make the blocks of a finished answer."""
        b"".join(self._piece("thought", self.response.thought))
        for piece in self._answer.whole():
            b"".join(self._piece("answer", piece))
        self.read_end()

    def read_end(self) -> bytes:
        """Close the last block; there is always an answer or a call."""
        return b"".join(self._end())

    def _end(self) -> Iterator[bytes]:
        for piece in self._answer.end():
            yield from self._piece("answer", piece)
        only_thought = self.open == "thought" or not (self.open or self.blocks)
        yield from self._close(last=True)
        if only_thought:
            yield from self._begin("answer")
            yield from self._close(last=True)

    def _piece(self, kind: Kind, piece: Piece) -> Iterator[bytes]:
        if isinstance(piece, CallPiece):
            kind, text = "call", piece.arguments
            if piece.name is not None:
                yield from self._close()
                self.call = piece
                yield from self._begin(kind)
        else:
            text = piece
            if text and self.open != kind:
                yield from self._begin(kind)
        if text:
            self.text += text
            yield from self.added(kind, text)

    def _begin(self, kind: Kind) -> Iterator[bytes]:
        yield from self._close()
        self.open, self.text = kind, ""
        yield from self.opened(kind)

    def _close(self, *, last: bool = False) -> Iterator[bytes]:
        if self.open is not None:
            yield from self.closed(self.open, last=last)
            self.open = None
