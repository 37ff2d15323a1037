"""What a server's streams lack of what its probe saw.

Streams differ: one replica of several leaves something out, or only texts for which a draft model
has drafts. So a gap is mended in its own call. After two streams in a row with a gap, calls that
can go without ids begin without them, which saves a second request, until two streams have all.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from workers.remote.protocol import ServerCapabilities

Missing = Literal["ids", "logprobs"] | None
IN_A_ROW = 2
_WORSE: tuple[Missing, ...] = (None, "logprobs", "ids")


def lacking(capabilities: ServerCapabilities, what: Missing) -> ServerCapabilities:
    """The capabilities of a server whose streams lack that, too. Without ids the end of a thought
    is not seen before it is too late to hold it back."""
    missing = max(capabilities.missing, what, key=_WORSE.index)
    least = capabilities.min_tokens and missing != "ids"
    return replace(capabilities, missing=missing, min_tokens=least)


class Gaps:
    """What a server's streams lack, by the last ones: `missing` changes after two that agree."""

    def __init__(self) -> None:
        self.missing: Missing = None
        self._other: Missing = None
        self._times = 0

    def seen(self, missing: Missing) -> bool:
        """Take what a stream lacked; returns whether `missing` changes by it."""
        if missing == self.missing:
            self._times = 0
            return False
        self._times = self._times + 1 if missing == self._other else 1
        self._other = missing
        if self._times < IN_A_ROW:
            return False
        self.missing, self._times = missing, 0
        return True
