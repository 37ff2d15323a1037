"""BiLD, the Big Little Decoder (arXiv 2302.07863): the small model writes, the large one corrects.

Section 3.3, fallback: the small model writes token by token until it is unsure of one. Section
3.4, rollback: the large model then reads all tokens since its last turn in one pass. The first one
whose negative log-likelihood is above the threshold is taken back, with all that follow. In either
case the same pass gives the next token: k tokens in, k + 1 choices out, one call per turn.

If tokens are sampled, the large model samples its choices (section 3.5). The released code lets it
write one more token after a rollback (`after_rollback`); the paper's algorithm does not. The code
keeps a token above the threshold that the large model would have written too, and does not judge
later tokens; here they are judged. An end of the thought is judged like any other token.
"""

from __future__ import annotations

from math import inf
from typing import Annotated, ClassVar, Literal

from pydantic import Field, field_validator

from orchestrator.loop.actions import REST, Accept, Reject, Script, Verify, Write
from orchestrator.loop.policy import Policy
from orchestrator.types import Segment, StopCriteria, Transcript, Verification
from policies.reading import unlikely
from policies.steps import ANSWERERS, attempt, drafted, ends, write_out

NOTHING = Segment("small", "")
"""An empty draft: the large model only writes the next token."""
MARKER = StopCriteria(8)
"""The most tokens of a marker of a thought's end that is written as text."""


class BiLD(Policy):
    """The small model writes until it is unsure; the large one rolls back unlikely tokens."""

    calibrated: ClassVar[str | None] = "fallback"

    fallback: float = Field(
        default=0.6,
        ge=0,
        le=1,
        description="the large model takes over before a token whose top probability is below "
        "this; 0: only when the window is full; 1: at every token",
    )
    rollback: Annotated[float, Field(ge=0)] | None = Field(
        default=5.0,
        description="a token is taken back if its negative log-likelihood (natural log) under "
        "the large model is above this; null: never",
    )
    window: int = Field(
        default=10, ge=1, le=512, description="most tokens that the small model writes in a row"
    )
    large_first: bool = Field(default=True, description="the large model writes the first token")
    after_rollback: Literal["small", "large"] = Field(
        default="small",
        description="who continues after a corrected token; large: for one token more, at the "
        "price of one more pass, as in the released code",
    )
    answer_by: Literal["large", "small"] = Field(
        default="large", description="who writes the answer, once the thought has ended"
    )

    @property
    def one_vocabulary(self) -> bool:
        return True

    @field_validator("rollback")
    @classmethod
    def _never(cls, nll: float | None) -> float | None:
        return None if nll == inf else nll

    def solve(self, transcript: Transcript) -> Script[None]:
        drafting = not self.large_first
        while transcript.is_open:
            draft = (yield from self._draft(transcript)) if drafting else NOTHING
            verification = None
            if draft is not None:
                verification = yield from attempt(Verify("large", transcript, draft))
            if draft is None or verification is None:  # a worker failed
                if draft is not None and draft.tokens:
                    yield from Reject(draft)
                transcript, drafting = (yield from Write("large", transcript, REST)), False
                continue
            transcript, rolled_back = yield from self._corrected(transcript, draft, verification)
            drafting = not rolled_back or self.after_rollback == "small"
        yield from write_out(transcript, *ANSWERERS[self.answer_by])

    def _corrected(
        self, transcript: Transcript, draft: Segment, verification: Verification
    ) -> Script[tuple[Transcript, bool]]:
        """Add a draft up to the first token to roll back, if there is one, and a choice of large.

        Return the longer transcript, and whether a token was rolled back.
        """
        most = inf if self.rollback is None else self.rollback
        wrong = [place for place, nll in unlikely(draft, verification).items() if nll > most]
        kept, dropped = verification.split(draft, wrong[0]) if wrong else (draft, NOTHING)
        if kept.tokens or ends(kept):
            transcript = yield from Accept(transcript, kept)
        if dropped.tokens:
            yield from Reject(dropped)
        if transcript.is_open:
            option = verification.options[len(kept.tokens)]
            if option.finish == "doubt":  # it may begin the thought's end: more tokens show it
                transcript = yield from Write("large", transcript, MARKER)
            else:
                transcript = yield from Accept(transcript, option)
        return transcript, bool(wrong)

    def _draft(self, transcript: Transcript) -> Script[Segment | None]:
        """Draft up to the first token the small model is unsure of; None if it cannot continue."""
        # A probability may round to 1, which must be below a threshold of 1 too.
        threshold = self.fallback if self.fallback < 1 else inf
        return drafted("small", transcript, StopCriteria(self.window, min_confidence=threshold))
