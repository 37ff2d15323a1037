"""The seam between a worker and what runs its model: the built-in engine, vLLM, or a server.

A backend knows token ids, log-probabilities and passes. What a call means is decided above it, in
`workers.worker`: the prompt, the checks, stops and step ends, labels, verifications.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass
from typing import Final, Protocol

from orchestrator.types import Finish, Generation, LabelQuery, Sampling
from orchestrator.worker import Call, Delta
from workers.text.continuation import Continuation
from workers.text.prompt import PromptRenderer
from workers.text.verification import Scores

GOES_ON: Final[frozenset[Finish]] = frozenset({"until", "doubt", "length"})
"""Ends of a text after which the model is often asked to continue."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the model reads for a call.

    Attributes:
        ids: those of the call's transcript, then those of a side conversation or of a draft.
        kept: how many of them may begin the prompt of a later call.
        query: the side conversation, if there is one.
    """

    call: Call
    ids: list[int]
    kept: int
    query: LabelQuery | None = None


@dataclass(frozen=True, slots=True)
class Decoding:
    """How to continue a prompt.

    Attributes:
        text: takes each token as soon as it is made, and says with which the text ends.
        stream: whether the caller wants the text as it is made.
    """

    text: Continuation
    sampling: Sampling
    stream: bool


@dataclass(frozen=True, slots=True)
class Scoring:
    """What to find out about a prompt.

    A place is a position of a token; the last one follows the prompt.

    Attributes:
        part: the places of the ids to score; None: none.
        ends: ids of which the likelihood at the place after `part` is wanted, taken together.
        labels: ids of which the log-probability after the prompt is wanted.
        sampling: how the model's own choices are drawn, at the places of `part` and after it;
            None: none is wanted.
        top: how many of the likeliest ids are wanted beside each choice.
    """

    part: range | None
    ends: frozenset[int]
    labels: tuple[int, ...] = ()
    sampling: Sampling | None = None
    top: int = 0


class Backend(Protocol):
    """What runs one model.

    Attributes:
        prompts: those of the model.
        ends: the ids that end any text of the model.
        sampling: the checkpoint's own, for requests that say nothing of it.
    """

    prompts: PromptRenderer
    ends: frozenset[int]
    sampling: Sampling

    @property
    def context(self) -> int | None:
        """The longest text, in tokens; None: not known."""
        ...

    @property
    def methods(self) -> Collection[str]:
        """The token-level methods that a call may name."""
        ...

    async def ready(self) -> None:
        """Wait until the backend knows what it can do.

        Raises:
            Unsupported: it can do nothing for us.
            WorkerError: it cannot be reached.
        """
        ...

    def decode(self, prompt: Prompt, wanted: Decoding) -> AsyncIterator[Delta | Generation]:
        """Continue the prompt until `wanted.text` ends: deltas if streamed, then one Generation
        without its time and its formats. With `max_tokens` 0 the prompt is only read.

        A sampled token depends on the seed and its position, and on nothing else.
        """
        ...

    async def score(self, prompt: Prompt, wanted: Scoring) -> Scores:
        """Find out about the prompt, in as few passes as possible.

        Raises:
            Unsupported: names what the backend does not give.
        """
        ...


class LocalBackend(Backend, Protocol):
    """A backend whose engine this process runs."""

    @property
    def alive(self) -> bool:
        """Whether calls can still be answered."""
        ...

    def stats(self) -> dict[str, int]:
        """Counters since the start and gauges of now."""
        ...

    def reset_prefix_cache(self) -> None:
        """Forget the prefixes of all calls that have ended, before any call that comes after."""
        ...

    def close(self) -> None:
        """Stop the engine; calls in progress fail with `WorkerUnavailable`."""
        ...
