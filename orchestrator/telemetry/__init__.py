"""What is reported about requests, read from each one's `ResponseAccumulator` when it ends.

In reading order:

- `metrics`: the process's Prometheus series.
- `spans`: OpenTelemetry spans of a request, its steps and their calls.
- `logs`: ids that every line of a request's log carries.
"""
