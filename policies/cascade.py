"""ConfSpec (arXiv 2602.18447): the small model judges its own step, or leaves it to the large.

Small models are well calibrated within their range, so the small model's verdict counts if it is
confident; only other drafts go to the large model. The signal `logprob` comes with the draft and
costs nothing (SpecGuard's, arXiv 2604.15244); `digit` costs one short pass.
"""

from __future__ import annotations

from math import exp
from typing import Literal

from pydantic import Field, ValidationInfo, field_validator

from orchestrator.loop.actions import Script
from orchestrator.types import Segment, Transcript
from policies.judge import expected_score, greedy_score
from policies.specreason import SpecReason
from policies.steps import attempt, blank, logprobs_of


class Cascade(SpecReason):
    """The small model judges its drafts; the large one judges those of which it is unsure."""

    signal: Literal["logprob", "digit"] = Field(
        default="logprob",
        description="the small model's verdict: 9 times the probability of the draft's least "
        "likely token, or its digit in answer to the judge's question",
    )
    accept_at: float = Field(
        default=8.0, ge=0, le=10, description="the small model's verdict that keeps a draft at once"
    )
    reject_below: float = Field(
        default=0.0, ge=0, le=10, description="the small model's verdict that drops it at once"
    )

    @field_validator("reject_below")
    @classmethod
    def _in_order(cls, value: float, info: ValidationInfo) -> float:
        if value > info.data.get("accept_at", value):
            raise ValueError("cannot be above accept_at")
        return value

    def verdict(self, transcript: Transcript, draft: Segment) -> Script[tuple[float | None, bool]]:
        """Return the score of the model that decided, and whether the draft is kept."""
        own = None if blank(draft) else (yield from attempt(self.own_verdict(transcript, draft)))
        if own is not None and own >= self.accept_at:
            return own, True
        if own is not None and own < self.reject_below:
            return own, False
        return (yield from super().verdict(transcript, draft))

    def own_verdict(self, transcript: Transcript, draft: Segment) -> Script[float | None]:
        """Return the small model's score of its draft, from 0 to 9; None if it has no tokens."""
        if self.signal == "logprob":
            logprobs = logprobs_of(draft)
            return 9 * exp(min(logprobs)) if logprobs else None
        digits = yield from self.ask(transcript, draft, "small")
        return greedy_score(digits) if self.scoring == "greedy" else expected_score(digits)
