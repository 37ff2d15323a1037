"""Decisions: the state of a run that follows from its log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from orchestrator.experiments.documents import Experiment, ExperimentState, StoppedArm
from orchestrator.experiments.guardrails import crossed_guardrails
from orchestrator.experiments.outcome_log import RequestRecord, served_by


def decide(
    experiment: Experiment, state: ExperimentState, requests: Sequence[RequestRecord], at: float
) -> tuple[ExperimentState, str]:
    """Return the state that follows from a run's log, and the action: "guardrail", "ramp" or "".

    If the store dropped requests, guardrails use the rest, so an arm that becomes bad late is
    still stopped.
    """
    by_arm = served_by(experiment.weights, requests)
    crossed = crossed_guardrails(experiment, state, by_arm)
    if crossed:
        stops = {arm: StoppedArm(at=at, why=why) for arm, why in crossed.items()}
        return state.model_copy(update={"stopped": {**state.stopped, **stops}}), "guardrail"
    units = {
        name: len({one.exposure.unit for one in own if one.exposure.at > state.step_since})
        for name, own in by_arm.items()
    }
    higher = next_ramp_step(experiment, state, units, at)
    return (state, "") if higher is None else (higher, "ramp")


def next_ramp_step(
    experiment: Experiment, state: ExperimentState, units: Mapping[str, int], at: float
) -> ExperimentState | None:
    """Return the state one step up the ramp; None if it is not due, or there is no further step.

    `units` has the number of units exposed since the last step, by arm.
    """
    ramp = experiment.ramp
    if ramp is None or state.ended is not None or state.step >= len(ramp.steps) - 1:
        return None
    live = [name for name in experiment.weights if name not in state.stopped]
    if (state.stopped and live == [experiment.base]) or at < state.step_since + ramp.hold_s:
        return None
    if any(units.get(name, 0) < ramp.units for name in live):
        return None
    return state.model_copy(update={"step": state.step + 1, "step_since": at})
