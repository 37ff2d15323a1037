"""The HTTP surface that belongs to answering: OpenAI-compatible, with SSE.

    POST /v1/chat/completions      GET /v1/models  /v1/models/{id}  /v1/traces/{id}
    GET /health (alive)  /ready (the worker pools answer)  /metrics (Prometheus)

Requests: `schemas`. Errors: `problems`. Keys and request ids: `gate`. The answering: `answer`.
There is no /docs and no /openapi.json: the shapes are OpenAI's.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from typing import Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from orchestrator.answer import Answer
from orchestrator.errors import InvalidRequest, UnknownPolicy
from orchestrator.gate import Gate
from orchestrator.refusals import RETRY_AFTER_S, Problem, Refused, problem
from orchestrator.render import Order
from orchestrator.schemas import EFFORT, ChatRequest, parse_chat, path
from orchestrator.service import Service, ServiceLimits
from orchestrator.types import Limits

log = logging.getLogger(__name__)

TRACE: Final = ("traceparent", "tracestate")
READY_S: Final = 5.0  # seconds after which a pool that does not answer counts as not ready


def create_app(service: Service) -> FastAPI:
    """The ASGI application; more routes may be added to it, all behind the same gate."""
    app = FastAPI(
        title="Baton", openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False
    )
    app.add_middleware(Gate, service=service)
    app.add_exception_handler(HTTPException, _http_problem)
    app.add_exception_handler(RequestValidationError, _validation_problem)
    born = int(time.time())

    def card(model: str) -> dict[str, object]:
        return {
            "id": model,
            "object": "model",
            "created": born,
            "owned_by": "baton",
            "speculation": dict(service.speculation),
        }

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        _want_json(request)
        asked = parse_chat(await _body(request, service.limits))
        return Answer(service, _order(service, request, asked))

    @app.get("/v1/models")
    async def models() -> Response:
        return JSONResponse({"object": "list", "data": [card(name) for name in service.models]})

    @app.get("/v1/models/{model:path}")
    async def model(model: str) -> Response:
        if model not in service.models:
            raise UnknownPolicy(f"the model {model[:64]!r} does not exist")
        return JSONResponse(card(model))

    @app.get("/v1/traces/{trace_id}")
    async def trace(trace_id: str) -> Response:
        record = await service.traces.get(trace_id)
        if record is None:
            raise Refused(404, "no such trace, or no longer kept", code="trace_not_found")
        return Response(record, media_type="application/json")

    @app.get("/health")
    async def health() -> Response:
        return JSONResponse({"status": "ok"})

    @app.get("/ready")
    async def ready() -> Response:
        return await _readiness(service)

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(await service.exposition(), media_type=CONTENT_TYPE_LATEST)

    return app


def _order(service: Service, request: Request, asked: ChatRequest) -> Order:
    """The request in Baton's words.

    Raises:
        UnknownPolicy, InvalidRequest: a model or a parameter that cannot be had here.
    """
    limits = service.limits
    if asked.cap is not None and asked.cap > limits.max_tokens_cap:
        param = "max_completion_tokens" if asked.max_tokens is None else "max_tokens"
        raise InvalidRequest(
            f"{param}: this service makes at most {limits.max_tokens_cap} tokens", param=param
        )
    tokens = asked.cap or limits.max_tokens
    share = EFFORT[asked.reasoning_effort] if asked.reasoning_effort else None
    budget = None if share is None else max(1, int(share * tokens))
    return Order(
        trace_id=secrets.token_hex(16),
        request_id=request.state.request_id,
        created=int(time.time()),
        model=asked.model,
        choice=service.choose(asked.model, asked.policy, budget),
        speculation=service.speculation,
        messages=asked.conversation,
        sampling=asked.sampling,
        limits=Limits(tokens, None, limits.deadline_s, tuple(asked.stop)),
        stream=asked.stream,
        include_usage=asked.stream_options is not None and asked.stream_options.include_usage,
        user=asked.user,
        metadata=asked.metadata,
        key=request.state.key,
        caller={name: value for name, value in request.headers.items() if name in TRACE},
    )


def _want_json(request: Request) -> None:
    """Refuse what a browser would post across origins without asking: forms and plain text."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise InvalidRequest(
            "the body must be JSON (Content-Type: application/json)", code="invalid_content_type"
        )


async def _body(request: Request, limits: ServiceLimits) -> bytes:
    """The whole body.

    Raises:
        Refused: 413, it is too large; 408, it did not arrive in time.
    """
    too_large = Refused(
        413, f"the body is larger than {limits.body_bytes} bytes", code="request_too_large"
    )
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced[:20]) > limits.body_bytes:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(limits.body_s):
            async for piece in request.stream():
                body += piece
                if len(body) > limits.body_bytes:
                    raise too_large
    except TimeoutError:
        raise Refused(408, "the body did not arrive in time", code="request_timeout") from None
    return bytes(body)


async def _readiness(service: Service) -> Response:
    try:
        async with asyncio.timeout(READY_S):
            pools = dict(await service.ready())
    except Exception as error:
        log.warning("readiness could not be told: %s", type(error).__name__)
        pools = {"workers": False}
    if all(pools.values()):
        return JSONResponse({"ready": True, "workers": pools})
    told = Problem(503, "not ready yet", "server_error", code="not_ready")
    return JSONResponse(
        {"ready": False, "workers": pools, **told.body},
        status_code=503,
        headers={"retry-after": str(RETRY_AFTER_S)},
    )


async def _http_problem(_: Request, error: Exception) -> Response:
    return problem(error).response()


async def _validation_problem(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    place = path(tuple(part for part in first["loc"] if part != "body")) or None
    return Problem(400, str(first["msg"]), param=place, code="invalid_value").response()
