"""A/B tests and shadow arms: policies compared on live requests.

The document:
- `documents`: an experiment's arms, goal, guardrails and ramp, and the state of its run.
- `runs`: experiments in the store: start, change, stop.

Assignment:
- `assignment`: the arm of a unit, by a keyed hash, and so a request's part in an experiment.

Recording:
- `recorder`: a replica's events: exposures, outcomes, rewards.
- `outcome_log`: those events, read back and joined by request.
- `shadows`: shadow arms, which answer a request again while the machine is idle.

Readout:
- `metrics`: the metrics that arms are compared by.
- `samples`: a metric's values by unit: mean, variance, the delta method for ratios.
- `sequential`: tests valid at any number of looks: confidence sequences, the sample ratio.
- `report`: sample ratio, comparisons, bounds, verdicts.
- `readouts`: past readouts of a run, for a plot over time.

Decisions:
- `guardrails`: limits that stop an arm.
- `decisions`: the state that follows from a run's log.
- `experimenter`: a replica's task that reads the log, decides and keeps readouts.
"""
