"""What the service's own description allows, and what it does not, sent to the service.

`FUZZ_CASES` is the number of requests. Every answer and every error must have the form that the
description gives, and none is a failure of the service.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
)
from starlette.testclient import TestClient

from orchestrator.http.app import create_app
from orchestrator.http.auth import Access, Keys
from tests.orchestrator.serving import HTTP, service, serving

DOCUMENT = TestClient(create_app(service())).get("/openapi.json").json()
for body in (
    "ChatRequest",
    "CompletionRequest",
    "ResponsesRequest",
    "MessagesRequest",
    "CountRequest",
):  # else all of them are 404, or 400 for an unknown name
    models = ["baton", "large-only", "specreason", "bild", "nonesuch"]
    described = DOCUMENT["components"]["schemas"][body]
    described["properties"]["model"] = {"enum": models}
    described["additionalProperties"] = False
OPERATIONS = [found.ok() for found in schemathesis.openapi.from_dict(DOCUMENT).get_all_operations()]
KINDS = [(operation, GenerationMode.POSITIVE) for operation in OPERATIONS] + [
    (operation, GenerationMode.NEGATIVE)
    for operation in OPERATIONS
    if operation.body or operation.query  # else nothing can be wrong with it
]
CASES = int(os.environ.get("FUZZ_CASES", "300")) // len(KINDS)
CHECKS = (not_a_server_error, content_type_conformance, response_schema_conformance)
OPEN = {"GET /health", "GET /ready"}
USERS = {  # what an API key may do
    "POST /v1/chat/completions",
    "POST /v1/completions",
    "POST /v1/responses",
    "POST /v1/messages",
    "POST /v1/messages/count_tokens",
    "POST /v1/feedback",
    "POST /v1/requests/{request_id}/answer",
    "GET /v1/models",
    "GET /v1/models/{model}",
    "GET /v1/traces",
    "GET /v1/traces/{trace_id}",
}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving(service()) as url:
        yield url
        lines = HTTP.get(f"{url}/metrics").text.splitlines()
        print(*(line for line in lines if line.startswith("baton_http_responses_total")), sep="\n")


@pytest.fixture(scope="module")
def closed() -> Iterator[str]:
    access = Access(Keys(["sk-user"]), Keys(["sk-admin"]), Keys(["sk-eye"]))
    with serving(service(access=access)) as url:
        yield url


def send(operation: Any, mode: GenerationMode, cases: int, url: str, key: str = "") -> list[int]:
    """Send requests; return the statuses of the answers."""
    headers, statuses = {"authorization": f"Bearer {key}"} if key else {}, list[int]()

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(max_examples=cases, suppress_health_check=list(HealthCheck))
    def validate(case: Any) -> None:
        reply = case.call_and_validate(base_url=url, headers=headers, checks=CHECKS, timeout=120)
        statuses.append(reply.status_code)

    validate()
    return statuses


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("operation", "mode"), KINDS, ids=lambda one: getattr(one, "label", one))
def test_every_answer_has_the_form_that_is_described(
    url: str, operation: Any, mode: GenerationMode
) -> None:
    send(operation, mode, CASES, url)


def refusal(label: str, key: str) -> int | None:
    """The status with which a key is refused; None: it may do that."""
    if label in OPEN or key == "sk-admin":
        return None
    if key == "sk-none":
        return 401
    may = label in USERS if key == "sk-user" else label.startswith("GET ")
    return None if may else 403


@pytest.mark.parametrize("key", ["sk-user", "sk-eye", "sk-admin", "sk-none"])
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda one: one.label)
def test_a_key_does_what_its_kind_may(closed: str, operation: Any, key: str) -> None:
    """Whose key it is counts before anything else, so one case tells."""
    statuses = send(operation, GenerationMode.POSITIVE, 1, closed, key)
    refused = {status if status in (401, 403) else None for status in statuses}
    assert refused == {refusal(operation.label, key)}
