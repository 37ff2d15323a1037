"""The events of a running request."""

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
    """A step is complete: accepted, or a draft that was discarded.

    `provenance` is that of its tokens, if it is known and tokens were drafted.
    """

    step: Step
    provenance: Provenance | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class ActionCompleted:
    """One action and its result.

    `answer` is an exception if the worker failed. For Write it is the Generation (from which the
    policy's transcript follows), for Accept, Reject and Close it is None. `failure` is the error
    that interrupted a Write whose text was shown; that text is its answer.
    """

    action: Action[Any]
    answer: Any
    ms: float
    failure: WorkerError | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class PromptsRead:
    """All workers have read the prompt, or failed: the results of the prefills, each an event."""

    results: Sequence[ActionCompleted]


@dataclass(frozen=True, slots=True)
class Metrics:
    """One request's totals. Tokens are generated tokens, drafts and rewrites included.

    `acceptance_rate`: accepted drafts over judged drafts; None if there were none.
    `large_passes`: forward passes of the large worker's model that served this request.
    `adopted_tokens`: generated tokens that a model had run ahead; dropped ones are in no count.
    """

    small_tokens: int = 0
    large_tokens: int = 0
    discarded_tokens: int = 0
    judge_calls: int = 0
    large_passes: int = 0
    adopted_tokens: int = 0
    prompt_tokens: int = 0
    prefill_tokens: int = 0  # prompt tokens computed, over all calls and workers
    cached_tokens: int = 0  # prompt tokens found in a cache, over all calls and workers
    acceptance_rate: float | None = None
    ms: dict[str, float] = field(
        default_factory=lambda: {"small": 0.0, "large": 0.0, "classify": 0.0, "total": 0.0}
    )


@dataclass(frozen=True, slots=True)
class RequestCompleted:
    """The last event of a request that ended without an error."""

    transcript: Transcript
    steps: tuple[Step, ...]
    metrics: Metrics


Event = TextDelta | StepCompleted | ActionCompleted | RequestCompleted
