"""Thompson sampling toward a goal, within its bounds, with bounded exploration.

An arm is *known to keep the bounds* when each holds with the bound's confidence at any number of
looks (a confidence sequence, from `MIN_UNITS` units on: the weights are reckoned anew all the time,
so a probability at each look would sooner or later be wrong); the arm that a bound compares with
always is. Among such arms, requests are divided in proportion to the probability that an arm is the
best (Thompson 1933; constraints as in conservative bandits, Wu et al. 2016, arXiv 1602.04282).
Every other arm that may still turn out to keep the bounds shares `exploration` of the requests with
the rest, and one that surely breaks a bound gets a tenth of an explorer's share, enough to notice a
mistake.

The result is a set of weights, recorded with its evidence. Requests are assigned by them as in any
experiment, and each exposure has the probability of its assignment (the propensity), which
`doubly_robust_scores` needs: means of adaptively collected data are biased, doubly robust scores
weighted by the propensities are not (arXiv 2103.06476, section 3; Hadad et al. 2021, arXiv
1911.02768).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from orchestrator.experiments.documents import Bound, Experiment, MetricName, Prices
from orchestrator.experiments.metrics import METRICS, observations
from orchestrator.experiments.outcome_log import RequestRecord
from orchestrator.experiments.samples import Sample, Vector, sample
from orchestrator.experiments.sequential import difference_interval

DRAWS: Final = 4000
MIN_UNITS: Final = 10  # below this many an arm's mean is drawn from its whole range
HOPELESS_SHARE: Final = 0.1  # of an explorer's share, for an arm that surely breaks a bound


@dataclass(frozen=True, slots=True)
class Allocation:
    """Weights of the arms, and the beliefs they follow from.

    `beliefs` by arm: `units`, the goal's `mean`, the probability to be `best` among those that
    are known to keep the bounds, `keeps`, the least probability of its bounds (1 where there are
    none), and whether it is `sure` that it keeps them (1 or 0).
    """

    weights: Mapping[str, float]
    beliefs: Mapping[str, Mapping[str, float]]


def allocate(
    experiment: Experiment,
    by_arm: Mapping[str, Sequence[RequestRecord]],
    random: np.random.Generator,
) -> Allocation:
    """The next weights; arms that are not in `by_arm` were stopped."""
    metrics = {experiment.goal.metric, *(bound.metric for bound in experiment.goal.within)}
    samples = {
        name: {metric: sample(requests, metric, experiment.prices) for metric in metrics}
        for name, requests in by_arm.items()
    }
    return allocate_samples(experiment, samples, random)


def allocate_samples(
    experiment: Experiment,
    samples: Mapping[str, Mapping[MetricName, Sample]],
    random: np.random.Generator,
) -> Allocation:
    """The next weights, from each arm's samples of the goal's metric and those of the bounds.

    The control is among the arms, and every arm that a bound compares with: no guardrail stops it.
    """
    names, goal = list(samples), experiment.goal
    means = {
        metric: np.stack([_posterior(samples[name][metric], random) for name in names])
        # In an order that is the same in every process: they share one stream of random numbers.
        for metric in sorted({goal.metric, *(bound.metric for bound in goal.within)})
    }
    keeps = np.ones(len(names))
    sure = np.ones(len(names), dtype=bool)
    hopeless = np.zeros(len(names), dtype=bool)
    for bound in goal.within:
        than = bound.than or experiment.base
        drawn = METRICS[bound.metric].sign * means[bound.metric]
        holds = (drawn >= drawn[names.index(than)] - bound.by).mean(axis=1)
        for place, name in enumerate(names):
            if name == than:
                continue
            keeps[place] = min(keeps[place], holds[place])
            own, other = samples[name][bound.metric], samples[than][bound.metric]
            known = known_bound(bound, own, other, experiment.tuned_for)
            sure[place] &= known is True
            hopeless[place] |= known is False
    best = _best(METRICS[goal.metric].sign * means[goal.metric], sure)
    explorers = np.where(hopeless, HOPELESS_SHARE, 1.0)
    weights = (1 - experiment.exploration) * best
    weights += experiment.exploration * explorers / explorers.sum()
    weights /= weights.sum()
    beliefs = {
        name: {
            "units": float(samples[name][goal.metric].count),
            "mean": samples[name][goal.metric].mean,
            "best": float(best[place]),
            "keeps": float(keeps[place]),
            "sure": float(sure[place]),
        }
        for place, name in enumerate(names)
    }
    return Allocation(dict(zip(names, (float(value) for value in weights), strict=True)), beliefs)


def known_bound(bound: Bound, own: Sample, than: Sample, tuned_for: float) -> bool | None:
    """Whether an arm keeps a bound; None while that is not known. Wrong at no look with the bound's
    confidence on either side."""
    if min(own.count, than.count) < MIN_UNITS:
        return None
    interval = difference_interval(own, than, 2 * (1 - bound.confidence), tuned_for)
    low, high = interval.ends(METRICS[bound.metric].sign)
    return True if low >= -bound.by else False if high < -bound.by else None


def _posterior(values: Sample, random: np.random.Generator) -> Vector:
    """`DRAWS` draws from the posterior of the mean: Student's t (a flat prior on mean and log sd).

    Below `MIN_UNITS` units the draws come from the whole range of a bounded metric; of another
    one, half of them are better than any arm and half of them worse.
    """
    if values.count < MIN_UNITS:
        if values.extremes is not None:
            return random.uniform(*values.extremes, DRAWS)
        return np.asarray(random.choice([-1.0, 1.0], DRAWS) * 1e12)
    drawn: Vector = values.mean + values.error * random.standard_t(values.count - 1, DRAWS)
    return drawn


def _best(drawn: Vector, among: NDArray[np.bool_]) -> Vector:
    """The probability of each arm to be the best of those that may be chosen."""
    if not among.any():
        among = np.ones_like(among)
    masked = np.where(among[:, None], drawn, -np.inf)
    won: Vector = np.bincount(masked.argmax(axis=0), minlength=len(drawn)) / drawn.shape[1]
    return won


def doubly_robust_scores(
    by_arm: Mapping[str, Sequence[RequestRecord]],
    metric: MetricName,
    until: float,
    prices: Prices,
) -> dict[str, Vector]:
    """For each arm a score per request of *any* arm, whose mean estimates the arm's, unbiased.

    Only requests until then count: of one that an arm could not have had, since it was stopped,
    the score would be the guess alone, which tells nothing new of the arm.

    The score of arm a is `guess + drawn(a) (value - guess) / probability`, where the guess is the
    arm's mean over the requests before: augmented inverse-probability weighting. Scores of two
    arms may be subtracted one by one. Needs probabilities above 0, which exploration sees to.
    """
    rows = sorted(
        (
            (request.exposure.at, name, above / below, request.exposure.probability)
            for name, requests in by_arm.items()
            for request, above, below in observations(requests, metric, prices)
            if request.exposure.at <= until
        ),
        key=lambda row: row[0],
    )
    names = np.array([row[1] for row in rows])
    values = np.array([row[2] for row in rows], dtype=float)
    probabilities = np.array([row[3] for row in rows], dtype=float)
    scores = {}
    for name in by_arm:
        own = names == name
        seen, total = np.cumsum(own), np.cumsum(np.where(own, values, 0.0))
        before = np.append(0.0, total)[: len(rows)] / np.maximum(1, np.append(0, seen)[: len(rows)])
        scores[name] = before + own * (values - before) / probabilities
    return scores
