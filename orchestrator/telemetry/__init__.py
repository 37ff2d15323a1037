"""Metrics, spans and log fields of requests, read from their `ResponseAccumulator` at the end.

In reading order:

- `metrics`: the process's Prometheus series.
- `spans`: OpenTelemetry spans of a request, its steps and their calls.
- `logs`: ids that every line of a request's log carries.
"""
