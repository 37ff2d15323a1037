"""The service's description of itself: complete, true, and readable without anything else."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from starlette.routing import Route

from orchestrator.http.app import create_app
from policies import POLICIES
from tests.orchestrator.serving import HTTP, asking, service, serving

HIDDEN = {"/docs", "/openapi.json", "/", "/ui", "/ui/{file:path}"}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving(service(params={"specreason": {"threshold": 3}})) as url:
        yield url


@pytest.fixture(scope="module")
def document(url: str) -> Any:
    reply = HTTP.get(f"{url}/openapi.json")
    assert reply.status_code == 200
    return reply.json()


def mistakes(document: Any, schema: Any, value: Any) -> list[str]:
    whole = {**schema, "components": document["components"]}
    return [error.message for error in Draft202012Validator(whole).iter_errors(value)]


def body_schema(document: Any, path: str) -> Any:
    content = document["paths"][path]["post"]["requestBody"]["content"]
    return content["application/json"]["schema"]


def test_every_path_is_described(document: Any) -> None:
    operations = {
        (path, method.upper()): one
        for path, methods in document["paths"].items()
        for method, one in methods.items()
    }
    assert operations.keys() == {
        (re.sub(r":path", "", route.path), method)
        for route in create_app(service()).routes
        if isinstance(route, Route) and route.path not in HIDDEN
        for method in route.methods or ()
        if method != "HEAD"
    }
    created = {("/v1/policies", "POST"), ("/v1/experiments", "POST")}
    for place, one in operations.items():
        assert one["summary"]
        assert one["responses"].keys() == {"201" if place in created else "200", "default"}
        error = one["responses"]["default"]["content"]["application/json"]["schema"]
        assert error == {"$ref": "#/components/schemas/Error"}


def test_every_reference_leads_somewhere(document: Any) -> None:
    schemas = document["components"]["schemas"]
    found = set(re.findall(r'"\$ref": "([^"]+)"', json.dumps(document)))
    assert len(found) > 20
    assert found <= {f"#/components/schemas/{name}" for name in schemas}
    for schema in schemas.values():
        Draft202012Validator.check_schema(schema)


TURNS = [
    {"role": "developer", "content": [{"type": "text", "text": "hi"}]},
    asking()["messages"][0],
]
BODIES: list[tuple[str, dict[str, Any], bool]] = [
    ("chat/completions", asking(), True),
    ("chat/completions", asking(messages=TURNS, stop="x", n=1, store=True, tools=[]), True),
    ("chat/completions", asking(policy={"threshold": 5}), True),
    ("chat/completions", asking(policy={"name": "specreason", "threshold": 5}), True),
    ("chat/completions", asking(stream=True, stream_options={"include_usage": True}), True),
    ("chat/completions", asking(n=0), False),
    ("chat/completions", asking(temperature=3), False),
    ("chat/completions", asking(policy={"treshold": 5}), False),
    ("chat/completions", {"model": "baton"}, False),
    ("completions", {"model": "large-only", "prompt": "2+2="}, True),
    ("completions", {"model": "large-only", "prompt": [[1, 2]], "echo": True}, True),
    ("completions", {"model": "large-only", "prompt": 5}, False),
    ("responses", {"model": "baton", "input": "hi", "reasoning": {"effort": "low"}}, True),
    ("responses", {"model": "baton", "input": [{"role": "user", "content": "hi"}]}, True),
    ("responses", {"model": "baton", "input": "hi", "tools": [{"type": "function"}]}, False),
    ("messages", asking(max_tokens=9), True),
    ("messages", asking(max_tokens=9, system=[{"type": "text", "text": "hi"}]), True),
    ("messages", asking(max_tokens=9, thinking={"type": "adaptive"}, speed="fast"), True),
    ("messages", asking(), False),
    ("messages/count_tokens", asking(), True),
    (
        "responses",
        {"model": "baton", "input": "hi", "include": ["reasoning.encrypted_content"]},
        True,
    ),
    ("feedback", {"trace_id": "a", "reward": 1}, True),
    ("feedback", {"trace_id": "a", "reward": 2}, False),
    ("policies", {"policy": "specreason", "params": {"threshold": 1}}, True),
    ("policies", {"name": "specreason"}, False),
    ("policies/rollback", {"to": "specreason@1", "note": "why"}, True),
    ("policies/rollback", {"to": 1}, False),
]
STATUS = {"policies": 201, "feedback": 404, "policies/rollback": 200}  # 404: there is no such trace


@pytest.mark.parametrize(("path", "body", "right"), BODIES, ids=lambda value: str(value)[:60])
def test_a_body_is_right_by_the_document_where_the_service_takes_it(
    url: str, document: Any, path: str, body: dict[str, Any], right: bool
) -> None:
    found = mistakes(document, body_schema(document, f"/v1/{path}"), body)
    assert (not found) == right, found
    status = HTTP.post(f"{url}/v1/{path}", json=body).status_code
    assert status == (STATUS.get(path, 200) if right else 400)


def test_errors_are_as_described(url: str, document: Any) -> None:
    schema = document["components"]["schemas"]["Error"]
    for path in ("chat/completions", "responses", "messages"):
        refused = HTTP.post(f"{url}/v1/{path}", json={})
        assert refused.status_code == 400
        assert mistakes(document, schema, refused.json()) == []
    assert mistakes(document, schema, {"detail": "?"})


def test_policies_are_described_as_they_are_here(document: Any) -> None:
    schemas = document["components"]["schemas"]
    for name, policy in POLICIES.items():
        assert policy.model_fields.keys() < schemas[f"policy.{name}"]["properties"].keys()
    assert schemas["policy.specreason"]["properties"]["threshold"]["default"] == 3
