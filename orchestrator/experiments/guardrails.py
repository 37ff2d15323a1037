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
from orchestrator.experiments.metrics import METRICS, Sample, sample, values
from orchestrator.experiments.outcome_log import TIMES, ByArm, RequestRecord, comparable
from orchestrator.experiments.sequential import (
    difference_interval,
    mean_interval,
    proportion_exceeds,
)
from orchestrator.types import TokenPrices


def crossed_guardrails(
    experiment: Experiment, state: ExperimentState, by_arm: ByArm
) -> dict[str, str]:
    """Return the arms to stop now, with reasons; never the control."""
    crossings: dict[str, str] = {}
    relative = any(rail.worse_than_control_by is not None for rail in experiment.guardrails)
    compared: ByArm = comparable(by_arm) if relative else {}
    for name, own in by_arm.items():
        if name == experiment.base or name in state.stopped:
            continue
        for rail in experiment.guardrails:
            if rail.worse_than_control_by is None:
                seen = _crossed(rail, own, experiment.prices)
            else:
                control = compared.get(experiment.base, ())
                seen = _worse(rail, compared[name], control, experiment.prices)
            if seen is not None:
                crossings[name] = f"{rail}: {seen}"
                break
    return crossings


def _worse(
    rail: Guardrail,
    requests: Sequence[RequestRecord],
    control: Sequence[RequestRecord],
    prices: TokenPrices,
) -> str | None:
    """Return a text with the means if the arm is surely worse than the control by more than the
    limit, else None."""
    assert rail.worse_than_control_by is not None
    own, other = (sample(each, rail.metric, prices) for each in (requests, control))
    if min(own.count, other.count) < rail.min_units:
        return None
    _, best = difference_interval(own, other, rail.alpha).ends(METRICS[rail.metric].sign)
    if -best <= rail.worse_than_control_by:
        return None
    return f"{own.mean:.4g} against {other.mean:.4g} of {other.count} units"


def _crossed(rail: Guardrail, requests: Sequence[RequestRecord], prices: TokenPrices) -> str | None:
    """Return a text with the observed values if the limit is surely crossed, else None."""
    own = sample(requests, rail.metric, prices)
    if own.count < rail.min_units:
        return None
    if rail.at_least is not None:
        censored = any(one.outcome is not None and one.outcome.censored for one in requests)
        crossed = not (rail.metric in TIMES and censored) and _below(own, rail.at_least, rail.alpha)
        return f"{own.mean:.4g} over {own.count} units" if crossed else None
    assert rail.at_most is not None
    if rail.quantile is None:
        crossed = _above(own, rail.at_most, rail.alpha)
        return f"{own.mean:.4g} over {own.count} units" if crossed else None
    # Requests of one unit are correlated, so units are counted. The test is exact if all requests
    # of each unit are slow or none is; else it uses the ratio of slow requests to all, over units.
    slow = values(requests, rail.metric, prices).beyond(rail.at_most)
    if not _above(slow.sample((0.0, 1.0)), 1 - rail.quantile, rail.alpha):
        return None
    return f"{int(slow.above.sum())} of {len(slow.above)} requests took longer"


def _above(own: Sample, limit: float, alpha: float) -> bool:
    """Return whether the mean is surely above the limit."""
    if own.binary:  # one request per unit: exact for any number of units
        return proportion_exceeds(int(own.values.sum()), own.count, limit, alpha)
    return mean_interval(own, alpha).low > limit


def _below(own: Sample, limit: float, alpha: float) -> bool:
    if own.binary:
        return _above(Sample(1 - own.values, own.extremes), 1 - limit, alpha)
    return mean_interval(own, alpha).high < limit
