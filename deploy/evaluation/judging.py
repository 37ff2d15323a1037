"""Whether a judge's scores separate good answers of a pair, and the curve of its likelihoods.

No question needs a known answer. The small model answers alone, step by step, and the large one
scores the steps. An answer that equals the large model's own counts as good. A useful judge
scores the weakest step of a good answer higher than that of another answer. The share of such pairs
in which it does is the area under the ROC curve (AUC): 0.5 for a coin.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log, log1p, sqrt
from statistics import pstdev
from typing import Any

from deploy.evaluation.intervals import Z, quantile

FLAT = 0.25
"""Scores (0 to 9) do not spread if their standard deviation is below this."""
NEWTON_STEPS = 100
FEW = 5
"""A verdict or a fit needs this many good answers, and this many others."""


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


def curve(
    weakest: Sequence[tuple[float, bool]], steps: Sequence[float]
) -> tuple[float, float] | None:
    """Return a and b of the score 9 * sigmoid(a + b * m), m a step's least log-probability.

    With `FEW` good answers and `FEW` others, logistic regression: the probability that an answer
    is good, given m of its weakest step. b has a prior (mean 1, deviation 1), so that few answers
    do not make the curve a step function. With fewer, or if the fit does not rise, the 10 % and
    90 % quantiles of `steps` get the scores 2 and 7; None if these quantiles are equal.

    Args:
        weakest: by answer, m of its weakest step and whether the answer is good.
        steps: m of all steps.
    """
    good = sum(is_good for _, is_good in weakest)
    if min(good, len(weakest) - good) >= FEW:
        a, b = _logistic(weakest)
        if b > 0.05:
            return a, b
    low, high = quantile(steps, 0.1), quantile(steps, 0.9)
    if high - low < 1e-6:
        return None
    ends = [log(score / (9 - score)) for score in (2.0, 7.0)]
    b = (ends[1] - ends[0]) / (high - low)
    return ends[0] - b * low, b


def score_at(m: float, curve: tuple[float, float]) -> float:
    """Return the score of a step whose least log-probability is m."""
    x = curve[0] + curve[1] * m
    return 9 / (1 + exp(-x)) if x > -500 else 0.0


def log_probability(score: float, curve: tuple[float, float]) -> float:
    """Return the least log-probability m of a step that has this score on a curve."""
    share = min(max(score / 9, 1e-200), 1 - 1e-16)
    return min(0.0, (log(share) - log1p(-share) - curve[0]) / curve[1])


def _logistic(rows: Sequence[tuple[float, bool]]) -> tuple[float, float]:
    """Return the maximum a posteriori a and b; a's prior (deviation 10) only keeps it finite.

    Newton's method on the convex loss; a step that raises the loss is halved.
    """
    import numpy as np

    signed = np.array([(1.0, m) if good else (-1.0, -m) for m, good in rows])
    mean, precision = np.array([0.0, 1.0]), np.array([0.01, 1.0])

    def loss(at: Any) -> float:
        fit = np.logaddexp(0.0, -signed @ at).sum()
        return float(fit + (precision * (at - mean) ** 2).sum() / 2)

    at = mean
    for _ in range(NEWTON_STEPS):
        wrong = np.exp(-np.logaddexp(0.0, signed @ at))  # the likelihood of the other kind
        slope = precision * (at - mean) - signed.T @ wrong
        curvature = (signed.T * wrong * (1 - wrong)) @ signed + np.diag(precision)
        step = np.linalg.solve(curvature, slope)
        if np.abs(step).max() < 1e-9:
            break
        while loss(at - step) > loss(at) and np.abs(step).max() > 1e-12:
            step /= 2
        at = at - step
    return float(at[0]), float(at[1])
