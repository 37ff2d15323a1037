"""Takeover by surprise: the small model thinks, the large one takes over at an unlikely token.

This is not a paper's policy. It is for small models that do not use the keywords of doubt, the
signal of Speculative Thinking (arXiv 2504.12329). As there, the large model writes a number of
tokens and the small one continues, even in mid-sentence. The signal is the large model's negative
log-likelihood (natural log) of a token of the small one, its *surprise*, as in BiLD's rollback
(arXiv 2302.07863, section 3.4).

The small model drafts up to `window` steps, and the large one verifies all in a single pass. The
steps before the first token above the threshold are accepted; that step and those after it are
rejected whole, and the large model writes `takeover` tokens instead. So there is one pass per
window, while `specreason` with `scoring: likelihood` has one per step. This pays if a call costs as
much as several tokens (tiny models, remote ones); the price is the rejected drafts. If a step ends
the thought, that end counts as one of its tokens; an end without text is left to the large model.
"""

from __future__ import annotations

from functools import reduce
from itertools import islice
from math import exp
from operator import add
from typing import ClassVar, Literal

from pydantic import Field

from orchestrator.loop.actions import Accept, Generate, Reject, Script, Verify, Write
from orchestrator.types import Segment, StopCriteria, Transcript
from policies.steps import Stepwise, attempt, ends


class SurpriseTakeover(Stepwise):
    """Several steps by the small model, verified at once; the large one takes over in doubt."""

    calibrated: ClassVar[str | None] = "surprise"

    surprise: float = Field(
        default=5.0,
        ge=0,
        le=50,
        description="negative log-likelihood (natural log) of a token above which large takes over",
    )
    window: int = Field(
        default=4,
        ge=1,
        le=64,
        description="steps that are drafted before the large model reads them",
    )
    takeover: int = Field(default=125, ge=1, description="tokens that the large model then writes")
    answer_by: Literal["large", "small", "active"] = Field(
        default="active", description="who writes the answer; active: the author of the last step"
    )

    @property
    def one_vocabulary(self) -> bool:
        return True

    def step(self, transcript: Transcript) -> Script[Transcript]:
        """Add the steps that one verification accepts, and the large model's text if one fails."""
        drafts = yield from self._drafts(transcript)
        peaks = yield from self._peaks(transcript, drafts)
        accepted = bool(drafts)
        for draft, peak in zip(drafts, peaks, strict=True):
            # The score that users see: the probability of the least likely token, times 9.
            score = None if peak is None else 9 * exp(-peak)
            accepted = accepted and peak is not None and peak <= self.surprise
            if accepted and transcript.is_open:
                transcript = yield from Accept(transcript, draft, score)
            else:
                yield from Reject(draft, score)
        if not accepted and transcript.is_open:
            transcript = yield from Write("large", transcript, StopCriteria(self.takeover))
        return transcript

    def _drafts(self, transcript: Transcript) -> Script[list[Segment]]:
        """Draft up to `window` steps, each on top of those before it; fewer if the thought ends."""
        drafts: list[Segment] = []
        while len(drafts) < self.window:
            generation = yield from attempt(Generate("small", transcript, self.criteria))
            if generation is None or not generation.segment.tokens:
                break  # the worker failed, the context is full, or the thought ends without text
            draft = generation.segment
            drafts.append(draft)
            if ends(draft):
                break
            transcript = transcript.extend(draft)
        return drafts

    def _peaks(self, transcript: Transcript, drafts: list[Segment]) -> Script[list[float | None]]:
        """Return each draft's highest negative log-likelihood; None if the worker failed."""
        if not drafts:
            return []
        verification = yield from attempt(Verify("large", transcript, reduce(add, drafts)))
        if verification is None:
            return [None] * len(drafts)
        nll = iter(verification.nll)
        peaks: list[float | None] = [max(islice(nll, len(d.tokens))) for d in drafts[:-1]]
        return [*peaks, max((*nll, verification.ending or 0.0))]
