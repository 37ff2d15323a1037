"""From text to tokens, for servers that return no ids.

The counterpart of `workers.text.detokenizer.Detokenizer`. Words are encoded one by one, as soon as
the next one begins: that is where tokenizers split a text before anything else, so the ids are
those of the whole text, however it was cut into chunks on its way.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from orchestrator.types import Finish
from orchestrator.worker import Delta
from workers.text.detokenizer import Ends

# A word, the space before it and the newlines after it (tokenizers take those together with
# punctuation), once something follows; or a word too long to wait for its end.
_WORD = re.compile(r"\s*(?:\S{64}|\S++(?:\s*[\r\n])?+(?=[^\S\r\n]*\S))")


class Retokenizer:
    """One generation's text.

    Args:
        encode: ids of a plain text.
        ends: what ends the text, but for `min_tokens`.
    """

    def __init__(self, encode: Callable[[str], tuple[int, ...]], ends: Ends | None = None) -> None:
        self._ends = ends = ends or Ends()
        self._encode = encode
        self._stops = tuple(stop for stop in ends.stops if stop[0])
        self._given: list[str] = []  # what was encoded,
        self._rest = ""  # and what follows it
        self.tokens: list[int] = []

    @property
    def text(self) -> str:
        return "".join(self._given) + self._rest

    def push(self, text: str) -> Finish | None:
        """Append text; returns why it ends within it, if it does."""
        before = len(self._rest)
        self._rest += text
        begin = 0
        if (
            self._ends.begins_answer and not self._given
        ):  # white space is encoded with what follows it
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
        """The words that are whole since the last time, if any."""
        final = len(self._rest) - self._ends.held(self._rest)
        words, done = list[str](), 0
        while (word := _WORD.match(self._rest, done)) and word.end() <= final:
            words.append(word[0])
            done = word.end()
        self._rest = self._rest[done:]
        return self._give(words)

    def end(self) -> Delta | None:
        """The rest, once nothing more comes."""
        rest, self._rest = self._rest, ""
        return self._give([rest] if rest else [])

    @property
    def given(self) -> Delta:
        """All that was given so far."""
        return Delta("".join(self._given), tuple(self.tokens))

    def closed(self) -> bool:
        """Whether a thought ends with the text; its marker is cut off."""
        at = self._ends.closed_at()
        if at is not None:
            self._rest = self._rest[: at - self._encoded]
        return at is not None

    @property
    def _encoded(self) -> int:
        """Characters of the text that were encoded."""
        return sum(map(len, self._given))

    def _give(self, words: Sequence[str]) -> Delta | None:
        if not words:
            return None
        ids = tuple(i for word in words for i in self._encode(word))
        self._given += words
        self.tokens.extend(ids)
        return Delta("".join(words), ids)
