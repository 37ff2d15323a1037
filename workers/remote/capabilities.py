"""What a server can do: its dialect, what the probe found, and what its streams lack of that.

Streams differ: one replica of several leaves something out, or only texts for which a draft model
has drafts. So a gap is mended in its own call. After two streams in a row with a gap, calls that
can go without ids begin without them, which saves a second request, until two streams have all.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from orchestrator.types import Sampling
from workers.remote.dialects.openai import OPENAI, OpenAI

Missing = Literal["ids", "logprobs"] | None
IN_A_ROW = 2
_WORSE: tuple[Missing, ...] = (None, "logprobs", "ids")


@dataclass(frozen=True, slots=True)
class ServerCapabilities:
    """What a server can do, as its answers to the probe show.

    prompt: what continues a text: token ids or a text at `/completions`, or chat messages.
    dialect: how it is asked and read.
    top: log-probabilities it gives at each position; 0 is none.
    scores: it gives log-probabilities of a prompt, by its dialect's way.
    lookups: it draws one of the tokens that a request allows, and gives its log-probability
        among all tokens.
    min_tokens: it lets no text end before this many tokens.
    missing: what its streams lack at some tokens although whole answers have it: log-probabilities,
        or ids (and with them log-probabilities), as llama.cpp's with a draft model and those that
        a proxy passes on.
    samples: it writes other texts at a temperature.
    forms: it holds an answer to a JSON schema.
    extras: it takes fields that are not OpenAI's, whether or not it reads them.
    stops: if its streams have no ids it stops at stop strings, and its text shows the marker
        that ends a thought, or it stops there; also if nothing shows the contrary.
    """

    prompt: Literal["ids", "text", "chat"]
    dialect: OpenAI = OPENAI
    top: int = 0
    scores: bool = False
    lookups: bool = False
    min_tokens: bool = False
    missing: Missing = None
    samples: bool = True
    forms: bool = False
    extras: bool = False
    stops: bool = True

    @property
    def reads_ids(self) -> bool:
        """Whether a stream's tokens are read from its ids; else its text is encoded again."""
        return self.dialect.returns_ids and self.missing != "ids"

    @property
    def reads_logprobs(self) -> bool:
        """Whether all tokens of a stream come with log-probabilities."""
        return self.reads_ids and self.top > 0 and self.missing is None

    @property
    def path(self) -> str:
        return "/chat/completions" if self.prompt == "chat" else "/completions"

    def request_fields(
        self, model: str, sampling: Sampling, tokens: int, top: int = 1
    ) -> dict[str, Any]:
        """The request fields besides the prompt: tokens, sampling, log-probabilities."""
        fields = {"model": model, "max_tokens": max(1, tokens)}
        fields |= self.dialect.sampling_fields(sampling)
        shown = min(top, self.top)
        return fields | self.dialect.logprob_fields(shown, chat=self.prompt == "chat")

    def lacking(self, what: Missing) -> ServerCapabilities:
        """The capabilities of a server whose streams lack that, too. Without ids the end of a
        thought is not seen before it is too late to hold it back."""
        missing = max(self.missing, what, key=_WORSE.index)
        least = self.min_tokens and missing != "ids"
        return replace(self, missing=missing, min_tokens=least)


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
