"""A plan by the large model, carried out by the small one: after Tandem (arXiv 2604.23623).

In the paper the large model writes compact insights (the goal, the plan, what must be known, what
to do), until a trained classifier finds that they suffice; the small one then reasons and answers.
Here the plan is the beginning of the shared thought, so it is as visible as any other step, and the
small model goes on behind it. Whether it suffices the small model says itself, without training:
once it is confident of the step that it drafts next (the geometric mean of its tokens'
probabilities), that draft is kept and the rest is its own. Until then the large model adds to the
plan, `pieces` times at most. Where there is no thought the plan is part of the answer, and has no
lead-in: an answer is the models' own.

With `judged` the steps behind the plan are scored by the large model, as in SpecReason
(arXiv 2504.07891), and rewritten below the threshold.
"""

from __future__ import annotations

from math import exp, inf
from typing import ClassVar, Literal

from pydantic import Field

from orchestrator.loop.actions import Accept, Generate, Reject, Script, Write
from orchestrator.types import Segment, StopCriteria, Transcript
from policies.judge import Judging
from policies.steps import attempt, blank, logprobs_of


class PlanFirst(Judging):
    """The large model plans until the small one is sure how to go on, and that one carries it out.

    What concerns the judge (`threshold`, `scoring`) means nothing without `judged`.
    """

    calibrated: ClassVar[str | None] = "sufficient"

    lead_in: str = Field(
        default="Before solving it, a short plan: the goal, what is known, and what to do.\n\n",
        max_length=2000,
        description="what the plan begins with in a thought; empty: the large model just begins",
    )
    pieces: int = Field(default=4, ge=1, le=64, description="most paragraphs of the plan")
    plan_tokens: int = Field(default=64, ge=1, description="most tokens of one of them")
    sufficient: float = Field(
        default=0.8,
        ge=0,
        le=1,
        description="geometric mean of the probabilities of a draft's tokens from which the small "
        "model knows how to go on; 0: one paragraph is enough; 1: all are written",
    )
    judged: bool = Field(
        default=False, description="whether the large model scores the steps behind the plan"
    )
    answer_by: Literal["large", "small", "active"] = Field(
        default="active", description="who writes the answer; active: the author of the last step"
    )

    @property
    def one_vocabulary(self) -> bool:
        return self.judged and super().one_vocabulary

    def solve(self, transcript: Transcript) -> Script[None]:
        yield from super().solve((yield from self._plan(transcript)))

    def step(self, transcript: Transcript) -> Script[Transcript]:
        """The transcript with one more step behind the plan."""
        draft = yield from self._draft(transcript)
        if draft is None:
            return (yield from Write("large", transcript, self.criteria))
        return (yield from self._decide(transcript, draft))

    def _plan(self, transcript: Transcript) -> Script[Transcript]:
        """The plan, and the first step behind it where that showed that the plan suffices."""
        if self.lead_in and transcript.thinking and not transcript.closed:
            transcript = yield from Accept(transcript, Segment("policy", self.lead_in))
        criteria = StopCriteria(self.plan_tokens, until=self.delimiters)
        # A probability may round to 1; at 1 even that is too little.
        sufficient = self.sufficient if self.sufficient < 1 else inf
        for piece in range(1, self.pieces + 1):
            if not transcript.is_open:
                break
            transcript = yield from Write("large", transcript, criteria)
            if piece == self.pieces or not transcript.is_open:
                break  # whoever writes next, the plan is over
            draft = yield from self._draft(transcript)
            if draft is None:
                continue
            if confidence(draft) >= sufficient:
                return (yield from self._decide(transcript, draft))
            yield from Reject(draft)
        return transcript

    def _decide(self, transcript: Transcript, draft: Segment) -> Script[Transcript]:
        """Keep a draft, or let the large model write the step where it judges and finds it bad."""
        score = None
        if self.judged:
            score = yield from self.score(transcript, draft)
            if score is None or score < self.threshold:
                yield from Reject(draft, score)
                return (yield from Write("large", transcript, self.criteria))
        return (yield from Accept(transcript, draft, score))

    def _draft(self, transcript: Transcript) -> Script[Segment | None]:
        """The small model's next step; None where it failed, or wrote nothing."""
        generation = yield from attempt(Generate("small", transcript, self.criteria))
        if generation is None:
            return None
        if blank(generation.segment):
            yield from Reject(generation.segment)
            return None
        return generation.segment


def confidence(draft: Segment) -> float:
    """The geometric mean of the probabilities of a draft's tokens.

    0 where it has no text: an end alone does not show that the plan can be carried out.
    """
    logprobs = logprobs_of(draft)
    return exp(sum(logprobs) / len(logprobs)) if logprobs and draft.text.strip() else 0.0
