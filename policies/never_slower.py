"""SpecReason that measures its own speed, and stops sharing where that does not pay.

Whether sharing is faster depends on the pair, the load and the question: rejected drafts and
judgements cost time that only accepted ones win back. So every request measures, in
milliseconds per accepted token: those of shared steps (drafts, judgements and rewrites together)
against those of the large model writing (its rewrites, and the first `first_n` steps). Once the
shared ones cost more than `margin` times as much, `patience` steps in a row, the large model
writes the rest of the thought alone, for good: its prefix is cached from judging.

What is compared is time per token, not per question: a small model that needs more words for the
same thought is not noticed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from pydantic import Field

from orchestrator.loop.actions import Account, Script, Write
from orchestrator.types import Transcript
from policies.specreason import SpecReason
from policies.steps import REST


@dataclass
class SpeedAccount:
    """Time and tokens of one request so far; times in milliseconds."""

    shared_steps: int = 0
    shared_ms: float = 0.0
    shared_tokens: int = 0  # accepted, whoever wrote them
    large_ms: float = 0.0
    large_tokens: int = 0  # written by the large model
    losing: int = 0  # steps in a row after which sharing was too slow
    alone: bool = False


class NeverSlower(SpecReason):
    """SpecReason while it pays, then the large model alone."""

    # It decides by elapsed time, which cached calls do not take.
    calibrated: ClassVar[str | None] = None

    first_n: int = Field(
        default=1,
        ge=0,
        description="first steps that the large model writes, which is how its speed is known "
        "before it has to rewrite anything",
    )
    margin: float = Field(
        default=1.0,
        ge=1,
        le=10,
        description="shared tokens may cost this many times what the large model's own cost",
    )
    evidence_steps: int = Field(
        default=3, ge=1, description="shared steps before the account is looked at"
    )
    evidence_tokens: int = Field(
        default=16, ge=1, description="tokens written by the large model before it is looked at"
    )
    patience: int = Field(
        default=2, ge=1, description="steps in a row that must look too dear before sharing ends"
    )

    def solve(self, transcript: Transcript) -> Script[None]:
        transcript = yield from self.think(transcript, partial(self._accounted, SpeedAccount()))
        yield from self.answer(transcript)

    def _accounted(self, account: SpeedAccount, transcript: Transcript) -> Script[Transcript]:
        """The transcript with one more step, whose cost goes on the account."""
        if account.alone:
            return (yield from Write("large", transcript, REST))
        before = yield from Account()
        after = yield from self.step(transcript)
        spent = (yield from Account()) - before
        account.large_ms += spent.large_ms
        account.large_tokens += spent.large_tokens
        if len(transcript.chain) >= self.first_n:
            account.shared_steps += 1
            account.shared_ms += spent.ms
            account.shared_tokens += after.chain.tokens - transcript.chain.tokens
            account.losing = account.losing + 1 if self._too_slow(account) else 0
            account.alone = account.losing >= self.patience
        return after

    def _too_slow(self, account: SpeedAccount) -> bool:
        """Whether shared tokens take longer than the large model's own; False without evidence."""
        known = (
            account.shared_steps >= self.evidence_steps
            and account.large_tokens >= self.evidence_tokens
        )
        shared = account.shared_ms * account.large_tokens
        alone = account.large_ms * account.shared_tokens
        return known and shared > self.margin * alone  # cross-multiplied: nothing is divided by 0
