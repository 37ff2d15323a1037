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

from typing import ClassVar

from pydantic import Field

from orchestrator.loop.actions import REST, Accept, Reject, Script, Write
from orchestrator.types import Segment, Transcript, Verification
from policies.gate import Gate, probability
from policies.reading import read, unlikely
from policies.steps import Stepwise, blank, drafted, ends, logprobs_of

Draft = tuple[Segment, float | None]
"""An unread draft and the gate's logit; None: the gate has no model of drafts."""


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
        while transcript.is_open:
            if self.patience is not None and corrected >= self.patience:
                transcript = yield from Write("large", transcript, REST)
            else:
                transcript, corrects = yield from self._window(transcript)
                corrected += corrects
        yield from self.answer(transcript)

    def _window(self, transcript: Transcript) -> Script[tuple[Transcript, bool]]:
        """Add the next drafts, as far as they are kept; return whether one was corrected.

        At least one segment is added. If a worker fails, the large model writes the step.
        """
        drafts, doubt = yield from self._drafts(transcript)
        if drafts and doubt <= self.risk:
            for segment, logit in drafts:
                if transcript.is_open:
                    transcript = yield from Accept(transcript, segment, _score(_doubt(logit)))
                else:
                    yield from Reject(segment)
            return transcript, False
        if drafts:
            readings = yield from read(transcript, [segment for segment, _ in drafts])
            if readings is not None:
                return (yield from self._read(transcript, drafts, readings))
            for segment, _ in drafts:
                yield from Reject(segment)
        return (yield from Write("large", transcript, self.criteria)), False

    def _drafts(self, transcript: Transcript) -> Script[tuple[list[Draft], float]]:
        """Draft steps, each after those before it; return the probability that any is wrong."""
        drafts: list[Draft] = []
        right = 1.0
        while len(drafts) < self.window and 1 - right <= max(self.risk, self.read_above):
            segment = yield from drafted("small", transcript, self.criteria)
            if segment is None or not segment.tokens:
                break  # the worker failed, no room is left, or the chain ends without text
            if blank(segment):
                yield from Reject(segment)
                break
            logprobs_of(segment)
            logit = self.gate.of_draft(transcript, segment)
            drafts.append((segment, logit))
            right *= 1 - _doubt(logit)
            if ends(segment):
                break
            transcript = transcript.extend(segment)
        return drafts, 1 - right

    def _read(
        self, transcript: Transcript, drafts: list[Draft], readings: list[Verification]
    ) -> Script[tuple[Transcript, bool]]:
        """Add the drafts up to the first that the large model corrects, and its correction."""
        corrects = False
        for (draft, logit), reading in zip(drafts, readings, strict=True):
            if corrects or not transcript.is_open:
                yield from Reject(draft)
                continue
            place = _place(unlikely(draft, reading))
            p = probability(self.gate.of_reading(reading, logit))
            if place is None or p <= self.correct_above:
                transcript = yield from Accept(transcript, draft, _score(p))
                continue
            corrects = True
            kept, dropped = reading.split(draft, place)
            yield from Reject(dropped, _score(p))
            transcript = yield from self._corrected(transcript, kept, reading.options[place], p)
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


def _place(found: dict[int, float]) -> int | None:
    """Return the first place at least half as unlikely as the most unlikely one."""
    bar = max(found.values(), default=0.0) / 2
    return next((place for place, nll in found.items() if nll >= bar), None)


def _doubt(logit: float | None) -> float:
    """Return the probability that a draft should be corrected."""
    return 1.0 if logit is None else probability(logit)


def _score(p: float) -> float:
    """Return the score that users see, on the judges' scale: 9 is certainly kept."""
    return 9 * (1 - p)
