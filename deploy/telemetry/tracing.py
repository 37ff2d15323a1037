"""Sends spans to the OpenTelemetry collector that the deployment file names.

Spans are sent in the background. If a collector is slow or down, spans are lost; no request waits.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from deploy.service.config import Tracing
    from orchestrator.telemetry.spans import Spans


def open_spans(tracing: Tracing) -> tuple[Spans, Callable[[], None]]:
    """Return the maker of spans, and a function that sends the last of them and shuts down."""
    # Imported here: a service without tracing needs none of it.
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    from orchestrator.telemetry.spans import Spans

    exporter = OTLPSpanExporter(str(tracing.endpoint), certificate_file=_authorities())
    name = os.environ.get("OTEL_SERVICE_NAME") or "baton"
    # Not the process's provider, which Serve may use too.
    provider = TracerProvider(
        resource=Resource.create({"service.name": name}), shutdown_on_exit=False
    )
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return Spans(provider.get_tracer("baton")), provider.shutdown


def _authorities() -> str | None:
    """Return the certificates of `SSL_CERT_FILE` or `SSL_CERT_DIR`, which the exporter ignores;
    None if OpenTelemetry's own variables name others."""
    own = ("OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", "OTEL_EXPORTER_OTLP_CERTIFICATE")
    ours = os.environ.get("SSL_CERT_FILE") or os.environ.get("SSL_CERT_DIR")
    return None if any(map(os.environ.get, own)) else ours
