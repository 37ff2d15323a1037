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

from itertools import zip_longest
from math import exp
from typing import ClassVar, Literal

from pydantic import Field

from orchestrator.loop.actions import Accept, Generate, Reject, Script, Write
from orchestrator.types import Segment, StopCriteria, Transcript
from policies.reading import read
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
        readings = (yield from read(transcript, drafts)) if drafts else None
        accepted = readings is not None
        for draft, reading in zip_longest(drafts, readings or ()):
            score = None
            if reading is not None:
                peak = max((*reading.nll, reading.ending or 0.0))
                accepted = accepted and peak <= self.surprise
                score = 9 * exp(-peak)  # users see the probability of the least likely token
            if accepted and transcript.is_open:
                transcript = yield from Accept(transcript, draft, score)
            else:
                yield from Reject(draft, score)
        if not accepted and transcript.is_open:
            transcript = yield from Write("large", transcript, StopCriteria(self.takeover))
        return transcript

    def _drafts(self, transcript: Transcript) -> Script[list[Segment]]:
        """Draft up to `window` steps, each after those before it; fewer if the thought ends."""
        drafts: list[Segment] = []
        while len(drafts) < self.window:
            generation = yield from attempt(Generate("small", transcript, self.criteria))
            if generation is None or not generation.segment.tokens:
                break  # the worker failed, the context is full, or the thought ends without text
            drafts.append(generation.segment)
            if ends(generation.segment):
                break
            transcript = transcript.extend(generation.segment)
        return drafts
