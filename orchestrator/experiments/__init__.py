"""Experiments: policies compared on live requests, in A/B tests, bandits and shadow arms.

- `documents`: what an experiment is: arms, goal, guardrails, ramp; and the state of its run.
- `assignment`: which arm a unit gets, by a salted hash.
- `runs`: experiments in the store: start, change, stop.
- `experimenter`: a replica's part: enroll requests, record events, act on what they show.
- `shadows`: shadow arms, which answer a request again while the machine is idle.
- `outcome_log`: exposures, outcomes and rewards, joined by request.
- `metrics`: the metrics that arms are compared by.
- `answer_equality`: whether two answers have the same value.
- `answer_values`: the value that an answer writes.
- `samples`: a metric's values by unit: mean, variance, the delta method for ratios.
- `sequential`: confidence sequences, sample ratio mismatch, fixed-horizon tests.
- `guardrails`: when an arm is stopped, and when the ramp takes its next step.
- `bandit`: Thompson sampling within bounds, and doubly robust estimates.
- `report`: the readout: sample ratio, comparisons, bounds, verdicts.
- `readouts`: past readouts of a run, for a plot over time.
"""
