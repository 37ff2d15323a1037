"""Additions to the `/openapi.json` that FastAPI makes.

FastAPI describes routes and their parameters. This module adds the bodies, which the routes read
themselves in bounded size, and each policy's parameters, with the deployment's values as defaults.
Answers have OpenAI's and Anthropic's forms; here they are objects.
"""

from __future__ import annotations

from importlib import metadata
from typing import Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from orchestrator.http.api import KEY_HEADERS
from orchestrator.http.body import Json, Parameters
from orchestrator.http.service import Service

_REF: Final = "#/components/schemas/"
_bodies: Final[dict[str, type[BaseModel]]] = {}  # by name: all that routes were described with


def described(
    summary: str, body: type[BaseModel] | None = None, *, status: int = 200, streams: bool = False
) -> Json:
    """Return the arguments of a route's decorator."""
    events = {"content": {"text/event-stream": {"schema": {"type": "string"}}}}
    extra: Json = {}
    if body is not None:
        _bodies[body.__name__] = body
        content = {"application/json": {"schema": {"$ref": _REF + body.__name__}}}
        extra = {"requestBody": {"required": True, "content": content}}
    return {
        "summary": summary,
        "response_model": Json,
        "status_code": status,
        "responses": {status: events} if streams else {},
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
    kinds = [(body, "validation") for body in _bodies.values()]
    _, made = models_json_schema(kinds, ref_template=_REF + "{model}")  # type: ignore[arg-type]
    schemas: dict[str, Json] = {**document["components"]["schemas"], **made["$defs"]}
    policies = [
        {"$ref": _REF + _policy(schemas, service, name)}
        for name in service.planner.catalog.policies
    ]
    for name, body in _bodies.items():
        if issubclass(body, Parameters):
            schemas[name]["properties"]["policy"]["anyOf"] = policies
    keys = {"type": "http", "scheme": "bearer", "description": "an API key, if there are any"}
    others = {name: {"type": "apiKey", "in": "header", "name": name} for name in KEY_HEADERS}
    schemes = {"key": keys, **others}
    document["components"] = {"schemas": schemas, "securitySchemes": schemes}
    document["security"] = [{}, *({name: []} for name in schemes)]
    return document


def _policy(schemas: dict[str, Json], service: Service, name: str) -> str:
    """Add a policy's parameters to `schemas`; return their name there."""
    kind = service.planner.catalog.policies[name]
    schema = kind.model_json_schema(ref_template=_REF + "{model}")
    schemas.update(schema.pop("$defs", {}))
    values = service.planner.defaults[name].model_dump(mode="json")
    for parameter, about in schema["properties"].items():
        about["default"] = values[parameter]
    schema["title"] = f"policy {name}"
    schema["properties"]["name"] = {"const": name, "description": "with the model baton"}
    schemas[f"policy.{name}"] = schema
    return f"policy.{name}"
