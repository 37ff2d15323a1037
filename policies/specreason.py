"""SpecReason (arXiv 2504.07891): the small model drafts a step, the large one scores it.

Section 4.1: a step whose score reaches the threshold is accepted; otherwise the draft is rejected
and the large model writes the step from the same prefix, without having seen the draft. Section 4.2
adds the two parameters: the threshold, and the first n steps by the large model.
"""

from __future__ import annotations

from pydantic import Field

from orchestrator.loop.actions import Accept, Reject, Script, Write
from orchestrator.types import Segment, Transcript
from policies.judge import Judging
from policies.steps import drafted, steps_written


class SpecReason(Judging):
    """Draft by the small model, scored by the large one, rewritten below the threshold."""

    first_n: int = Field(default=0, ge=0, description="first steps that the large model writes")

    def step(self, transcript: Transcript) -> Script[Transcript]:
        """Add one more step. If a worker fails, the large model writes it."""
        if steps_written(transcript) >= self.first_n:
            draft = yield from drafted("small", transcript, self.criteria)
            if draft is not None:
                score, kept = yield from self.verdict(transcript, draft)
                if kept:
                    return (yield from Accept(transcript, draft, score))
                yield from Reject(draft, score)
        return (yield from Write("large", transcript, self.criteria))

    def verdict(self, transcript: Transcript, draft: Segment) -> Script[tuple[float | None, bool]]:
        """Return the score of a draft, and whether it is kept."""
        score = yield from self.score(transcript, draft)
        return score, score is not None and score >= self.threshold
