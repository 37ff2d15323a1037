"""SpecReason (arXiv 2504.07891): the small model drafts a step, the large one scores it.

Section 4.1: a step whose score reaches the threshold is kept; below it the draft is dropped and
the large model writes the step from the same prefix, without having seen the draft. Section 4.2
adds the two knobs: the threshold, and the first n steps by the large model.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, ClassVar, Literal

from pydantic import Field, FiniteFloat

from orchestrator.actions import Accept, Action, Close, Generate, Reject, Script, WorkerName, Write
from orchestrator.errors import ContextLengthExceeded, Unsupported, WorkerError
from orchestrator.policy import Policy
from orchestrator.types import Segment, Span, Trace
from policies.answer import write_out
from policies.judge import Scoring, Wording, grade

DELIMITER = "\n\n"


class SpecReason(Policy):
    """Draft by the small model, judged by the large one, rewritten where it falls short."""

    calibrated: ClassVar[str | None] = "threshold"

    threshold: float = Field(
        default=7.0, ge=0, le=10, description="a draft is kept at this score or above (0 to 9)"
    )
    scoring: Scoring = Field(
        default="expected",
        description="greedy: the likeliest digit; expected: the mean digit; "
        "likelihood: how likely the large model finds the draft's least likely token",
    )
    first_n: int = Field(default=0, ge=0, description="first steps that the large model writes")
    step_tokens: int = Field(default=512, ge=1, description="cap on the tokens of one step")
    answer_by: Literal["large", "small", "active"] = Field(
        default="large", description="who writes the answer; active: the author of the last step"
    )
    judge: Wording = Field(
        default="full", description="the judge's question; short: as the embedded pair learnt it"
    )
    likelihood: tuple[FiniteFloat, FiniteFloat] = Field(
        default=(4.0, 1.0), description="a, b of 9*sigmoid(a + b*m), from the checkpoint"
    )

    def solve(self, trace: Trace) -> Script:
        while not trace.closed:
            trace = yield from self._step(trace)
            if not trace.closed and _stuck(trace):
                trace = yield from Close(trace, forced=True)
        if self._answerer(trace) == "small":
            yield from write_out(trace, "small", "large")
        else:
            yield from write_out(trace, "large")

    def _step(self, trace: Trace) -> Generator[Action[Any], Any, Trace]:
        """One more step; whatever fails on the way, the large model writes it."""
        span = Span(self.step_tokens, until=(DELIMITER,))
        if len(trace.thought) >= self.first_n:
            draft = yield from self._draft(trace, span)
            if draft is not None:
                score = yield from self._score(trace, draft)
                if score is not None and score >= self.threshold:
                    return (yield from Accept(trace, draft, score))
                yield from Reject(draft, score)
        return (yield from Write("large", trace, span))

    def _draft(self, trace: Trace, span: Span) -> Generator[Action[Any], Any, Segment | None]:
        try:
            return (yield from Generate("small", trace, span)).segment
        except Unsupported:
            raise
        except (WorkerError, ContextLengthExceeded):
            return None

    def _score(self, trace: Trace, draft: Segment) -> Generator[Action[Any], Any, float | None]:
        """The draft's score; None for want of one, which never counts as good enough."""
        if not draft.text.strip() and draft.finish not in ("think_end", "eos"):
            return None  # a blank step says nothing that could be judged
        try:
            return (
                yield from grade(
                    trace,
                    draft,
                    scoring=self.scoring,
                    wording=self.judge,
                    likelihood=self.likelihood,
                )
            )
        except Unsupported:
            raise  # this pair can never score so: to be told, not to be served at full price
        except (WorkerError, ContextLengthExceeded):
            return None

    def _answerer(self, trace: Trace) -> WorkerName:
        if self.answer_by != "active":
            return self.answer_by
        return "small" if trace.thought and trace.thought[-1].author == "small" else "large"


def _stuck(trace: Trace) -> bool:
    """The last two steps say the same, or nothing (the loop guard of the released code)."""
    if len(trace.thought) < 2:
        return False
    last, before = (segment.text.strip() for segment in reversed(trace.thought[-2:]))
    return last == before
