"""Turns text into tokens, for servers that return no ids.

The counterpart of `workers.text.detokenizer.Detokenizer`. It encodes each word once the next one
begins. Tokenizers split a text there first, so the ids are those of the whole text, however it was
cut into chunks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from orchestrator.types import Finish
from orchestrator.worker import Delta
from workers.text.detokenizer import Ends

# A word with the space before it and the newlines after it (tokenizers join those to punctuation),
# once something follows; or 64 characters of a longer word.
_WORD = re.compile(r"\s*(?:\S{64}|\S++(?:\s*[\r\n])?+(?=[^\S\r\n]*\S))")


class Retokenizer:
    """One generation's text; of `ends`, `min_tokens` is ignored."""

    def __init__(self, encode: Callable[[str], tuple[int, ...]], ends: Ends | None = None) -> None:
        self._ends = ends = ends or Ends()
        self._encode = encode
        self._stops = tuple(stop for stop in ends.stops if stop[0])
        self._given: list[str] = []  # words that were encoded
        self._rest = ""  # the text after them
        self.tokens: list[int] = []

    @property
    def text(self) -> str:
        return "".join(self._given) + self._rest

    def push(self, text: str) -> Finish | None:
        """Append text; return why the generation ends in it, if it does."""
        before = len(self._rest)
        self._rest += text
        begin = 0
        # White space before an answer is encoded with the first word.
        if self._ends.begins_answer and not self._given:
            begin = len(self._rest) - len(self._rest.lstrip())
        ends: list[tuple[int, int, Finish]] = []  # (where seen, where to cut, why)
        for stop, finish in self._stops:
            if (at := self._rest.find(stop, begin)) >= 0:
                ends.append((at + len(stop), at, finish))
        if (end := self._ends.step_end.feed(text)) is not None:
            ends.append((before + end, before + end, "until"))
        second = self._ends.second_close
        if second is not None and (again := second.feed(text)) is not None:
            start, end = again
            ends.append((end - self._encoded, start - self._encoded, "think_end"))
        if not ends:
            return None
        _, cut, finish = min(ends)
        self._rest = self._rest[:cut]
        return finish

    def take(self) -> Delta | None:
        """Return the words that have become whole since the last delta, if any."""
        final = len(self._rest) - self._ends.held(self._rest)
        words, done = list[str](), 0
        while (word := _WORD.match(self._rest, done)) and word.end() <= final:
            words.append(word[0])
            done = word.end()
        self._rest = self._rest[done:]
        return self._give(words)

    def end(self) -> Delta | None:
        """Return the rest, once nothing more comes."""
        rest, self._rest = self._rest, ""
        return self._give([rest] if rest else [])

    @property
    def given(self) -> Delta:
        """All that was given out so far."""
        return Delta("".join(self._given), tuple(self.tokens))

    def closed(self) -> bool:
        """Cut off a second close's marker at the end; return whether there is one."""
        at = self._ends.closed_at()
        if at is not None:
            self._rest = self._rest[: at - self._encoded]
        return at is not None

    @property
    def _encoded(self) -> int:
        """The number of characters that were encoded."""
        return sum(map(len, self._given))

    def _give(self, words: Sequence[str]) -> Delta | None:
        if not words:
            return None
        ids = tuple(i for word in words for i in self._encode(word))
        self._given += words
        self.tokens.extend(ids)
        return Delta("".join(words), ids)
