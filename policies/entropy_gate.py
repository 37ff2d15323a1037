"""GlimpRouter (arXiv 2601.05110): one token of the small model decides who writes the step.

Before each step the small model computes its first token: where the entropy of that token's
distribution is at most the threshold, it goes on and writes the step; above it the large model
does. Nothing is judged afterwards: the paper leaves errors to the large model's own later steps.

One call does both: a Generate with `max_entropy` ends before its first token where the small model
is uncertain, and is the whole step where it is not.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from pydantic import Field

from orchestrator.loop.actions import Accept, Generate, Reject, Script, Write
from orchestrator.types import Transcript
from policies.steps import Stepwise, attempt, blank, steps_written


class EntropyGate(Stepwise):
    """The small model writes the steps whose first token is certain, the large one the others."""

    calibrated: ClassVar[str | None] = "threshold"

    threshold: float = Field(
        default=1.0,
        ge=0,
        le=20,
        description="entropy (natural log) of a step's first token up to which the small model "
        "writes it",
    )
    first_n: int = Field(default=0, ge=0, description="first steps that the large model writes")

    def step(self, transcript: Transcript) -> Script[Transcript]:
        """The transcript with one more step, the small model's if it is sure of the first token."""
        if steps_written(transcript) >= self.first_n:
            glimpse = replace(self.criteria, max_entropy=self.threshold)
            draft = yield from attempt(Generate("small", transcript, glimpse))
            if draft is not None and draft.segment.finish != "doubt":
                if not blank(draft.segment):
                    return (yield from Accept(transcript, draft.segment))
                yield from Reject(draft.segment)
        return (yield from Write("large", transcript, self.criteria))
