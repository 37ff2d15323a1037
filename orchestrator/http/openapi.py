"""`GET /openapi.json`: the service's own description, made of what checks its requests.

Request bodies are the pydantic models that parse them, a policy's parameters those of its class
with the deployment file's values as defaults; answers stand in `answers.yaml`. `described` is what
a route says of itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import yaml
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from orchestrator.http.auth import OPEN_PATHS, READ_METHODS, USER_PATHS, is_observers
from orchestrator.http.schemas import GenerationRequest
from orchestrator.http.service import Service

Json = dict[str, Any]
HINT: Final = "a hint: passes, and changes nothing"
UNSUPPORTED: Final = "not supported: accepted where it asks for nothing"
ANSWERS: Final = Path(__file__).with_name("answers.yaml")
_REF: Final = "#/components/schemas/"
_bodies: Final[dict[str, type[BaseModel]]] = {}  # by name: all that routes were described with


def _ref(name: str) -> Json:
    return {"$ref": _REF + name}


_EVENTS: Final = {"description": "events; the data of each is JSON, or [DONE] at the end"}
_ERRORS: Final = {
    400: "refused: the message says why, `param` where",
    401: "no valid API key",
    403: "this needs another kind of key: the message says which",
    404: "there is none of that name",
    408: "the body did not arrive in time",
    409: "somebody else changed it in the same moment: read it again",
    413: "the body is too large",
    421: "without API keys a service on loopback answers to the names of this machine alone",
    429: "all places are taken; Retry-After says when to try again",
    500: "failed",
    503: "not available now; Retry-After says when to try again",
}


def described(
    summary: str,
    body: type[BaseModel] | None = None,
    answer: str = "Object",
    *,
    status: int = 200,
    errors: Sequence[int] = (),
    streams: bool = False,
    kind: str = "application/json",
) -> Json:
    """What a route's decorator is told: what it does, its body, its answer by name, and the
    errors of its own (those that all such routes have, `describe` adds)."""
    content: Json = {
        kind: {"schema": _ref(answer) if kind == "application/json" else {"type": "string"}}
    }
    if streams:
        content["text/event-stream"] = {"schema": _EVENTS}
    extra: Json = {}
    if body is not None:
        _bodies[body.__name__] = body
        form = {"application/json": {"schema": _ref(body.__name__)}}
        extra = {"requestBody": {"required": True, "content": form}}
    return {
        "summary": summary,
        "openapi_extra": extra,
        "status_code": status,
        "responses": {
            status: {"description": "the answer", "content": content},
            **{error: _error(error) for error in errors},
        },
    }


def describe(app: FastAPI, service: Service) -> Json:
    """The OpenAPI document of an application's routes as they are now."""
    document: Json = get_openapi(
        title="Baton",
        version=metadata.version("baton"),
        summary="A large and a small reasoning model share one chain of thought.",
        routes=app.routes,
    )
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            answers = operation["responses"]
            answers.pop("422", None)  # a wrong parameter is 400 here
            for status in _errors(path, method.upper(), operation):
                answers.setdefault(str(status), _error(status))
            if service.loopback:
                answers["421"] = _error(421)
    kinds = [(body, "validation") for body in _bodies.values()]
    _, made = models_json_schema(kinds, ref_template=_REF + "{model}")  # type: ignore[arg-type]
    schemas: dict[str, Json] = {
        **yaml.safe_load(ANSWERS.read_text(encoding="utf-8")),
        **made["$defs"],
    }
    names = [_policy(schemas, service, name) for name in service.policies]
    for name, body in _bodies.items():
        if issubclass(body, GenerationRequest):
            _complete(schemas[name], body, names)
    keys = {"type": "http", "scheme": "bearer", "description": "an API key, where there are any"}
    document["components"] = {"schemas": schemas, "securitySchemes": {"key": keys}}
    document["security"] = [{}, {"key": []}]
    return document


def _errors(path: str, method: str, operation: Json) -> Iterator[int]:
    """The statuses of errors that may meet any request of this kind."""
    yield 500
    reads = method in READ_METHODS
    if path not in OPEN_PATHS:
        yield 401
        if not reads or is_observers(path):
            yield 403
    if "requestBody" in operation:
        yield from (400, 408, 413)
    if any(parameter["in"] == "query" for parameter in operation.get("parameters", ())):
        yield 400
    if not reads and path not in USER_PATHS:
        yield from (409, 503)


def _error(status: int) -> Json:
    return {
        "description": _ERRORS[status],
        "content": {"application/json": {"schema": _ref("Error")}},
    }


def _policy(schemas: dict[str, Json], service: Service, name: str) -> str:
    """Add a policy's parameters to `schemas`; under which name."""
    schema = service.policies[name].model_json_schema(ref_template=_REF + "{model}")
    schemas.update(schema.pop("$defs", {}))
    values = service.default(name).model_dump(mode="json")
    for parameter, about in schema["properties"].items():
        about["default"] = values[parameter]
    schema["title"] = f"policy {name}"
    schema["properties"]["name"] = {"const": name, "description": "with the model baton"}
    schemas[f"policy.{name}"] = schema
    return f"policy.{name}"


def _or_null(schema: Json) -> Json:
    """A schema that allows null beside what it allows."""
    about: Json = {
        name: schema[name] for name in ("title", "description", "default") if name in schema
    }
    rest = {name: one for name, one in schema.items() if name not in about}
    ways = rest["anyOf"] if rest.keys() == {"anyOf"} else [rest]
    null = {"type": "null"}
    return {**about, "anyOf": ways if null in ways else [*ways, null]}


def _complete(schema: Json, body: type[GenerationRequest], policies: list[str]) -> None:
    """Add what a body may hold beside its fields, and what its `policy` may."""
    properties = schema["properties"]
    properties["policy"]["anyOf"] = [_ref(name) for name in policies]
    for name in properties.keys() - schema["required"]:
        properties[name] = _or_null(properties[name])
    for name in sorted(body.hints - properties.keys()):
        properties[name] = {"description": HINT}
    unsupported: Mapping[str, tuple[object, ...]] = body.unsupported
    for name, harmless in unsupported.items():
        if name not in properties:
            properties[name] = {"enum": [*harmless, None], "description": UNSUPPORTED}
