"""Decisions: when one on a run is due, and the state that follows from the run's log.

A decision reads every request of the run. So it is due once the events since the last one are
`NEWS` of the requests, which makes the work per event constant. With fewer events it is due
`WAIT_S` after the last one, so that no stop of an arm and no step waits longer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from orchestrator.experiments.documents import Experiment, ExperimentState, StoppedArm
from orchestrator.experiments.guardrails import crossed_guardrails
from orchestrator.experiments.outcome_log import LogReader, RequestRecord, analysis_set
from orchestrator.experiments.runs import Run

NEWS: Final = 0.01  # events since the last decision that make another due, as a share of requests
WAIT_S: Final = 60.0  # seconds after a decision until any event makes another due


@dataclass(frozen=True, slots=True)
class Decision:
    """When a decision was made, after how many events, and at which stage of the run."""

    at: float
    events: int
    stage: tuple[int, int]


def decision_at(run: Run, reader: LogReader, at: float) -> Decision:
    return Decision(at, reader.events, _stage(run))


def is_due(run: Run, last: Decision | None, reader: LogReader, at: float) -> bool:
    """Return whether enough events came since the last decision, or the ramp's next step is due."""
    if last is None:
        return True
    ramp, state = run.experiment.ramp, run.state
    if ramp is not None and state.step < len(ramp.steps) - 1:
        due = state.step_since + ramp.hold_s
        if at >= due and (last.at < due or last.stage != _stage(run)):
            return True
    news = reader.events - last.events
    late = at - last.at >= WAIT_S
    return news > 0 and (late or news >= NEWS * reader.outcomes.count)


def _stage(run: Run) -> tuple[int, int]:
    """Return the step of the ramp, and the number of stopped arms."""
    return run.state.step, len(run.state.stopped)


def decide(
    experiment: Experiment, state: ExperimentState, requests: Sequence[RequestRecord], at: float
) -> tuple[ExperimentState, str]:
    """Return the state that follows from a run's log, and the action: "guardrail", "ramp" or "".

    If the store dropped requests, guardrails use the rest, so an arm that becomes bad late is
    still stopped.
    """
    analysed = analysis_set(requests, experiment.weights)
    crossed = crossed_guardrails(experiment, state, analysed.by_arm)
    if crossed:
        stops = {arm: StoppedArm(at=at, why=why) for arm, why in crossed.items()}
        return state.model_copy(update={"stopped": {**state.stopped, **stops}}), "guardrail"
    units = {
        name: len({one.exposure.unit for one in own if one.exposure.at > state.step_since})
        for name, own in analysed.by_arm.items()
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
    if live == [experiment.base] or at < state.step_since + ramp.hold_s:
        return None
    if any(units.get(name, 0) < ramp.units for name in live):
        return None
    return state.model_copy(update={"step": state.step + 1, "step_since": at})
