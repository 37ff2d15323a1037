"""Sends spans to an OpenTelemetry collector, or to the log, as the deployment file says.

Spans are sent in the background. If a collector is slow or down, spans are lost; no request waits.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from orchestrator.errors import ConfigError

if TYPE_CHECKING:
    from deploy.service.config import Tracing
    from orchestrator.telemetry.spans import Spans


def open_spans(tracing: Tracing) -> tuple[Spans, Callable[[], None]]:
    """Return the maker of spans, and a function that sends the last of them and shuts down.

    Raises:
        ConfigError: `headers_env` names a variable without headers.
    """
    # Imported here: a service without tracing needs none of it.
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter
    from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio

    from orchestrator.telemetry.spans import Spans

    # What `sys.stdout` is now: Serve's log, in a replica.
    exporter: SpanExporter = ConsoleSpanExporter(out=sys.stdout)
    if tracing.exporter == "otlp":
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        exporter = OTLPSpanExporter(
            tracing.endpoint, certificate_file=_authorities(), headers=headers(tracing)
        )
    provider = TracerProvider(
        # Not the process's provider, which Serve may use too.
        sampler=ParentBasedTraceIdRatio(tracing.sample),
        resource=Resource.create({"service.name": tracing.service}),
        shutdown_on_exit=False,
    )
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return Spans(provider.get_tracer("baton")), provider.shutdown


def _authorities() -> str | None:
    """Return the certificates of `SSL_CERT_FILE` or `SSL_CERT_DIR`, which the exporter ignores;
    None if OpenTelemetry's own variables name others."""
    own = ("OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", "OTEL_EXPORTER_OTLP_CERTIFICATE")
    ours = os.environ.get("SSL_CERT_FILE") or os.environ.get("SSL_CERT_DIR")
    return None if any(map(os.environ.get, own)) else ours


def headers(tracing: Tracing) -> dict[str, str]:
    """Return headers for the collector, such as its key, from the variable of `headers_env`.

    Raises:
        ConfigError: the variable does not hold `name=value` pairs, separated by commas.
    """
    if tracing.headers_env is None:
        return {}
    pairs = [pair.partition("=") for pair in os.environ.get(tracing.headers_env, "").split(",")]
    if not all(name.strip() and sign for name, sign, _ in pairs):
        raise ConfigError(
            f"tracing.headers_env: ${tracing.headers_env} must hold name=value pairs, separated by "
            "commas; it is empty or holds something else"
        )
    return {name.strip(): value.strip() for name, _, value in pairs}
