"""A learned gate: sure steps are kept unread, doubtful ones read together, wrong tokens corrected.

SpecReason (arXiv 2504.07891) asks the large model about every step. Here a small model of the pair
(gate.py) says first, from what a draft itself shows, how likely it is that the large model's step
would change the answer. The small model drafts a window of steps as long as they are probably all
right: until the probability that any of them is not exceeds `read_above`, or `window` drafts wait,
or the chain ends. Where it is at most `risk` then, they are kept unread, and the next window begins
without their doubt: `risk` is per window, not per chain.

Otherwise the large model reads all that waits in one pass, and the gate decides again about each
draft. The first above `correct_above` is cut where the large model found it unlikely, and the large
model's own choice at that place, which the same pass gave, is written instead (BiLD,
arXiv 2302.07863, section 3.4): judging and rewriting are one pass. The small model continues from
there; above `hopeless` the large model writes the rest of the step. A draft of which the large
model would have written every token is kept whatever the gate says. With `patience`, a question on
which the small model was corrected so often is too hard for it: the large model writes the rest.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial, reduce
from math import inf
from operator import add
from typing import ClassVar

from pydantic import Field

from orchestrator.errors import Unsupported
from orchestrator.loop.actions import REST, Accept, Generate, Reject, Script, Verify, Write
from orchestrator.types import ENDED, Segment, Transcript, Verification
from policies.gate import Gate, probability
from policies.steps import Stepwise, attempt, blank, ends, logprobs_of


@dataclass(frozen=True, slots=True)
class WaitingDraft:
    """An unread draft; `logit` is what the gate made of it (None: nothing)."""

    segment: Segment
    logit: float | None

    @property
    def doubt(self) -> float:
        """The probability that it should be corrected."""
        return 1.0 if self.logit is None else probability(self.logit)


@dataclass(slots=True)
class Corrections:
    """How often the small model was corrected in one request."""

    count: int = 0


class LearnedGate(Stepwise):
    """A model learned from the pair's own recordings decides what the large model reads."""

    calibrated: ClassVar[str | None] = "risk"

    gate: Gate = Field(default=Gate(), description="what `baton learn gate` writes")
    risk: float = Field(
        default=0.04,
        ge=0,
        le=1,
        description="drafts stay unread while the probability that the large model's step would "
        "have mended the answer, in place of any of them, is at most this",
    )
    read_above: float = Field(
        default=0.2,
        ge=0,
        le=1,
        description="drafts wait for others to be read with them up to this probability",
    )
    correct_above: float = Field(
        default=0.05,
        ge=0,
        le=1,
        description="a draft that was read is corrected above this probability",
    )
    hopeless: float = Field(
        default=0.5,
        ge=0,
        le=1,
        description="above this probability the large model writes the rest of a corrected step",
    )
    patience: int | None = Field(
        default=None,
        ge=1,
        description="corrections after which the large model writes the rest of the thought",
    )
    window: int = Field(default=8, ge=1, le=64, description="drafts that may wait to be read")

    @property
    def one_vocabulary(self) -> bool:
        return True

    def solve(self, transcript: Transcript) -> Script[None]:
        transcript = yield from self.think(transcript, partial(self._steps, Corrections()))
        yield from self.answer(transcript)

    def _steps(self, corrections: Corrections, transcript: Transcript) -> Script[Transcript]:
        """The transcript with what became of the next drafts; at least one segment more.

        Where a worker fails, the large model writes the step.
        """
        if self.patience is not None and corrections.count >= self.patience:
            return (yield from Write("large", transcript, REST))
        drafts, doubt = yield from self._drafts(transcript)
        if drafts and doubt <= self.risk:
            return (yield from self._accept(transcript, drafts))
        if drafts:
            verification = yield from attempt(
                Verify("large", transcript, reduce(add, (one.segment for one in drafts)))
            )
            if verification is not None:
                return (yield from self._read(corrections, transcript, drafts, verification))
            for draft in drafts:
                yield from Reject(draft.segment)
        return (yield from Write("large", transcript, self.criteria))

    def _drafts(self, transcript: Transcript) -> Script[tuple[list[WaitingDraft], float]]:
        """Drafts, each on top of those before it, and the probability that one of them is wrong."""
        drafts: list[WaitingDraft] = []
        right = 1.0
        while len(drafts) < self.window and 1 - right <= max(self.risk, self.read_above):
            generation = yield from attempt(Generate("small", transcript, self.criteria))
            if generation is None or not generation.segment.tokens:
                break  # the context or the budget is full, or the chain ends without a word
            segment = generation.segment
            if blank(segment):
                yield from Reject(segment)
                break
            logprobs_of(segment)
            drafts.append(WaitingDraft(segment, self.gate.of_draft(transcript, segment)))
            right *= 1 - drafts[-1].doubt
            if ends(segment):
                break
            transcript = transcript.extend(segment)
        return drafts, 1 - right

    def _accept(self, transcript: Transcript, drafts: list[WaitingDraft]) -> Script[Transcript]:
        for draft in drafts:
            if not transcript.is_open:
                yield from Reject(draft.segment)
                continue
            transcript = yield from Accept(transcript, draft.segment, _score(draft.doubt))
        return transcript

    def _read(
        self,
        corrections: Corrections,
        transcript: Transcript,
        drafts: list[WaitingDraft],
        verification: Verification,
    ) -> Script[Transcript]:
        """What the large model's reading leaves of the drafts, and its correction of the first
        that it does not leave."""
        if len(verification.options) != len(verification.nll) + 1:
            raise Unsupported(
                "the large worker does not give its choices as text, which learned-gate needs"
            )
        parts = _parts(verification, [draft.segment for draft in drafts])
        waiting = list(zip(drafts, parts, strict=True))
        while waiting and transcript.is_open:
            draft, part = waiting.pop(0)
            p = probability(self.gate.of_reading(part, draft.logit))
            place = _place(draft.segment, part) if p > self.correct_above else None
            if place is None:
                transcript = yield from Accept(transcript, draft.segment, _score(p))
                continue
            corrections.count += 1
            kept, dropped = part.split(draft.segment, place)
            yield from Reject(dropped, _score(p))
            transcript = yield from self._corrected(transcript, kept, part.options[place], p)
            break
        for draft, _ in waiting:
            yield from Reject(draft.segment)
        return transcript

    def _corrected(
        self, transcript: Transcript, kept: Segment, option: Segment, p: float
    ) -> Script[Transcript]:
        """The transcript with what is left of a draft and the large model's choice behind it."""
        if kept.tokens:
            transcript = yield from Accept(transcript, kept)
        if transcript.is_open and option.finish == "doubt":  # may begin a marker: writing shows it
            return (yield from Write("large", transcript, self.criteria))
        if transcript.is_open:
            transcript = yield from Accept(transcript, option)
        done = (kept.text + option.text).endswith(self.delimiters)
        if transcript.is_open and p > self.hopeless and not done:
            transcript = yield from Write("large", transcript, self.criteria)
        return transcript


