"""When an experiment stops an arm by itself, and when its ramp takes the next step.

Both look after every few requests, so a limit counts as crossed only when an always-valid bound
says so: a sound arm is stopped with probability `alpha` at most, however often one looks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.experiments.documents import Experiment, Guardrail, Prices, State, Stop
from orchestrator.experiments.ledger import Request
from orchestrator.experiments.measures import METRICS, parts
from orchestrator.experiments.samples import Sample, sample
from orchestrator.experiments.sequential import difference, exceeds, one_mean


@dataclass(frozen=True, slots=True)
class Crossed:
    """A guardrail that an arm crossed, in words."""

    arm: str
    why: str


def crossed(
    experiment: Experiment, state: State, by_arm: Mapping[str, Sequence[Request]]
) -> list[Crossed]:
    """The arms to stop now; never the control or another that the goal compares with."""
    found = []
    needed = {experiment.base, *(bound.than for bound in experiment.goal.within)}
    for name, requests in by_arm.items():
        if name in needed or name in state.stopped:
            continue
        control = by_arm.get(experiment.base, ())
        for rail in experiment.guardrails:
            told = _crossed(rail, requests, control, experiment)
            if told is not None:
                found.append(Crossed(name, f"{rail}: {told}"))
                break
    return found


def stop(state: State, arms: Sequence[Crossed], at: float) -> State:
    """The state in which these arms are stopped."""
    stops = {one.arm: Stop(at=at, why=one.why) for one in arms if one.arm not in state.stopped}
    return state.model_copy(update={"stopped": {**state.stopped, **stops}})


def next_step(
    experiment: Experiment, state: State, units: Mapping[str, int], at: float
) -> State | None:
    """The state one step up the ramp; None where it is not time, or nothing is left to ramp up.

    `units` counts those each arm has been seen by.
    """
    ramp = experiment.ramp
    if ramp is None or state.ended is not None or state.step >= len(ramp.steps) - 1:
        return None
    live = [name for name in experiment.weights if name not in state.stopped]
    if live == [experiment.base] or at < state.step_since + ramp.hold_s:
        return None
    if any(units.get(name, 0) < ramp.units for name in live):
        return None
    return state.model_copy(update={"step": state.step + 1, "step_since": at})


def _crossed(
    rail: Guardrail,
    requests: Sequence[Request],
    control: Sequence[Request],
    experiment: Experiment,
) -> str | None:
    """What was seen beyond the limit; None while it holds, or may."""
    prices, metric = experiment.prices, METRICS[rail.metric]
    own = sample(requests, rail.metric, prices)
    if own.count < rail.min_units:
        return None
    if rail.worse_than_control_by is not None:
        other = sample(control, rail.metric, prices)
        if other.count < rail.min_units:
            return None
        apart = difference(own, other, rail.alpha, experiment.tuned_for)
        worst = -apart.high if metric.sign > 0 else apart.low
        if worst <= rail.worse_than_control_by:
            return None
        return f"{own.mean:.4g} against {other.mean:.4g} of {other.count} units"
    if rail.quantile is not None:
        assert rail.at_most is not None
        return _slow(rail, rail.at_most, rail.quantile, requests, prices)
    return _absolute(rail, own, experiment.tuned_for)


def _absolute(rail: Guardrail, own: Sample, tuned_for: float) -> str | None:
    told = f"{own.mean:.4g} over {own.count} units"
    limit, upwards = (rail.at_most, True) if rail.at_most is not None else (rail.at_least, False)
    assert limit is not None
    if own.binary:  # one request per unit: exact, also for a handful
        hits = int(own.values.sum())
        share = limit if upwards else 1 - limit
        over = exceeds(hits if upwards else own.count - hits, own.count, share, rail.alpha)
        return told if over else None
    interval = one_mean(own, rail.alpha, tuned_for)
    return told if (interval.low > limit if upwards else interval.high < limit) else None


def _slow(
    rail: Guardrail, limit: float, quantile: float, requests: Sequence[Request], prices: Prices
) -> str | None:
    """A quantile is above a limit just when more than the rest of the requests take longer."""
    times = [above for _, above, _ in parts(requests, rail.metric, prices)]
    slow = sum(ms > limit for ms in times)
    if not exceeds(slow, len(times), 1 - quantile, rail.alpha):
        return None
    return f"{slow} of {len(times)} requests took longer"
