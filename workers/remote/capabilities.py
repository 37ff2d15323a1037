"""What a server can do: its dialect, what the probe found, and what its streams lack of that."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from orchestrator.types import Sampling
from workers.remote.dialects.openai import OPENAI, OpenAI
from workers.remote.request_builder import PromptKind
from workers.text.continuation import Continuation
from workers.text.tokenizer import Tokenizer

Missing = Literal["ids", "logprobs"] | None
_WORSE: tuple[Missing, ...] = (None, "logprobs", "ids")


@dataclass(frozen=True, slots=True)
class ServerCapabilities:
    """What a server can do, as its answers to the probe show.

    Attributes:
        prompt: token ids or a text at `/completions`, or chat messages.
        dialect: how requests are written and answers read.
        top: log-probabilities that it returns at each position.
        scores: whether it returns log-probabilities of a prompt.
        lookups: whether it draws one of the tokens that a request allows, and returns its
            log-probability among all tokens.
        min_tokens: whether it reads this field, and lets no text end before.
        missing: what its streams lack at some tokens, although whole answers have it:
            log-probabilities, or ids (and with them log-probabilities). Examples are llama.cpp with
            a draft model, and streams through a proxy.
        samples: whether a temperature changes its texts.
        forms: whether it constrains an answer to a JSON schema.
        extras: whether it accepts fields that are not OpenAI's, even if it ignores them.
        stops: for a server without ids: whether it stops at stop strings, and shows the marker that
            ends a thought or stops there. True unless the probe shows otherwise.
    """

    prompt: PromptKind
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
        """Return the request fields besides the prompt: tokens, sampling, log-probabilities."""
        fields = {"model": model, "max_tokens": max(1, tokens)}
        fields |= self.dialect.sampling_fields(sampling)
        shown = min(top, self.top)
        return fields | self.dialect.logprob_fields(shown, chat=self.prompt == "chat")

    def stop_fields(
        self, text: Continuation, tokenizer: Tokenizer, *, steps: bool = True
    ) -> dict[str, Any]:
        """Return the fields that stop a generation where its text ends; without `steps`, not at
        the delimiters of steps."""
        if self.reads_ids:
            return self.dialect.stop_fields(text, tokenizer, steps=steps)
        return self.dialect.marker_fields(tokenizer, ending=bool(text.closing), extras=self.extras)

    def lacking(self, what: Missing) -> ServerCapabilities:
        """Return the capabilities without `what`. Without ids, the end of a thought is seen too
        late to hold it back, so `min_tokens` goes too."""
        missing = max(self.missing, what, key=_WORSE.index)
        least = self.min_tokens and missing != "ids"
        return replace(self, missing=missing, min_tokens=least)
