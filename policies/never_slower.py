"""SpecReason that measures its own speed, and stops sharing where that does not pay.

Whether sharing is faster depends on the pair, the load and the question: rejected drafts and
judgements cost time that only accepted ones win back. So every request measures, in
milliseconds per accepted token: those of shared steps (drafts, judgements and rewrites together)
against those of the large model writing (its rewrites, and the first `first_n` steps). Once the
shared ones cost more than `margin` times as much, `patience` steps in a row, the large model
writes the rest of the thought alone, for good: its prefix is cached from judging.

What other requests pay is known before a request has paid anything (`Recent`): where the small
model's pool is so busy that a drafted token and its judgement cost more than the part of the large
model's token that they save, the large model writes from the beginning. So a crowded small pool
sends its work to the large one, all but the reading of the prompt, which both begin with. Drafts of
the last seconds that are less than `PROBES` of the large model's tokens prove nothing, so about
that part of the work goes on being shared, and tells what it costs now.

What is compared is time per token, not per question: a small model that needs more words for the
same thought is not noticed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from pydantic import Field

from orchestrator.loop.actions import REST, Account, Recent, Script, Write
from orchestrator.types import Cost, Transcript
from policies.specreason import SpecReason
from policies.steps import steps_written

PROBES = 0.1


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

    # It decides by elapsed time, which cached calls do not take; its judge is specreason's.
    calibrated: ClassVar[str | None] = None
    thresholds_of: ClassVar[str | None] = "specreason"
    asks_recent: ClassVar[bool] = True

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

    acceptance: float = Field(
        default=0.7,
        gt=0,
        le=1,
        description="part of the drafted tokens that is expected to stay, before a request's own "
        "account tells",
    )
    recent_tokens: int = Field(
        default=64,
        ge=1,
        description="tokens of each model that other requests must have made lately before what "
        "they paid is looked at",
    )

    def solve(self, transcript: Transcript) -> Script[None]:
        account = SpeedAccount(alone=self._crowded((yield from Recent())))
        transcript = yield from self.think(transcript, partial(self._accounted, account))
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
        if steps_written(transcript) >= self.first_n:
            account.shared_steps += 1
            account.shared_ms += spent.ms
            account.shared_tokens += after.chain.tokens - transcript.chain.tokens
            account.losing = account.losing + 1 if self._too_slow(account) else 0
            account.alone = account.losing >= self.patience
        return after

    def _crowded(self, recent: Cost) -> bool:
        """Whether drafts cost other requests more than they save; False without evidence."""
        known = (
            min(recent.small_tokens, recent.large_tokens) >= self.recent_tokens
            and recent.small_tokens >= PROBES * recent.large_tokens
        )
        # A draft that does not stay costs a token of the large model too.
        drafted = (recent.small_ms + recent.judge_ms) * recent.large_tokens
        bearable = (self.margin - 1 + self.acceptance) * recent.large_ms * recent.small_tokens
        return known and drafted > bearable  # cross-multiplied, as below

    def _too_slow(self, account: SpeedAccount) -> bool:
        """Whether shared tokens take longer than the large model's own; False without evidence."""
        known = (
            account.shared_steps >= self.evidence_steps
            and account.large_tokens >= self.evidence_tokens
        )
        shared = account.shared_ms * account.large_tokens
        alone = account.large_ms * account.shared_tokens
        return known and shared > self.margin * alone  # cross-multiplied: nothing is divided by 0
