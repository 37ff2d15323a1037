"""The interface between a worker and what runs its model: the built-in engine, vLLM, or a server.

A backend handles token ids, log-probabilities and passes; `workers.worker` above it prompts,
checks, stops, labels and verifications.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection
from dataclasses import dataclass
from typing import Protocol

from orchestrator.types import Generation, LabelQuery, Sampling
from orchestrator.worker import Call, Delta
from workers.text.continuation import Continuation
from workers.text.prompt import PromptRenderer
from workers.text.verification import Scores


@dataclass(frozen=True, slots=True)
class Prompt:
    """The token ids that the model reads for a call."""

    call: Call
    ids: list[int]  # the transcript's, then those of a side conversation or of a draft
    kept: int  # length of the prefix that a later call may share
    query: LabelQuery | None = None


@dataclass(frozen=True, slots=True)
class Decoding:
    """How to continue a prompt; `text` takes each token and returns why the text ends with it."""

    text: Continuation
    sampling: Sampling
    stream: bool


@dataclass(frozen=True, slots=True)
class Scoring:
    """Which scores of a prompt to compute. A place is a token's position; the last follows it."""

    part: range | None  # the places of the ids to score
    ends: frozenset[int]  # their joint likelihood is wanted at the place after `part`
    labels: tuple[int, ...] = ()  # their log-probabilities are wanted after the prompt
    sampling: Sampling | None = None  # chooses at each place of `part` and at the one after it
    top: int = 0  # how many of the likeliest ids to return with each choice


class Backend(Protocol):
    """What runs one model."""

    prompts: PromptRenderer
    ends: frozenset[int]  # the ids that end any text of the model
    sampling: Sampling  # the checkpoint's defaults, for requests that set none

    @property
    def context(self) -> int | None:
        """The context length in tokens; None if unknown."""
        ...

    @property
    def methods(self) -> Collection[str]:
        """The speculation methods that a call may name."""
        ...

    async def ready(self) -> None:
        """Wait until the backend's capabilities are known.

        Raises:
            Unsupported: it cannot continue a text.
            WorkerError: it cannot be reached.
        """
        ...

    def decode(self, prompt: Prompt, wanted: Decoding) -> AsyncGenerator[Delta | Generation, None]:
        """Continue the prompt until `wanted.text` ends: yield deltas if streamed, then a
        Generation, to which the worker adds its time and formats. If the text continues one
        that broke off, the prompt ends with that, and the segment begins with it. With
        `max_tokens` 0, only read the prompt. The random number that draws a token depends on seed
        and position alone.
        """
        ...

    async def score(self, prompt: Prompt, wanted: Scoring) -> Scores:
        """Compute the scores, in as few passes as possible.

        Raises:
            Unsupported: the backend cannot compute one of them, which the message names.
        """
        ...

    async def end_ahead(self) -> None:
        """End what still runs for texts whose calls have ended."""
        ...


class LocalBackend(Backend, Protocol):
    """A backend whose engine this process runs."""

    @property
    def alive(self) -> bool:
        """Whether calls can still be answered."""
        ...

    def stats(self) -> dict[str, int]:
        """Return counters since the start, and current gauges."""
        ...

    def close(self) -> None:
        """Stop the engine; calls in progress fail with `WorkerUnavailable`."""
        ...