def _parts(verification: Verification, segments: list[Segment]) -> list[Verification]:
    """A verification of joined segments as one of each."""
    parts, start = [], 0
    for segment in segments:
        end = start + len(segment.tokens)
        parts.append(
            replace(
                verification,
                nll=verification.nll[start:end],
                choices=verification.choices[start : end + 1],
                pieces=verification.pieces[start:end],
                options=verification.options[start : end + 1],
                ending=verification.ending if segment is segments[-1] else None,
            )
        )
        start = end
    return parts


def _place(draft: Segment, verification: Verification) -> int | None:
    """Where to correct a draft: the first place at which the large model would have written another
    token and that is at least half as unlikely (in nats) as the most unlikely such place.

    One place more than tokens: the end that the draft claims. None: it would have written the same.
    """
    unlikely = {
        place: nll
        for place, nll in enumerate(verification.nll)
        if verification.choices[place] != draft.tokens[place]
    }
    claimed = draft.finish in ENDED  # no model chose a caller's stop string
    if claimed and verification.options[-1].finish != draft.finish:
        unlikely[len(draft.tokens)] = inf if verification.ending is None else verification.ending
    bar = max(unlikely.values(), default=0.0) / 2
    return next((place for place, nll in unlikely.items() if nll >= bar), None)


def _score(p: float) -> float:
    """Shown beside a step, on the judges' scale: 9 is certainly kept."""
    return 9 * (1 - p)
