"""`GET /openapi.json`: the service's own description, made of what checks its requests.

Request bodies are the pydantic models that parse them, a policy's parameters those of its class
with the deployment file's values as defaults. `described` is what a route says of itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata
from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from orchestrator.http.schemas import GenerationRequest
from orchestrator.http.service import Service

Json = dict[str, Any]
HINT: Final = "a hint: passes, and changes nothing"
UNSUPPORTED: Final = "not supported: accepted where it asks for nothing"
_REF: Final = "#/components/schemas/"
_bodies: Final[dict[str, type[BaseModel]]] = {}  # by name: all that routes were described with


def _object(about: str, **properties: Any) -> Json:
    return {"type": "object", "description": about, "properties": properties}


def _completion(about: str, kind: Json, **choice: Json) -> Json:
    """A completion with one choice, which has these properties beside its place and finish."""
    return _object(
        about,
        id=_TEXT,
        object=kind,
        created=_COUNT,
        model=_TEXT,
        choices=_list(_object("one", index=_COUNT, **choice, finish_reason=_FINISH)),
        usage=_ref("Usage"),
        baton=_ref("Baton"),
    )


def _list(items: Json) -> Json:
    return {"type": "array", "items": items}


def _ref(name: str) -> Json:
    return {"$ref": _REF + name}


_TEXT: Final = {"type": "string"}
_COUNT: Final = {"type": "integer", "minimum": 0}
_FINISH: Final = {"enum": ["stop", "length"]}
_ANSWERS: Final[dict[str, Json]] = {
    "Error": {
        **_object(
            "Every error, as OpenAI has it.",
            error=_object(
                "what was expected, and what came",
                message=_TEXT,
                type=_TEXT,
                param={"type": ["string", "null"]},
                code={"type": ["string", "null"]},
            ),
        ),
        "required": ["error"],
    },
    "Usage": _object(
        "Accepted tokens, and the ends of thought and turn that a model wrote.",
        prompt_tokens=_COUNT,
        completion_tokens=_COUNT,
        total_tokens=_COUNT,
        prompt_tokens_details=_object("", cached_tokens=_COUNT),
        completion_tokens_details=_object("", reasoning_tokens=_COUNT),
    ),
    "Step": _object(
        "A step of the chain: a draft, a rewrite, or a text that a policy put in.",
        author={"enum": ["small", "large", "policy"]},
        text=_TEXT,
        accepted={"type": "boolean"},
        tokens=_COUNT,
        ms={"type": "number"},
        score={"type": ["number", "null"]},
        phase={"enum": ["thought", "answer"]},
    ),
    "Baton": _object(
        "Who wrote what, and what it cost; in a stream, beside the finish reason.",
        trace_id=_TEXT,
        policy=_TEXT,
        version=_COUNT,
        experiment={"type": ["string", "null"]},
        arm={"type": ["string", "null"]},
        speculation={"type": "object"},
        forced={"type": "boolean", "description": "the thought was closed by a cap or a loop"},
        steps=_list(_ref("Step")),
        answer_steps=_list(_ref("Step")),
        metrics={"type": "object"},
    ),
    "ChatCompletion": _completion(
        "OpenAI's chat completion; a stream has chat.completion.chunk objects and ends in [DONE].",
        _TEXT,
        message=_object(
            "the answer, and the accepted thought",
            role={"const": "assistant"},
            content=_TEXT,
            reasoning_content=_TEXT,
        ),
    ),
    "TextCompletion": _completion(
        "OpenAI's text completion.",
        {"const": "text_completion"},
        text=_TEXT,
        logprobs={"type": ["object", "null"]},
    ),
    "ResponseObject": _object(
        "OpenAI's response: a reasoning item, whose summary is the thought, and a message.",
        id=_TEXT,
        object={"const": "response"},
        status={"enum": ["completed", "incomplete"]},
        output=_list({"type": "object"}),
        usage={"type": "object"},
        baton=_ref("Baton"),
    ),
    "Model": _object(
        "A policy, as a model.",
        id=_TEXT,
        object={"const": "model"},
        created=_COUNT,
        owned_by=_TEXT,
        max_model_len={"type": ["integer", "null"], "description": "context in tokens"},
        speculation={"type": "object"},
        methods=_list({"type": "object"}),
    ),
    "ModelList": _object("", object={"const": "list"}, data=_list(_ref("Model"))),
    "Object": {"type": "object"},
}


def described(
    summary: str,
    body: type[BaseModel] | None = None,
    answer: str = "Object",
    *,
    status: int = 200,
    streams: bool = False,
    kind: str = "application/json",
) -> Json:
    """What a route's decorator is told: what it does, its body, and its answer by name."""
    content: Json = {kind: {"schema": _ref(answer) if kind == "application/json" else _TEXT}}
    if streams:
        content["text/event-stream"] = {"schema": _TEXT}
    error = {"content": {"application/json": {"schema": _ref("Error")}}}
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
            "4XX": {"description": "refused; the message says why", **error},
            "5XX": {"description": "failed; Retry-After says when to try again", **error},
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
    for operations in document["paths"].values():
        for operation in operations.values():
            operation["responses"].pop("422", None)  # a wrong parameter is 400 here
    kinds = [(body, "validation") for body in _bodies.values()]
    _, made = models_json_schema(kinds, ref_template=_REF + "{model}")  # type: ignore[arg-type]
    schemas: dict[str, Json] = {**_ANSWERS, **made["$defs"]}
    names = [_policy(schemas, service, name) for name in service.policies]
    for name, body in _bodies.items():
        if issubclass(body, GenerationRequest):
            _complete(schemas[name], body, names)
    keys = {"type": "http", "scheme": "bearer", "description": "an API key, where there are any"}
    document["components"] = {"schemas": schemas, "securitySchemes": {"key": keys}}
    document["security"] = [{}, {"key": []}]
    return document


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


def _complete(schema: Json, body: type[GenerationRequest], policies: list[str]) -> None:
    """Add what a body may hold beside its fields, and what its `policy` may."""
    properties = schema["properties"]
    properties["policy"]["anyOf"] = [_ref(name) for name in policies]
    for name in sorted(body.hints - properties.keys()):
        properties[name] = {"description": HINT}
    unsupported: Mapping[str, tuple[object, ...]] = body.unsupported
    for name, harmless in unsupported.items():
        if name not in properties:
            properties[name] = {"enum": [*harmless, None], "description": UNSUPPORTED}
