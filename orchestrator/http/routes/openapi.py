"""Additions to the `/openapi.json` that FastAPI makes.

FastAPI describes routes, their parameters and their answers. This module adds the bodies, which the
routes read themselves in bounded size; the errors for keys and bodies; and each policy's
parameters, with the deployment's values as defaults.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import metadata
from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from orchestrator.http.api import KEY_HEADERS, OPENAI_ERRORS, ErrorForm, error_form
from orchestrator.http.auth import OPEN_PATHS, READ_METHODS, is_for_users, needs_observer
from orchestrator.http.body import Json, Parameters
from orchestrator.http.service import Service

TEXT_ERRORS: Final = (
    403,  # an observer's key
    404,  # no such model
    429,  # no place
    503,  # no worker or no time
)
_REF: Final = "#/components/schemas/"
_bodies: Final[dict[str, type[BaseModel]]] = {}  # by name: all that routes were described with


def described(
    summary: str,
    body: type[BaseModel] | None = None,
    answer: Any = Json,
    *,
    status: int = 200,
    errors: Sequence[int] = (),
    form: ErrorForm = OPENAI_ERRORS,
    streams: bool = False,
) -> Json:
    """Return the arguments of a route's decorator; `describe` adds the errors common to routes."""
    responses: dict[int, Json] = {error: {"model": form.schema} for error in errors}
    if streams:
        responses[status] = {"content": {"text/event-stream": {"schema": {"type": "string"}}}}
    extra: Json = {}
    if body is not None:
        _bodies[body.__name__] = body
        content = {"application/json": {"schema": {"$ref": _REF + body.__name__}}}
        extra = {"requestBody": {"required": True, "content": content}}
    return {
        "summary": summary,
        "response_model": answer,
        "status_code": status,
        "responses": responses,
        "openapi_extra": extra,
    }


def describe(app: FastAPI, service: Service) -> Json:
    """Return the OpenAPI document of the routes that the application has now."""
    document: Json = get_openapi(
        title="Baton",
        version=metadata.version("baton"),
        summary="A large and a small reasoning model share one chain of thought.",
        routes=app.routes,
    )
    for path, operations in document["paths"].items():
        schema = error_form(path).schema.__name__
        error = {"application/json": {"schema": {"$ref": _REF + schema}}}
        for method, operation in operations.items():
            answers = operation["responses"]
            answers.pop("422", None)  # a wrong parameter is 400 here
            for status in _errors(path, method.upper(), operation):
                answers.setdefault(str(status), {"description": "Error", "content": error})
            if service.settings.loopback:
                answers["421"] = {"description": "Misdirected Request", "content": error}
    kinds = [(body, "validation") for body in _bodies.values()]
    _, made = models_json_schema(kinds, ref_template=_REF + "{model}")  # type: ignore[arg-type]
    schemas: dict[str, Json] = {**document["components"]["schemas"], **made["$defs"]}
    policies = [
        {"$ref": _REF + _policy(schemas, service, name)}
        for name in service.planner.catalog.policies
    ]
    for name, body in _bodies.items():
        if issubclass(body, Parameters):
            schemas[name]["properties"]["policy"]["anyOf"] = [*policies, {"type": "null"}]
    for name in ("HTTPValidationError", "ValidationError"):  # the 422 that no route answers
        schemas.pop(name, None)
    keys = {"type": "http", "scheme": "bearer", "description": "an API key, if there are any"}
    others = {name: {"type": "apiKey", "in": "header", "name": name} for name in KEY_HEADERS}
    schemes = {"key": keys, **others}
    document["components"] = {"schemas": schemas, "securitySchemes": schemes}
    document["security"] = [{}, *({name: []} for name in schemes)]
    return document


def _errors(path: str, method: str, operation: Json) -> Iterator[int]:
    """Yield the statuses of errors that any route of this kind may return."""
    yield 500
    reads = method in READ_METHODS
    if path not in OPEN_PATHS:
        yield 401
        if not reads or needs_observer(path):
            yield 403
    if "requestBody" in operation:
        yield from (400, 408, 413)
    if any(parameter["in"] == "query" for parameter in operation.get("parameters", ())):
        yield 400
    if not reads and not is_for_users(path):
        yield from (409, 503)


def _policy(schemas: dict[str, Json], service: Service, name: str) -> str:
    """Add a policy's parameters to `schemas`; return their name there."""
    kind = service.planner.catalog.policies[name]
    schema = kind.model_json_schema(ref_template=_REF + "{model}")
    schemas.update(schema.pop("$defs", {}))
    values = service.planner.default(name).model_dump(mode="json")
    for parameter, about in schema["properties"].items():
        about["default"] = values[parameter]
    schema["title"] = f"policy {name}"
    schema["properties"]["name"] = {"const": name, "description": "with the model baton"}
    schemas[f"policy.{name}"] = schema
    return f"policy.{name}"
