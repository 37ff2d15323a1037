"""The autopilot: Thompson sampling toward a goal, within its bounds, with bounded exploration.

An arm is *known to keep the bounds* when each holds with the bound's confidence; the arm that a
bound compares with always is. Among such arms the requests go to each in proportion to the
probability that it is the best (Thompson 1933; constraints as in conservative bandits, Wu et al.
2016, arXiv 1602.04282). Every other arm that may still turn out to keep the bounds shares
`exploration` of the requests with the rest, and one that surely breaks a bound gets a tenth of an
explorer's share: enough to notice a mistake.

The result is a set of weights, put on record with what it rests on. Requests are assigned by them
as in any experiment, so each knows the probability with which it was, which is what `estimates`
needs: means of data that were collected adaptively are biased, doubly robust scores weighted by
those probabilities are not (arXiv 2103.06476, section 3; Hadad et al. 2021, arXiv 1911.02768).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from orchestrator.experiments.documents import Experiment, MetricName, Prices
from orchestrator.experiments.ledger import Request
from orchestrator.experiments.measures import METRICS, parts
from orchestrator.experiments.samples import Sample, Vector, sample

DRAWS: Final = 4000
FEW: Final = 10  # units below which an arm's mean may be anything
RESIDUE: Final = 0.1  # of an explorer's share, for an arm that surely breaks a bound


@dataclass(frozen=True, slots=True)
class Allocation:
    """Weights of the arms, and what each is believed to be.

    `beliefs` by arm: `units`, the goal's `mean`, the probability to be `best` among those that
    keep the bounds, and `keeps`, the least probability of its bounds (1 where there are none).
    """

    weights: Mapping[str, float]
    beliefs: Mapping[str, Mapping[str, float]]


def allocate(
    experiment: Experiment,
    by_arm: Mapping[str, Sequence[Request]],
    random: np.random.Generator,
) -> Allocation:
    """The weights with which to go on; arms that are not in `by_arm` were stopped."""
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
    """The weights with which to go on, from each arm's values of the goal and the bounds.

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
        place, drawn = (
            names.index(bound.than or experiment.base),
            METRICS[bound.metric].sign * means[bound.metric],
        )
        holds = (drawn >= drawn[place] - bound.by).mean(axis=1)
        holds[place] = 1.0
        keeps = np.minimum(keeps, holds)
        sure &= holds >= bound.confidence
        hopeless |= holds <= 1 - bound.confidence
    best = _best(METRICS[goal.metric].sign * means[goal.metric], sure)
    explorers = np.where(hopeless, RESIDUE, 1.0)
    weights = (1 - experiment.exploration) * best
    weights += experiment.exploration * explorers / explorers.sum()
    weights /= weights.sum()
    beliefs = {
        name: {
            "units": float(samples[name][goal.metric].count),
            "mean": samples[name][goal.metric].mean,
            "best": float(best[place]),
            "keeps": float(keeps[place]),
        }
        for place, name in enumerate(names)
    }
    return Allocation(dict(zip(names, (float(value) for value in weights), strict=True)), beliefs)


def _posterior(values: Sample, random: np.random.Generator) -> Vector:
    """Draws of the true mean: Student's t around the sample's (a flat prior on mean and spread).

    A handful of units says nothing yet: such an arm is drawn from all over its range, or as far
    better and worse than anything.
    """
    if values.count < FEW:
        if values.extremes is not None:
            return random.uniform(*values.extremes, DRAWS)
        return np.asarray(random.choice([-1.0, 1.0], DRAWS) * 1e12)
    drawn: Vector = values.mean + values.error * random.standard_t(values.count - 1, DRAWS)
    return drawn


def _best(drawn: Vector, among: NDArray[np.bool_]) -> Vector:
    """With which probability each arm is the best of those that may be chosen."""
    if not among.any():
        among = np.ones_like(among)
    masked = np.where(among[:, None], drawn, -np.inf)
    won: Vector = np.bincount(masked.argmax(axis=0), minlength=len(drawn)) / drawn.shape[1]
    return won


def estimates(
    by_arm: Mapping[str, Sequence[Request]], metric: MetricName, prices: Prices
) -> dict[str, Vector]:
    """For each arm a score per request of *any* arm, whose mean is the arm's own mean, unbiased.

    The score of arm a is `guess + drawn(a) (value - guess) / probability`, where the guess is the
    arm's mean over the requests before: augmented inverse-probability weighting. Scores of two
    arms may be subtracted one by one. Needs probabilities above 0, which exploration sees to.
    """
    told = sorted(
        (
            (request.exposure.at, name, above / below, request.exposure.probability)
            for name, requests in by_arm.items()
            for request, above, below in parts(requests, metric, prices)
        ),
        key=lambda row: row[0],
    )
    names = np.array([row[1] for row in told])
    values = np.array([row[2] for row in told], dtype=float)
    chances = np.array([row[3] for row in told], dtype=float)
    found = {}
    for name in by_arm:
        mine = names == name
        seen, total = np.cumsum(mine), np.cumsum(np.where(mine, values, 0.0))
        before = np.append(0.0, total)[: len(told)] / np.maximum(1, np.append(0, seen)[: len(told)])
        found[name] = before + mine * (values - before) / chances
    return found
