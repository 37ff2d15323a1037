"""A/B tests and shadow arms: policies compared on live requests.

- `documents`: an experiment's arms, goal, guardrails and ramp, and the state of its run.
- `runs`: experiments in the store: start, change, stop.
- `assignment`: the arm of a unit, by a keyed hash, and so a request's part in an experiment.
- `recorder`: a replica's events: exposures, outcomes, rewards.
- `outcome_log`: those events, read back and joined by request.
- `shadows`: shadow arms, which answer a request again while the machine is idle.
- `metrics`: the metrics that arms are compared by, and their values by unit.
- `sequential`: tests valid at any number of looks: confidence sequences, the sample ratio.
- `report`: sample ratio, comparisons, bounds, verdicts.
- `guardrails`: limits that stop an arm.
- `decisions`: the state that follows from a run's log.
- `experimenter`: a replica's task that reads the log and decides.
"""
