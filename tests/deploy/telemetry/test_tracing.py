"""Spans over OTLP/HTTP to a collector, which a deployment file names."""

from __future__ import annotations

import gzip
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import trustme
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from pydantic import ValidationError

from deploy.service.config import Tracing, explain
from deploy.telemetry.tracing import open_spans
from tests.orchestrator.serving import client, service, serving

REQUEST = "chat specreason"


class Collector:
    """What an OpenTelemetry collector would have received."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.spans: list[Any] = []
        self.services: set[str] = set()
        self.headers: list[dict[str, str]] = []

    def add(self, headers: dict[str, str], body: bytes) -> None:
        packed = headers.get("content-encoding") == "gzip"
        told = ExportTraceServiceRequest.FromString(gzip.decompress(body) if packed else body)
        self.headers.append(headers)
        for resource in told.resource_spans:
            values = {one.key: one.value.string_value for one in resource.resource.attributes}
            self.services.add(values["service.name"])
            for scope in resource.scope_spans:
                self.spans.extend(scope.spans)


@contextmanager
def collector(authority: trustme.CA | None = None) -> Iterator[Collector]:
    """A small receiver of OTLP over HTTP on this machine; by https with an authority."""

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            found.add({name.lower(): value for name, value in self.headers.items()}, body)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    scheme = "http"
    if authority is not None:
        scheme, tls = "https", ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("127.0.0.1").configure_cert(tls)
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    found = Collector(f"{scheme}://127.0.0.1:{server.server_port}/v1/traces")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        thread.join()


def tracing(there: Collector) -> Tracing:
    return Tracing.model_validate({"endpoint": there.url})


def ask(spans: Any, **more: Any) -> None:
    with serving(service(spans=spans)) as url:
        client(url).chat.completions.create(
            model="specreason", messages=[{"role": "user", "content": "How many?"}], **more
        )


def test_over_the_wire(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-key=secret, x-team = ours")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    with collector() as there:
        spans, end = open_spans(tracing(there))
        ask(spans)
        end()
    assert {span.name for span in there.spans} == {REQUEST, "step", "generate", "classify"}
    by_id = {span.span_id: span for span in there.spans}
    parents = {
        (span.name, by_id[span.parent_span_id].name) for span in there.spans if span.parent_span_id
    }
    assert parents == {
        ("step", REQUEST),
        ("generate", REQUEST),
        ("generate", "step"),
        ("classify", "step"),
    }
    assert there.services == {"mine"}
    assert there.headers[0]["x-key"] == "secret"
    assert there.headers[0]["x-team"] == "ours"


OURS, THEIRS = "SSL_CERT_FILE", "OTEL_EXPORTER_OTLP_CERTIFICATE"
VARIABLES = (OURS, THEIRS, "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")


@pytest.mark.parametrize(
    ("variables", "arrive"),
    [
        ({}, False),
        ({OURS: "company"}, True),
        ({OURS: "other"}, False),
        ({THEIRS: "company"}, True),
        ({THEIRS: "company", OURS: "other"}, True),
    ],
)
def test_a_companys_own_authority(
    variables: dict[str, str], arrive: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "company.pem")
    trustme.CA().cert_pem.write_to_path(tmp_path / "other.pem")
    for name, file in variables.items():
        monkeypatch.setenv(name, str(tmp_path / f"{file}.pem"))
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    with collector(authority) as there:
        spans, end = open_spans(tracing(there))
        ask(spans)
        end()
    assert bool(there.spans) == arrive


@pytest.mark.parametrize(("flag", "arrive"), [("01", True), ("00", False)])
def test_the_client_decides_what_is_sampled(
    flag: str, arrive: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_always_off")
    parent = f"00-{'a' * 32}-{'b' * 16}-{flag}"
    with collector() as there:
        spans, end = open_spans(tracing(there))
        ask(spans, extra_headers={"traceparent": parent})
        ask(spans)  # of those without a parent, none
        end()
    assert there.services <= {"baton"}
    assert {span.trace_id.hex() for span in there.spans} == ({"a" * 32} if arrive else set())


def test_a_collector_that_is_down_costs_no_request() -> None:
    with collector() as there:
        pass
    spans, end = open_spans(tracing(there))
    ask(spans)
    threading.Thread(target=end, daemon=True).start()  # it tries for a while


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "endpoint: is missing"),
        ({"endpoint": "collector:4317"}, "endpoint: must be a URL of 'http' or 'https'"),
        ({"endpoint": "http://"}, "endpoint: must be a URL, empty host"),
        ({"endpoint": 4317}, "endpoint: must be a string or URL"),
        ({"endpoint": "http://x", "sample": 1}, "sample: unknown field"),
    ],
)
def test_what_is_wrong_is_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as info:
        Tracing.model_validate(given)
    assert message in explain(info.value)
