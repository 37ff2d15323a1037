"""Turns tokens into text as they are made: whole characters, delimiters, stop strings.

Tokens of byte-level vocabularies may end inside a character, and delimiters and stop strings may
span tokens. A delta always holds whole tokens and whole characters, and no text that a stop string
may still cut off.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from orchestrator.types import Finish
from orchestrator.worker import Delta
from workers.text.boundaries import StepEnd
from workers.text.second_close import SecondClose, begun_mark

Stop = tuple[str, Finish]
"""A string that ends a text and is cut off, and the finish to report."""


def held_back(text: str, stops: Sequence[Stop]) -> int:
    """Return the length of the longest end of a text that may begin a stop string."""
    return max((begun_mark(text, stop) for stop, _ in stops), default=0)


@dataclass(frozen=True, slots=True)
class Ends:
    """What ends a text.

    Attributes:
        step_end: finds the delimiter that ends the text and is kept.
        stops: strings that end it and are cut off, each with the finish to report.
        begins_answer: whether the text begins an answer: the white space before it is not shown, so
            no stop string may begin in it.
        min_tokens: in the text of this many tokens, only a stop string that ends a thought may
            begin.
        second_close: finds the end of a thought in an answer, which is cut off as well.
    """

    step_end: StepEnd = field(default_factory=lambda: StepEnd(()))
    stops: Sequence[Stop] = ()
    begins_answer: bool = False
    min_tokens: int = 0
    second_close: SecondClose | None = None

    def held(self, text: str) -> int:
        """Return the length of the longest end of a text that may begin a cut-off string."""
        held = held_back(text, self.stops)
        return held if self.second_close is None else max(held, self.second_close.held)

    def closed_at(self) -> int | None:
        """Return where the marker of a second close begins, once nothing more comes."""
        found = None if self.second_close is None else self.second_close.end()
        return None if found is None else found[0]


class Detokenizer:
    """One generation's text.

    Args:
        pieces: bytes of each token id.
        encode: encodes the rest of a token that a stop string cuts.
        unfinished_bytes: bytes of a character that the text before this one left unfinished.
    """

    def __init__(
        self,
        pieces: Sequence[bytes],
        encode: Callable[[str], tuple[int, ...]],
        ends: Ends | None = None,
        unfinished_bytes: bytes = b"",
    ) -> None:
        self._ends = ends = ends or Ends()
        self._pieces, self._encode, self._min_tokens = pieces, encode, ends.min_tokens
        self._stops = tuple(stop for stop in ends.stops if stop[0])
        self._longest = max((len(stop) for stop, _ in self._stops), default=0)
        self._decoder = _decoder(unfinished_bytes)
        self._texts: list[str] = []  # what each token adds to the text
        self._length, self._tail = 0, ""  # of the text; its end, in which a stop may begin
        self._borders = [(0, 0)]  # (tokens, characters) at which both are whole
        self._sent = 0  # tokens given out
        self._blank = ends.begins_answer  # whether an answer is only white space so far
        self._begin = self._late = 0  # ends of that white space and of the first `min_tokens`
        self._ending = False  # a delimiter was seen, but its token ends inside a character
        self.cut_at: int | None = None
        """The first token, if any, that was encoded again because a stop string cut its text."""
        self.tokens: list[int] = []
        self.logprobs: list[float] = []

    @property
    def text(self) -> str:
        return "".join(self._texts)

    @property
    def lengths(self) -> tuple[int, ...]:
        """The characters that each token adds to the text."""
        return tuple(map(len, self._texts))

    def push(self, token: int, logprob: float, *, markup: bool = False) -> Finish | None:
        """Append a token, which adds no text if it is `markup`; return why the text ends with it,
        if it does."""
        self.tokens.append(token)
        self.logprobs.append(logprob)
        new = "" if markup else self._decoder.decode(self._pieces[token])
        self._texts.append(new)
        start, window = self._length - len(self._tail), self._tail + new
        self._length += len(new)
        whole = not self._decoder.getstate()[0]
        if whole:
            self._borders.append((len(self.tokens), self._length))
        if self._blank:
            shown = new.lstrip()
            self._blank, self._begin = not shown, self._length - len(shown)
        if len(self.tokens) <= self._min_tokens:
            self._late = self._length
        matches = [
            (at + len(stop), at, finish)
            for stop, finish in self._stops
            if (at := window.find(stop, max(0, self._first_of(finish) - start))) >= 0
        ]
        second = self._ends.second_close
        if second is not None and (again := second.feed(new)) is not None:
            begin, end = again
            matches.append((end - start, begin - start, "think_end"))
        if matches:
            _, at, finish = min(matches)  # the one that ends first
            self._cut(start + at)
            return finish
        self._tail = window[max(0, len(window) - self._longest + 1) :]
        self._ending = self._ending or self._ends.step_end.feed(new) is not None
        return "until" if self._ending and whole else None

    def _first_of(self, finish: Finish) -> int:
        """Return the first character at which a stop string with this finish may begin."""
        return self._begin if finish == "think_end" else max(self._begin, self._late)

    def take(self) -> Delta | None:
        """Return what has become final since the last delta, if anything."""
        return self._give(self._length - self._ends.held(self._tail))

    @property
    def given(self) -> Delta:
        """All that was given out so far."""
        sent = self._sent
        return Delta(
            "".join(self._texts[:sent]), tuple(self.tokens[:sent]), tuple(self.logprobs[:sent])
        )

    def closed(self) -> bool:
        """Cut off a second close's marker at the end; return whether there is one."""
        at = self._ends.closed_at()
        if at is not None:
            self._cut(at)
        return at is not None

    def end(self) -> Delta | None:
        """Return the rest, once nothing more comes; drop tokens of an unfinished character."""
        tokens, characters = self._borders[-1]
        del self.tokens[tokens:], self.logprobs[tokens:], self._texts[tokens:]
        return self._give(characters)

    def _give(self, final: int) -> Delta | None:
        tokens = next(tokens for tokens, end in reversed(self._borders) if end <= final)
        sent = self._sent
        if tokens <= sent:
            return None
        self._sent = tokens
        return Delta(
            "".join(self._texts[sent:tokens]),
            tuple(self.tokens[sent:tokens]),
            tuple(self.logprobs[sent:tokens]),
        )

    def _cut(self, at: int) -> None:
        """End the text before character `at`; encode the rest of a token there again."""
        tokens, characters = next(b for b in reversed(self._borders) if b[1] <= at)
        text = "".join(self._texts[tokens:])[: at - characters]
        rest = self._encode(text) if text else ()
        self.cut_at = tokens
        logprob = self.logprobs[min(tokens, len(self.logprobs) - 1)]
        self.tokens[tokens:] = rest
        self.logprobs[tokens:] = [logprob] * len(rest)
        self._texts[tokens:] = [text, *[""] * (len(rest) - 1)] if rest else []
        self._borders = [b for b in self._borders if b[0] <= tokens]
        if rest:
            self._borders.append((len(self.tokens), at))


def token_texts(
    pieces: Sequence[bytes],
    tokens: Sequence[int],
    choices: Sequence[Sequence[int]],
    unfinished_bytes: bytes = b"",
) -> tuple[list[str], list[list[str]]]:
    """Return the text that each of k tokens adds, and that each choice at k + 1 places would add.

    `unfinished_bytes` are those of an unfinished character before them.
    """
    decoder = _decoder(unfinished_bytes)
    added: list[str] = []
    instead: list[list[str]] = []
    for place, here in enumerate(choices):
        state, texts = decoder.getstate(), list[str]()
        for choice in here:
            texts.append(decoder.decode(pieces[choice]))
            decoder.setstate(state)
        instead.append(texts)
        if place < len(tokens):
            added.append(decoder.decode(pieces[tokens[place]]))
    return added, instead


def unfinished(data: bytes) -> bytes:
    """Return the bytes of an unfinished character at the end of `data`, if there is one."""
    return _decoder(data[-3:]).getstate()[0]


def _decoder(unfinished_bytes: bytes) -> codecs.IncrementalDecoder:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(unfinished_bytes)
    return decoder
