"""Turns tokens into text as they are made: whole characters, delimiters, stop strings.

Tokens of byte-level vocabularies may end inside a character, and delimiters and stop strings may
span tokens. A delta always holds whole tokens and whole characters, and no text that a stop string
may still cut off.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence

from orchestrator.types import Finish
from orchestrator.worker import Delta
from workers.text.ends import Ends


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
        self._pieces, self._encode, self._ends = pieces, encode, ends or Ends()
        self._decoder = _decoder(unfinished_bytes)
        self._texts: list[str] = []  # what each token adds to the text
        self._borders = [(0, 0)]  # (tokens, characters) at which both are whole
        self._sent = 0  # tokens given out
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
        found = self._ends.feed(new, len(self.tokens))
        whole = not self._decoder.getstate()[0]
        if whole:
            self._borders.append((len(self.tokens), self._ends.length))
        if found is not None:
            _, at, finish = found
            self._cut(at)
            return finish
        self._ending = self._ending or self._ends.step_end.feed(new) is not None
        return "until" if self._ending and whole else None

    def take(self) -> Delta | None:
        """Return what has become final since the last delta, if anything."""
        return self._give(self._ends.length - self._ends.held)

    @property
    def given(self) -> Delta:
        """All that was given out so far."""
        return self._delta(0, self._sent)

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
        return self._delta(sent, tokens)

    def _delta(self, begin: int, end: int) -> Delta:
        tokens, logprobs = self.tokens[begin:end], self.logprobs[begin:end]
        return Delta("".join(self._texts[begin:end]), tuple(tokens), tuple(logprobs))

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
