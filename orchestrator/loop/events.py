"""What a running request reports to the HTTP response, or to a recording."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from orchestrator.errors import WorkerError
from orchestrator.loop.actions import Action
from orchestrator.types import Author, Provenance, Step, Transcript


@dataclass(frozen=True, slots=True)
class TextDelta:
    """Accepted text, in order, and its number of tokens; only this ever reaches the client."""

    author: Author
    phase: Literal["thought", "answer"]
    text: str
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class StepCompleted:
    """A step is complete: accepted, or a draft that was thrown away.

    `provenance` is that of its tokens, if it is known and something was drafted for them.
    """

    step: Step
    provenance: Provenance | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class ActionCompleted:
    """One action and its result.

    `answer` is an exception if the worker failed. For Write it is the Generation (the transcript
    that the policy gets follows from it), for Accept, Reject and Close it is None. `failure` is
    what broke a Write off whose text was shown; that text is its answer.
    """

    action: Action[Any]
    answer: Any
    ms: float
    failure: WorkerError | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class PromptsRead:
    """All workers have read the prompt, or failed to: the results of the prefills, each an event of
    its own."""

    results: Sequence[ActionCompleted]


@dataclass(frozen=True, slots=True)
class Metrics:
    """One request's totals. Tokens are generated tokens, drafts and rewrites included.

    acceptance_rate: accepted drafts over judged drafts (None if nothing was judged).
    large_passes: forward passes of the large worker's model that served this request.
    """

    small_tokens: int = 0
    large_tokens: int = 0
    discarded_tokens: int = 0
    judge_calls: int = 0
    large_passes: int = 0
    prompt_tokens: int = 0
    prefill_tokens: int = 0  # prompt tokens computed, over all calls and workers
    cached_tokens: int = 0  # prompt tokens found in a cache, over all calls and workers
    acceptance_rate: float | None = None
    ms: dict[str, float] = field(
        default_factory=lambda: {"small": 0.0, "large": 0.0, "classify": 0.0, "total": 0.0}
    )


@dataclass(frozen=True, slots=True)
class RequestCompleted:
    """The last event of a request that ended properly."""

    transcript: Transcript
    steps: tuple[Step, ...]
    metrics: Metrics


Event = TextDelta | StepCompleted | ActionCompleted | RequestCompleted
