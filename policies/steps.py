"""What the step-level policies have in common: a thought made step by step, then the answer.

A step ends at a blank line, as in SpecReason (arXiv 2504.07891) and all that came after it. What
fails on the way is left to the large model; where that fails too, the request does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from pydantic import Field

from orchestrator.errors import ContextLengthExceeded, Unsupported, WorkerError
from orchestrator.loop.actions import A, Action, Close, Script, WorkerName
from orchestrator.loop.policy import Policy
from orchestrator.types import Segment, StopCriteria, Transcript
from policies.answer import write_out

DELIMITER = "\n\n"
CIRCLE = 4
"""Most steps of a circle that is noticed; a longer one meets the budget."""


class Stepwise(Policy):
    """Base of the policies that think step by step; `think` and `answer` are the frame."""

    step_tokens: int = Field(default=512, ge=1, description="cap on the tokens of one step")
    answer_by: Literal["large", "small", "active"] = Field(
        default="large", description="who writes the answer; active: the author of the last step"
    )

    @property
    def criteria(self) -> StopCriteria:
        """One step."""
        return StopCriteria(self.step_tokens, until=(DELIMITER,))

    def think(
        self, transcript: Transcript, step: Callable[[Transcript], Script[Transcript]]
    ) -> Script[Transcript]:
        """Step after step until the thought ends, or goes in circles."""
        while not transcript.closed:
            transcript = yield from step(transcript)
            if not transcript.closed and stuck(transcript):
                transcript = yield from Close(transcript, forced=True)
        return transcript

    def answer(self, transcript: Transcript) -> Script[Transcript]:
        """Write the answer; the large model stands in for the small one."""
        if self._answerer(transcript) == "small":
            return (yield from write_out(transcript, "small", "large"))
        return (yield from write_out(transcript, "large"))

    def _answerer(self, transcript: Transcript) -> WorkerName:
        if self.answer_by != "active":
            return self.answer_by
        return (
            "small" if transcript.thought and transcript.thought[-1].author == "small" else "large"
        )


def attempt(script: Action[A] | Script[A]) -> Script[A | None]:
    """What it comes to; None where a worker failed, which the large model makes good.

    `Unsupported` is raised on: this pair can never do so, which is to be told, not to be served
    at full price.
    """
    try:
        return (yield from script)
    except Unsupported:
        raise
    except (WorkerError, ContextLengthExceeded):
        return None


def ends(segment: Segment) -> bool:
    """Whether its author meant the thought to end with it."""
    return segment.finish in ("think_end", "eos")


def blank(segment: Segment) -> bool:
    """Whether a step says nothing, not even that the thought is over."""
    return not segment.text.strip() and not ends(segment)


def logprobs_of(draft: Segment) -> tuple[float, ...]:
    """The log-probabilities of a draft's tokens.

    Raises:
        Unsupported: its worker tells none.
    """
    if draft.tokens and not draft.logprobs:
        raise Unsupported("the small worker gives no log-probabilities, the signal asked for")
    return draft.logprobs


def stuck(transcript: Transcript) -> bool:
    """Whether the last steps say what as many steps before them said.

    SpecReason's code compares the last two; models also go round in longer circles. Steps are
    those of the text, however many segments it was written in; one that is unfinished is not
    looked at.
    """
    *said, unfinished = (step.strip() for step in transcript.text.split(DELIMITER))
    return not unfinished and any(
        said[-size:] == said[-2 * size : -size]
        for size in range(1, min(CIRCLE, len(said) // 2) + 1)
    )
