"""Whether a judge's scores separate good answers of a pair.

No question needs a known answer. The small model answers alone, step by step, and the large one
scores the steps. An answer that equals the large model's own counts as good. A useful judge
scores the weakest step of a good answer higher than that of another answer. The share of such pairs
in which it does is the area under the ROC curve (AUC): 0.5 for a coin.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import pstdev

from deploy.evaluation.intervals import Z

FLAT = 0.25
"""Scores (0 to 9) do not spread if their standard deviation is below this."""
FEW = 5
"""A verdict needs this many good answers, and this many others."""


@dataclass(frozen=True, slots=True)
class JudgedAnswer:
    """The scores of the small model's steps in one answer, and whether the answer is good."""

    scores: tuple[float, ...]
    good: bool


@dataclass(frozen=True, slots=True)
class JudgeReport:
    """The evaluation of one scoring.

    `auc` is of the weakest step's score, with its 95 % interval; None if all answers are alike.
    `spread` is the standard deviation of all steps' scores.
    """

    scoring: str
    steps: int
    good: int
    others: int
    spread: float
    auc: float | None
    auc_low: float | None
    auc_high: float | None

    @property
    def tells(self) -> bool:
        """Whether higher scores are known to go with good answers."""
        enough = min(self.good, self.others) >= FEW
        return enough and self.auc_low is not None and self.auc_low > 0.5

    def verdict(self) -> str:
        """Return the meaning in a line."""
        if self.steps and self.spread < FLAT and not self.tells:
            return "scores do not spread: the judge tells nothing on this pair"
        if self.auc is None or self.auc_low is None:
            return "the scored answers are alike, all good or none: nothing is known of the judge"
        what = f"AUC {self.auc:.2f} [{self.auc_low:.2f}, {self.auc_high:.2f}]"
        if self.tells:
            return f"scores tell good answers from others, {what}"
        if min(self.good, self.others) < FEW:
            return f"too few answers of both kinds to tell, {what}: give more questions"
        return (
            f"scores of good and other answers do not differ, {what}: the judge tells nothing on "
            "this pair"
        )


def report(scoring: str, answers: Sequence[JudgedAnswer]) -> JudgeReport:
    """Evaluate the judge; the interval is Hanley and McNeil's (1982)."""
    judged = [answer for answer in answers if answer.scores]
    good = [min(answer.scores) for answer in judged if answer.good]
    others = [min(answer.scores) for answer in judged if not answer.good]
    scores = [score for answer in judged for score in answer.scores]
    spread = pstdev(scores) if scores else 0.0
    auc = low = high = None
    if good and others:
        won = sum((g > o) + 0.5 * (g == o) for g in good for o in others)
        auc = won / (len(good) * len(others))
        q1, q2 = auc / (2 - auc), 2 * auc * auc / (1 + auc)
        variance = auc * (1 - auc) + (len(good) - 1) * (q1 - auc**2)
        variance += (len(others) - 1) * (q2 - auc**2)
        # At an AUC of 1 this variance is 0, so the standard error has a lower bound.
        least = 0.5 / (min(len(good), len(others)) + 1)
        half = Z * max(sqrt(max(0.0, variance) / (len(good) * len(others))), least)
        low, high = max(0.0, auc - half), min(1.0, auc + half)
    return JudgeReport(scoring, len(scores), len(good), len(others), spread, auc, low, high)
