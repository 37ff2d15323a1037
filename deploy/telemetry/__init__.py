"""The telemetry of a running service: metrics, logs, spans.

In reading order:

- `metrics`: each replica's series, on its Ray node's metrics port and in the text of /metrics.
- `logs`: Baton's lines in Ray Serve's log.
- `tracing`: spans to an OpenTelemetry collector.
"""
