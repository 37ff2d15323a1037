"""A learned gate: the probability that the large model's step would change the answer.

It has two logistic models: one of the small model's signals of its draft, and for doubtful drafts
one of the large model's reading. Both predict the effect of a rewrite, as Arbitrage does (arXiv
2512.05033): a wrong step that changes nothing need not be rewritten. `baton learn gate` fits them.

The text before a draft is read as steps, never as segments: a step is three segments after a
correction, but one in another policy's recording, and equal texts must give equal signals.
"""

from __future__ import annotations

import re
from bisect import bisect
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import exp, expm1, log, log1p
from typing import Annotated, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, field_validator

from orchestrator.types import Segment, Transcript, Verification
from policies.steps import DELIMITER, ends

CAP = 20.0  # the most that a negative log-likelihood counts, even of an impossible token
COMPARED = 1 << 15  # the most characters of a step that are compared
RECENT = 8  # the last steps in which a draft's numbers are looked for, beside the question
NUMBER = re.compile(r"\d+(?:[.,]\d+)*")

DraftSignal = Literal[
    "first", "worst", "second", "mean", "last", "doubt", "tokens", "step", "ending", "copied",
    "made", "left", "repeated",
]  # fmt: skip
ReadingSignal = Literal[
    "draft", "read_first", "read_worst", "read_second", "read_mean", "read_number", "read_ending",
]  # fmt: skip

Weight = Annotated[float, Field(ge=-1e3, le=1e3)]
Signal = TypeVar("Signal", DraftSignal, ReadingSignal)
Curve = tuple[tuple[Weight, Weight], ...]
"""Points of a rising curve, from left to right."""


class LogisticModel(BaseModel, Generic[Signal]):
    """1 / (1 + exp(-curve(bias + weights * signals))); a signal without a weight does not count.

    `curve` calibrates the sums by questions that the model had not seen; empty: no calibration.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    bias: Weight
    weights: dict[Signal, Weight]
    curve: Curve = ()

    @field_validator("curve")
    @classmethod
    def _rises(cls, curve: Curve) -> Curve:
        if any(a[0] >= b[0] or a[1] > b[1] for a, b in pairwise(curve)):
            raise ValueError("each point must be right of the one before, and not below it")
        return curve

    def logit(self, signals: Mapping[str, float]) -> float:
        sum_ = self.bias + sum(weight * signals[name] for name, weight in self.weights.items())
        return on(self.curve, sum_) if self.curve else sum_


class Gate(BaseModel):
    """The two models. Without `draft` every draft is read; the default reading is a guess that
    holds for no pair in particular: an unlikely token is a reason to correct it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    draft: LogisticModel[DraftSignal] | None = None
    reading: LogisticModel[ReadingSignal] = LogisticModel[ReadingSignal](
        bias=-6.0, weights={"read_worst": 0.65}
    )

    def of_draft(self, transcript: Transcript, draft: Segment) -> float | None:
        """Return the logit before the large model reads the draft; None without such a model."""
        return None if self.draft is None else self.draft.logit(draft_signals(transcript, draft))

    def of_reading(self, verification: Verification, logit: float | None) -> float:
        """Return the logit once the large model has read it; `logit` is the draft's."""
        return self.reading.logit(reading_signals(verification, logit))


def draft_signals(transcript: Transcript, draft: Segment) -> dict[str, float]:
    """Return the signals of a draft that cost nothing, with natural logarithms."""
    nll = [min(-logprob, CAP) for logprob in draft.logprobs] or [CAP]
    worst, second = _two_largest(nll[1:])
    asked = set(NUMBER.findall(transcript.messages[-1].content)) if transcript.messages else set()
    before = transcript.chain.fold(_written, StepsBefore())
    used = {number for step in before.last for number in NUMBER.findall(step)}
    text = before.rest + draft.text  # a draft after a correction continues its step
    numbers = set(NUMBER.findall(text))
    made = numbers - asked - used
    return {
        "first": nll[0],  # apart from the others: a step's beginning is often a matter of style
        "worst": worst,
        "second": second,
        "mean": sum(nll) / len(nll),
        "last": nll[-1],
        "doubt": log(max(-expm1(-worst), 1e-6)),  # that the worst token is another one
        "tokens": log(len(nll)),
        "step": log1p(before.count),
        "ending": float(ends(draft)),
        "copied": log1p(len(numbers - made)),  # its step's numbers that were there before
        "made": log1p(len(made)),  # and those that were not
        "left": 0.0 if made else log1p(len(asked - used - numbers)),  # asked for and never used
        "repeated": float(text.strip() in before.last),
    }


@dataclass(frozen=True, slots=True)
class StepsBefore:
    """The chain so far: the number of ended steps, the last of them, and the text after them."""

    count: int = 0
    last: tuple[str, ...] = ()
    rest: str = ""


def _written(before: StepsBefore, segment: Segment) -> StepsBefore:
    *ended, rest = (before.rest + segment.text).split(DELIMITER)
    steps = [text for step in ended if (text := step.strip()[-COMPARED:])]
    last = (*before.last, *steps)[-RECENT:]
    return StepsBefore(before.count + len(steps), last, rest[-COMPARED:])


def reading_signals(verification: Verification, logit: float | None) -> dict[str, float]:
    """Return the signals of the large model's reading of a draft; `logit` is the draft's."""
    nll = [min(value, CAP) for value in verification.nll] or [CAP]
    worst, second = _two_largest(nll[1:])
    numbers = (
        value
        for value, piece in zip(nll, verification.pieces, strict=False)
        if any(map(str.isdigit, piece))
    )
    return {
        "draft": 0.0 if logit is None else logit,
        "read_first": nll[0],
        "read_worst": worst,
        "read_second": second,
        "read_mean": sum(nll) / len(nll),
        "read_number": max(numbers, default=0.0),  # of the tokens with a digit
        "read_ending": min(verification.ending or 0.0, CAP),
    }


def on(curve: Curve, x: float) -> float:
    """Return the curve at x: linear between two points, constant outside them."""
    at = bisect(curve, (x,))
    if at in (0, len(curve)):
        return curve[min(at, len(curve) - 1)][1]
    (left, low), (right, high) = curve[at - 1], curve[at]
    return low + (high - low) * (x - left) / (right - left)


def probability(logit: float) -> float:
    """Return 1 / (1 + exp(-logit)); exp cannot overflow here."""
    return 1 / (1 + exp(-logit)) if logit >= 0 else exp(logit) / (1 + exp(logit))


def _two_largest(values: list[float]) -> tuple[float, float]:
    largest, second, *_ = [*sorted(values, reverse=True), 0.0, 0.0]
    return largest, second
