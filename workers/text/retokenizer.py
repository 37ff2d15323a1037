"""Turns text into tokens, for servers that return no ids.

The counterpart of `workers.text.detokenizer.Detokenizer`. A word is encoded as soon as the
next one begins. Tokenizers split a text into words first, so the ids are those of the whole text,
whatever its chunks were; only very long words are cut.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from orchestrator.types import Finish
from orchestrator.worker import Delta
from workers.text.ends import Ends

# A word with the white space before it and the newlines after it (tokenizers join those with
# punctuation), once another word follows; or 64 characters of a long word.
_WORD = re.compile(r"\s*(?:\S{64}|\S++(?:\s*[\r\n])?+(?=[^\S\r\n]*\S))")


class Retokenizer:
    """One generation's text. `encode` returns the ids of a plain text."""

    def __init__(self, encode: Callable[[str], tuple[int, ...]], ends: Ends | None = None) -> None:
        self._encode, self._ends = encode, ends or Ends()
        self._given: list[str] = []  # words that were encoded
        self._rest = ""  # the text after them
        self.tokens: list[int] = []

    @property
    def text(self) -> str:
        return "".join(self._given) + self._rest

    def push(self, text: str) -> Finish | None:
        """Append text; return why the generation ends in it, if it does."""
        length = self._ends.length
        begin = length - len(self._rest)
        self._rest += text
        found = [self._ends.feed(text)]
        if (end := self._ends.step_end.feed(text)) is not None:
            found.append((length + end, length + end, "until"))
        if not (ends := [one for one in found if one is not None]):
            return None
        _, cut, finish = min(ends)
        self._rest = self._rest[: cut - begin]
        return finish

    def take(self) -> Delta | None:
        """Return the words completed since the last call, if any."""
        final = len(self._rest) - self._ends.held
        words, done = list[str](), 0
        while (word := _WORD.match(self._rest, done)) and word.end() <= final:
            words.append(word[0])
            done = word.end()
        self._rest = self._rest[done:]
        return self._give(words)

    def end(self) -> Delta | None:
        """Return the rest of the text when the generation has ended."""
        rest, self._rest = self._rest, ""
        return self._give([rest] if rest else [])

    @property
    def given(self) -> Delta:
        """All that was given out so far."""
        return Delta("".join(self._given), tuple(self.tokens))

    def closed(self) -> bool:
        """Return whether the text ends its thought; if so, cut the marker off."""
        at = self._ends.closed_at()
        if at is not None:
            self._rest = self._rest[: len(self._rest) - (self._ends.length - at)]
        return at is not None

    def _give(self, words: Sequence[str]) -> Delta | None:
        if not words:
            return None
        ids = tuple(i for word in words for i in self._encode(word))
        self._given += words
        self.tokens.extend(ids)
        return Delta("".join(words), ids)
