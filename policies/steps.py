"""Shared by the step-level policies: a chain made step by step, then the answer.

A step ends at a blank line, as in SpecReason (arXiv 2504.07891) and its successors. If a worker
fails, the large model writes the step; if that fails too, so does the request. The chain is the
thought; if the pair has none, the chain is the answer, and nothing follows it.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Field, StringConstraints

from orchestrator.errors import ContextLengthExceeded, Unsupported, WorkerError
from orchestrator.loop.actions import REST, A, Action, Generate, Script, WorkerName, Write
from orchestrator.loop.policy import Policy
from orchestrator.types import ENDED, Author, Segment, StopCriteria, Transcript

Delimiters: TypeAlias = Annotated[
    tuple[Annotated[str, StringConstraints(min_length=1, max_length=64)], ...],
    Field(min_length=1, max_length=8),
]
DELIMITER = "\n\n"
ANSWERERS: dict[str, tuple[WorkerName, ...]] = {"small": ("small", "large"), "large": ("large",)}
"""By `answer_by`: who writes the answer, and who does if it fails."""


class Stepwise(Policy):
    """Base of the policies that think step by step: steps until the chain ends, then `answer`.

    A subclass has a `step`, or a `solve` if its steps share state of one request.
    """

    step_tokens: int = Field(default=512, ge=1, description="cap on the tokens of one step")
    delimiters: Delimiters = Field(
        default=(DELIMITER,),
        description="the ends of a step, but not inside a code block, a formula or a table, nor "
        "after a colon",
    )
    answer_by: Literal["large", "small", "active"] = Field(
        default="large", description="who writes the answer; active: the author of the last step"
    )

    @property
    def criteria(self) -> StopCriteria:
        return StopCriteria(self.step_tokens, until=self.delimiters)

    def solve(self, transcript: Transcript) -> Script[None]:
        while transcript.is_open:
            transcript = yield from self.step(transcript)
        yield from self.answer(transcript)

    def step(self, transcript: Transcript) -> Script[Transcript]:
        """Add one more step."""
        raise NotImplementedError

    def answer(self, transcript: Transcript) -> Script[Transcript]:
        """Write the answer; if the small model fails, the large one writes it."""
        by = self.answer_by
        if by == "active":
            by = "small" if last_writer(transcript) == "small" else "large"
        return write_out(transcript, *ANSWERERS[by])


def write_out(transcript: Transcript, *names: WorkerName) -> Script[Transcript]:
    """Let the first worker write until the transcript is done; the next takes over if it fails.

    It may take several calls: one ends with the thought, or with its worker's failure after part of
    its text was streamed.
    """
    name, *others = names
    while not transcript.done:
        try:
            transcript = yield from Write(name, transcript, REST)
        except (WorkerError, ContextLengthExceeded):
            if not others:
                raise
            name, *others = others
    return transcript


def attempt(script: Action[A] | Script[A]) -> Script[A | None]:
    """Return the script's result; None if a worker failed, so that the caller can fall back.

    `Unsupported` is raised: this pair can never do it, which a fallback at every step would hide.
    """
    try:
        return (yield from script)
    except Unsupported:
        raise
    except (WorkerError, ContextLengthExceeded):
        return None


def drafted(
    name: WorkerName, transcript: Transcript, criteria: StopCriteria
) -> Script[Segment | None]:
    """Return a worker's draft; None if the worker failed or its context has no room left."""
    generation = yield from attempt(Generate(name, transcript, criteria))
    if generation is None:
        return None
    draft = generation.segment
    full = draft.finish == "length" and not (draft.tokens or generation.usage.generated)
    return None if full else draft


def ends(segment: Segment) -> bool:
    """Return whether the chain ends with this segment."""
    return segment.finish in (*ENDED, "stop")


def blank(segment: Segment) -> bool:
    """Return whether a step has no text and does not end the chain."""
    return not segment.text.strip() and not ends(segment)


def last_writer(transcript: Transcript) -> Author | None:
    """Return the author of the chain's last segment that a model wrote; None without one."""
    return next((one.author for one in reversed(transcript.chain) if one.author != "policy"), None)


def steps_written(transcript: Transcript) -> int:
    """Return the number of the chain's segments that models wrote."""
    return transcript.chain.fold(_count_written, 0)


def _count_written(count: int, segment: Segment) -> int:
    return count + (segment.author != "policy")


def logprobs_of(draft: Segment) -> tuple[float, ...]:
    """Return the log-probabilities of a draft's tokens.

    Raises:
        Unsupported: its worker gives none.
    """
    if draft.tokens and not draft.logprobs:
        raise Unsupported(
            "the small worker gives no log-probabilities, which this policy's signal needs"
        )
    return draft.logprobs
