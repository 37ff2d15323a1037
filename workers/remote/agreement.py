"""Whether a server's text is that of the ids beside it.

The text may lag behind (half a character, or what may begin a stop string, is held) and may lack
control tokens and what a stop string cut; decoders of servers also differ in white space. So the
text without all that must be the beginning of what the ids spell.
"""

from __future__ import annotations

import codecs
import re
from functools import cached_property
from itertools import takewhile
from operator import eq

from workers.remote.errors import Foreign, Gap
from workers.text.tokenizer import Tokenizer

_BLANK = re.compile(r"[\s\ufffd]+")


class Agreement:
    """One stream's ids and texts, compared as they come.

    `unfinished_bytes` are those of a character that the prompt left unfinished: how a server shows
    such a character is not known, so then nothing is compared.
    """

    def __init__(self, tokenizer: Tokenizer, unfinished_bytes: bytes = b"") -> None:
        self._tokenizer, self._blind = tokenizer, bool(unfinished_bytes)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._spelled = self._shown = ""  # what the other side lacks
        self._ended = False  # by the last token

    def made(self, token: int) -> None:
        """Take a token of the server's."""
        self._ended = token in self._tokenizer.ends
        if token not in self._tokenizer.controls:
            piece = self._decoder.decode(self._tokenizer.pieces[token])
            self._spelled += _BLANK.sub("", piece)

    def shown(self, text: str) -> None:
        """Take the text of a chunk, whose tokens are taken.

        Raises:
            Gap: there is text without ids.
            Foreign: the ids spell another text.
        """
        if self._blind or not text:
            return
        self._shown += _BLANK.sub("", text)
        while self._shown:
            same = _same(self._spelled, self._shown)
            self._spelled, self._shown = self._spelled[same:], self._shown[same:]
            control = next(filter(self._shown.startswith, self._controls), "")
            if not (same or control):
                break
            self._shown = self._shown[len(control) :]
        if not self._shown or any(one.startswith(self._shown) for one in self._controls):
            return
        if not self._spelled and not self._ended:
            raise Gap("ids")
        raise Foreign(
            "the tokenizer is not the served model's: the server's ids of tokens spell another "
            "text than the one that it sends beside them; name the served model's as `tokenizer`"
        )

    @cached_property
    def _controls(self) -> list[str]:
        """How controls are spelled, which a server may show or hide."""
        pieces, controls = self._tokenizer.pieces, self._tokenizer.controls
        texts = (pieces[i].decode("utf-8", "replace") for i in sorted(controls))
        return [text for text in (_BLANK.sub("", one) for one in texts) if text]


def _same(one: str, other: str) -> int:
    """How many characters both begin with."""
    return len(list(takewhile(bool, map(eq, one, other))))
