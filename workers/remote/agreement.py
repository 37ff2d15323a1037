"""Checks that a server's text is that of the ids beside it.

The text may come later than the ids (servers hold back half characters and possible stop strings),
and may lack control tokens and text that a stop string cut. Decoders also differ in white space. So
without all these, the text must be a prefix of what the ids spell.
"""

from __future__ import annotations

import codecs
import re
from functools import cached_property

from workers.remote.errors import Foreign, Gap
from workers.text.tokenizer import Tokenizer

_BLANK = re.compile(r"[\s\ufffd]+")


class Agreement:
    """One stream's ids and texts, compared as they come.

    If the prompt ends inside a character (`unfinished_bytes`), nothing is compared: servers show
    such a character in different ways.
    """

    def __init__(self, tokenizer: Tokenizer, unfinished_bytes: bytes = b"") -> None:
        self._tokenizer, self._blind = tokenizer, bool(unfinished_bytes)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._spelled = self._shown = ""  # what the other one still lacks
        self._ended = False  # whether the last token ends a text

    def made(self, token: int) -> None:
        """Take an id."""
        self._ended = token in self._tokenizer.ends
        if token not in self._tokenizer.controls:
            piece = self._decoder.decode(self._tokenizer.pieces[token])
            self._spelled += _BLANK.sub("", piece)

    def shown(self, text: str) -> None:
        """Take a chunk's text, after its ids.

        Raises:
            Gap: there is text without ids.
            Foreign: the ids spell another text.
        """
        if self._blind or not text:
            return
        shown = self._shown + _BLANK.sub("", text)
        spelled, at, same = self._spelled, 0, 0
        while at < len(shown):
            if len(shown) - at < self._longest and shown[at:] in self._beginnings:
                break  # the next text shows whether it is a control
            control = self._control.match(shown, at)
            if control and not spelled.startswith(control[0], same):
                at = control.end()
            elif spelled[same : same + 1] == shown[at]:
                at, same = at + 1, same + 1
            else:
                break
        self._spelled, self._shown = spelled[same:], shown[at:]
        if not self._shown or self._shown in self._beginnings:
            return
        if not self._spelled and not self._ended:
            raise Gap("ids")
        raise Foreign(
            "the tokenizer is not the served model's: the server's token ids spell another text "
            "than the one it sends; name the served model's as `tokenizer`"
        )

    @cached_property
    def _controls(self) -> list[str]:
        """The texts of control tokens, which a server may show or hide; the longest first."""
        pieces, controls = self._tokenizer.pieces, self._tokenizer.controls
        texts = {_BLANK.sub("", pieces[i].decode("utf-8", "replace")) for i in controls}
        return sorted(texts - {""}, key=len, reverse=True)

    @cached_property
    def _control(self) -> re.Pattern[str]:
        return re.compile("|".join(map(re.escape, self._controls)) or "(?!)")

    @cached_property
    def _beginnings(self) -> set[str]:
        return {one[:size] for one in self._controls for size in range(1, len(one))}

    @cached_property
    def _longest(self) -> int:
        return max(map(len, self._controls), default=0)
