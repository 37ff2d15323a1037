"""TrigReason (arXiv 2604.14847): the small model thinks, three triggers call the large one.

Nobody judges. The large model writes a step

1. at the beginning, where a plan is made (strategic priming): the first `first_n` steps;
2. where the small model is over-confident of a step (cognitive offload): the mean negative
   log-likelihood of its draft is below `overconfidence`. The signal of `entropy-gate` read the
   other way: a small model that finds a hard step easy does not see what is hard about it;
3. where the reasoning goes round in circles (intervention request): the draft repeats what was
   written before, or the small model has hesitated `patience` steps in a row.

The paper's abstract names the three triggers; how each is measured here is ours. Which steps count
as hard is a parameter too: all of them, or only those that compute (a number stands in the draft
that neither the question nor a step before has). Small models repeat and copy with high confidence,
and there it is no sign of danger.
"""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, Literal, TypeAlias

from pydantic import Field, StringConstraints

from orchestrator.loop.actions import Accept, Generate, Reject, Script, Write
from orchestrator.types import Segment, Transcript
from policies.steps import Stepwise, attempt, blank, logprobs_of, repeats, steps_written

Openings: TypeAlias = tuple[
    Annotated[str, StringConstraints(pattern=r"\S", to_lower=True, strip_whitespace=True)], ...
]
NUMBER = re.compile(r"\d+(?:[.,]\d+)*")


class Triggers(Stepwise):
    """The small model thinks; the large one begins, and writes steps at two kinds of trigger."""

    calibrated: ClassVar[str | None] = "overconfidence"

    first_n: int = Field(default=1, ge=0, description="first steps that the large model writes")
    overconfidence: float = Field(
        default=0.05,
        ge=0,
        le=5,
        description="a draft whose mean negative log-likelihood (natural log, under the small "
        "model) is below this is the large model's step; 0: never",
    )
    hard: Literal["any", "computes"] = Field(
        default="any",
        description="which steps over-confidence counts in; computes: those with a number that "
        "neither the question nor a step before has",
    )
    patience: int | None = Field(
        default=3,
        ge=1,
        le=64,
        description="hesitating steps of the small model in a row that call the large one; null: "
        "none do",
    )
    hesitation: Openings = Field(
        default=("wait", "but wait", "hmm", "alternatively", "hold on"),
        description="what a hesitating step begins with, in small or capital letters",
    )

    def step(self, transcript: Transcript) -> Script[Transcript]:
        """The transcript with one more step, the small model's where no trigger is pulled."""
        if steps_written(transcript) >= self.first_n and not self._hesitates(transcript):
            draft = yield from attempt(Generate("small", transcript, self.criteria))
            if draft is not None:
                if self._harmless(transcript, draft.segment):
                    return (yield from Accept(transcript, draft.segment))
                yield from Reject(draft.segment)
        return (yield from Write("large", transcript, self.criteria))

    def _harmless(self, transcript: Transcript, draft: Segment) -> bool:
        """Whether a draft pulls no trigger."""
        if blank(draft) or self._overconfident(transcript, draft):
            return False
        # An end with no text repeats nothing, whatever stands before it.
        return not draft.text or not repeats(transcript.extend(draft))

    def _hesitates(self, transcript: Transcript) -> bool:
        """Whether the small model has only hesitated in the last steps."""
        if self.patience is None or len(transcript.chain) < self.patience:
            return False
        return all(
            step.author == "small" and begins_with(step.text, self.hesitation)
            for step in transcript.chain[-self.patience :]
        )

    def _overconfident(self, transcript: Transcript, draft: Segment) -> bool:
        """Whether the small model finds a hard step easier than it should."""
        if not self.overconfidence or not (logprobs := logprobs_of(draft)):
            return False
        sure = -sum(logprobs) / len(logprobs) < self.overconfidence
        return sure and (self.hard == "any" or computes(transcript, draft))


def begins_with(text: str, openings: tuple[str, ...]) -> bool:
    """Whether a text begins with one of these words, which are in small letters.

    A letter behind them makes another word (waiters), but not in scripts without capital letters,
    such as the Chinese, where words are not set apart.
    """
    text = text.lstrip().lower()
    return any(
        text.startswith(opening) and not text[len(opening) :][:1].islower() for opening in openings
    )


def computes(transcript: Transcript, draft: Segment) -> bool:
    """Whether a step has a number that stands nowhere before it."""
    before = (*(message.content for message in transcript.messages), transcript.text)
    known = {number for text in before for number in NUMBER.findall(text)}
    return not known.issuperset(NUMBER.findall(draft.text))
