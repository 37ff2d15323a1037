"""Guardrails: limits that stop an arm once it has surely crossed one.

They are evaluated after every few requests, so a limit counts as crossed only by a sequential test:
an arm within its limit is stopped with probability `alpha` at most, over all looks.

That holds for the times that were observed. The full time of a cancelled or failed request is
unknown. For a limit (`at_most`, a quantile) it counts with the time until its end, a lower bound.
Compared with the control it counts with the worst time of all arms (`comparable`). Since it has no
upper bound, an arm with such a request crosses no `at_least` of a time. The metrics `cancelled` and
`error` count these requests.
"""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.experiments.documents import Experiment, ExperimentState, Guardrail
from orchestrator.experiments.metrics import METRICS, observations
from orchestrator.experiments.outcome_log import TIMES, ByArm, RequestRecord, comparable
from orchestrator.experiments.samples import Sample, linearise, sample, unit_sums
from orchestrator.experiments.sequential import (
    difference_interval,
    mean_interval,
    proportion_exceeds,
)


def crossed_guardrails(
    experiment: Experiment, state: ExperimentState, by_arm: ByArm
) -> dict[str, str]:
    """Return the arms to stop now, with reasons, except arms that others are compared with."""
    crossings: dict[str, str] = {}
    relative = any(rail.worse_than_control_by is not None for rail in experiment.guardrails)
    compared: ByArm = comparable(by_arm) if relative else {}
    compared_with = {experiment.base, *(bound.than for bound in experiment.goal.within)}
    for name in by_arm:
        if name in compared_with or name in state.stopped:
            continue
        for rail in experiment.guardrails:
            seen = (
                _crossed(rail, by_arm[name], experiment)
                if rail.worse_than_control_by is None
                else _worse(rail, compared[name], compared.get(experiment.base, ()), experiment)
            )
            if seen is not None:
                crossings[name] = f"{rail}: {seen}"
                break
    return crossings


def _worse(
    rail: Guardrail,
    requests: Sequence[RequestRecord],
    control: Sequence[RequestRecord],
    experiment: Experiment,
) -> str | None:
    """Return a text with the means if the arm is surely worse than the control by more than the
    limit, else None."""
    assert rail.worse_than_control_by is not None
    own, other = (sample(each, rail.metric, experiment.prices) for each in (requests, control))
    if min(own.count, other.count) < rail.min_units:
        return None
    interval = difference_interval(own, other, rail.alpha, experiment.tuned_for)
    _, best = interval.ends(METRICS[rail.metric].sign)
    if -best <= rail.worse_than_control_by:
        return None
    return f"{own.mean:.4g} against {other.mean:.4g} of {other.count} units"


def _crossed(
    rail: Guardrail, requests: Sequence[RequestRecord], experiment: Experiment
) -> str | None:
    """Return a text with the observed values if the limit is surely crossed, else None."""
    own = sample(requests, rail.metric, experiment.prices)
    if own.count < rail.min_units:
        return None
    if rail.quantile is not None:
        assert rail.at_most is not None
        return _slow(rail, rail.at_most, rail.quantile, requests, experiment)
    censored = any(one.outcome is not None and one.outcome.censored for one in requests)
    if rail.at_least is not None and rail.metric in TIMES and censored:
        return None
    return _absolute(rail, own, experiment.tuned_for)


def _absolute(rail: Guardrail, own: Sample, tuned_for: float) -> str | None:
    seen = f"{own.mean:.4g} over {own.count} units"
    limit, upwards = (rail.at_most, True) if rail.at_most is not None else (rail.at_least, False)
    assert limit is not None
    if own.binary:  # one request per unit: exact for any number of units
        hits = int(own.values.sum())
        share = limit if upwards else 1 - limit
        over = proportion_exceeds(
            hits if upwards else own.count - hits, own.count, share, rail.alpha
        )
        return seen if over else None
    interval = mean_interval(own, rail.alpha, tuned_for)
    return seen if (interval.low > limit if upwards else interval.high < limit) else None


def _slow(
    rail: Guardrail,
    limit: float,
    quantile: float,
    requests: Sequence[RequestRecord],
    experiment: Experiment,
) -> str | None:
    """Return a text with the number of slow requests if surely more than 1 - q are, else None.

    Requests of one unit are correlated, so units are counted. The test is exact if all requests of
    each unit are slow or none is; else it uses the ratio of slow requests to all, over units.
    """
    found = observations(requests, rail.metric, experiment.prices)
    sums = unit_sums((request, float(ms > limit), 1.0) for request, ms, _ in found)
    slow, count = (int(total) for total in sums.sum(axis=0))
    units = linearise(sums, bounded=True)
    if units.binary:
        over = proportion_exceeds(int(units.values.sum()), units.count, 1 - quantile, rail.alpha)
    else:
        over = mean_interval(units, rail.alpha, experiment.tuned_for).low > 1 - quantile
    return f"{slow} of {count} requests took longer" if over else None
