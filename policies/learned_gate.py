"""A learned gate: sure steps are kept unread, doubtful ones read together, wrong tokens corrected.

SpecReason (arXiv 2504.07891) asks the large model about every step. Here a learned gate (gate.py)
first predicts, from the draft's signals, the probability that the large model's step would change
the answer. The small model drafts steps until the probability that any of them is wrong exceeds
`read_above`, or `window` drafts wait, or the chain ends. If that probability is at most `risk`, all
are kept unread, and the next window starts from probability 0.

Otherwise the large model reads all waiting drafts in one pass, and the gate decides on each again.
The first above `correct_above` is cut at the token that the large model found unlikely, and the
large model's choice there, which the same pass gave, replaces it (BiLD, arXiv 2302.07863, section
3.4). The small model continues from there; above `hopeless` the large model writes the rest of the
step. A draft whose every token the large model would have written is kept, whatever the gate
predicts. After `patience` corrections the large model writes the rest of the thought.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce
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
    """An unread draft, with the gate's logit; None: there is no such gate."""

    segment: Segment
    logit: float | None

    @property
    def doubt(self) -> float:
        """The probability that it should be corrected."""
        return 1.0 if self.logit is None else probability(self.logit)


class LearnedGate(Stepwise):
    """A model learned from the pair's own recordings decides what the large model reads."""

    calibrated: ClassVar[str | None] = "risk"

    gate: Gate = Field(default=Gate(), description="the gate that `baton learn gate` writes")
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
        corrected = 0

        def step(transcript: Transcript) -> Script[Transcript]:
            nonlocal corrected
            if self.patience is not None and corrected >= self.patience:
                return (yield from Write("large", transcript, REST))
            transcript, corrects = yield from self._window(transcript)
            corrected += corrects
            return transcript

        transcript = yield from self.think(transcript, step)
        yield from self.answer(transcript)

    def _window(self, transcript: Transcript) -> Script[tuple[Transcript, bool]]:
        """Add the next drafts, as far as they are kept; return whether one was corrected.

        At least one segment is added. If a worker fails, the large model writes the step.
        """
        drafts, doubt = yield from self._drafts(transcript)
        if drafts and doubt <= self.risk:
            for draft in drafts:
                if transcript.is_open:
                    score = _score(draft.doubt)
                    transcript = yield from Accept(transcript, draft.segment, score)
                else:
                    yield from Reject(draft.segment)
            return transcript, False
        if drafts:
            verification = yield from attempt(
                Verify("large", transcript, reduce(add, (one.segment for one in drafts)))
            )
            if verification is not None:
                return (yield from self._read(transcript, drafts, verification))
            for draft in drafts:
                yield from Reject(draft.segment)
        return (yield from Write("large", transcript, self.criteria)), False

    def _drafts(self, transcript: Transcript) -> Script[tuple[list[WaitingDraft], float]]:
        """Draft steps, each after those before it; return the probability that any is wrong."""
        drafts: list[WaitingDraft] = []
        right = 1.0
        while len(drafts) < self.window and 1 - right <= max(self.risk, self.read_above):
            generation = yield from attempt(Generate("small", transcript, self.criteria))
            if generation is None or not generation.segment.tokens:
                break  # the worker failed, no room is left, or the chain ends without text
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

    def _read(
        self, transcript: Transcript, drafts: list[WaitingDraft], verification: Verification
    ) -> Script[tuple[Transcript, bool]]:
        """Add the drafts up to the first that the large model corrects, and its correction."""
        if len(verification.options) != len(verification.nll) + 1:
            raise Unsupported(
                "the large worker does not give its choices as text, which learned-gate needs"
            )
        parts = _parts(verification, [draft.segment for draft in drafts])
        waiting, corrects = list(zip(drafts, parts, strict=True)), False
        while waiting and transcript.is_open and not corrects:
            draft, part = waiting.pop(0)
            p = probability(self.gate.of_reading(part, draft.logit))
            place = _place(draft.segment, part) if p > self.correct_above else None
            if place is None:
                transcript = yield from Accept(transcript, draft.segment, _score(p))
                continue
            corrects = True
            kept, dropped = part.split(draft.segment, place)
            yield from Reject(dropped, _score(p))
            transcript = yield from self._corrected(transcript, kept, part.options[place], p)
        for draft, _ in waiting:
            yield from Reject(draft.segment)
        return transcript, corrects

    def _corrected(
        self, transcript: Transcript, kept: Segment, option: Segment, p: float
    ) -> Script[Transcript]:
        """Add the kept part of a draft, and the large model's choice after it."""
        if kept.tokens:
            transcript = yield from Accept(transcript, kept)
        if transcript.is_open and option.finish == "doubt":  # it may begin a marker
            return (yield from Write("large", transcript, self.criteria))
        if transcript.is_open:
            transcript = yield from Accept(transcript, option)
        done = (kept.text + option.text).endswith(self.delimiters)
        if transcript.is_open and p > self.hopeless and not done:
            transcript = yield from Write("large", transcript, self.criteria)
        return transcript


def _parts(verification: Verification, segments: list[Segment]) -> list[Verification]:
    """Split a verification of joined segments into one of each."""
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
    """Return the place to correct in a draft; None: the large model would have written the same.

    Among the tokens that the large model would not have chosen, it is the first whose negative
    log-likelihood is at least half of the highest. The end that a draft claims comes last.
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
    """Return the score that users see, on the judges' scale: 9 is certainly kept."""
    return 9 * (1 - p)
