"""The HTTP surface that belongs to answering: OpenAI-compatible, with SSE.

    POST /v1/chat/completions  /v1/feedback     GET /v1/models  /v1/models/{id}  /v1/traces/{id}
    GET /health (alive)  /ready (the worker pools answer)  /metrics (Prometheus)

Requests: `schemas`. Errors: `refusals`. Keys and request ids: `gate`. The answering: `answer`.
Administration: `policy_api`, which adds its routes here.
There is no /docs and no /openapi.json: the shapes are OpenAI's.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from orchestrator.errors import InvalidRequest, StoreError, UnknownPolicy
from orchestrator.experiments.experimenter import AssignmentFacts
from orchestrator.http.body import json_body
from orchestrator.http.chat_response import Answer
from orchestrator.http.errors import RETRY_AFTER_S, Problem, Refused, problem
from orchestrator.http.experiment_routes import add_experiment_routes
from orchestrator.http.middleware import Gate
from orchestrator.http.outcomes import OUTCOMES, parse_feedback, reward
from orchestrator.http.policy_routes import add_policy_routes
from orchestrator.http.rendering import COMPLETION, Order, trace_name
from orchestrator.http.schemas import EFFORT, ChatRequest, parse_chat, path
from orchestrator.http.service import Service
from orchestrator.types import Limits

log = logging.getLogger(__name__)

_TRACE_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,128}")
TRACE: Final = ("traceparent", "tracestate")
READY_S: Final = 5.0  # seconds after which a pool that does not answer counts as not ready


def create_app(service: Service) -> FastAPI:
    """The ASGI application; more routes may be added to it, all behind the same gate."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await service.start()
        try:
            yield
        finally:
            await service.stop()

    app = FastAPI(
        title="Baton",
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
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
            "methods": [
                {"name": name, "lossy": told != name} for name, told in service.methods.items()
            ],
        }

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        asked = parse_chat(await json_body(request, service.limits))
        return Answer(service, await _order(service, request, asked))

    @app.get("/v1/models")
    async def models() -> Response:
        return JSONResponse({"object": "list", "data": [card(name) for name in service.models]})

    @app.get("/v1/models/{model:path}")
    async def model(model: str) -> Response:
        if not await service.knows(model):
            raise UnknownPolicy(f"the model {model[:64]!r} does not exist")
        return JSONResponse(card(model))

    @app.get("/v1/traces/{trace_id}")
    async def trace(trace_id: str) -> Response:
        return Response(await _record(service, trace_id), media_type="application/json")

    @app.post("/v1/feedback")
    async def feedback(request: Request) -> Response:
        given = parse_feedback(await json_body(request, service.limits))
        try:
            kept = json.loads(await _record(service, given.trace_id))
        except StoreError:
            kept = {}  # what it is about shows when the store is back; the judgement is kept
        judged = reward(given, kept)
        service.outbox.event(OUTCOMES, judged)
        service.experimenter.rewarded(kept, judged)
        return JSONResponse({"object": "baton.feedback", **given.model_dump()})

    @app.get("/health")
    async def health() -> Response:
        return JSONResponse({"status": "ok"})

    @app.get("/ready")
    async def ready() -> Response:
        return await _readiness(service)

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(await service.exposition(), media_type=CONTENT_TYPE_LATEST)

    add_policy_routes(app, service)
    add_experiment_routes(app, service)
    return app


async def _record(service: Service, trace_id: str) -> bytes:
    """A request's record.

    Raises:
        Refused: 404, there is none, or no longer.
    """
    trace_id, found = trace_id.removeprefix(COMPLETION), None
    if _TRACE_ID.fullmatch(trace_id):
        found = await service.outbox.get(trace_name(trace_id))
    if found is None:
        raise Refused(404, "no such trace, or no longer kept", code="trace_not_found")
    return found


async def _order(service: Service, request: Request, asked: ChatRequest) -> Order:
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
    trace_id, key = secrets.token_hex(16), request.state.key
    facts = AssignmentFacts(
        request=trace_id,
        key=key,
        user=asked.user,
        session=request.headers.get("x-session-id") or None,
        forced=request.headers.get("x-baton-arm"),
    )
    choice = await service.choose(asked.model, asked.policy, budget, facts, asked.speculation)
    return Order(
        trace_id=trace_id,
        request_id=request.state.request_id,
        created=int(time.time()),
        model=asked.model,
        choice=choice,
        speculation=service.decoding(choice),
        messages=asked.conversation,
        sampling=asked.sampling,
        limits=Limits(tokens, None, limits.deadline_s, tuple(asked.stop)),
        stream=asked.stream,
        include_usage=asked.stream_options is not None and asked.stream_options.include_usage,
        user=asked.user,
        metadata=asked.metadata,
        key=key,
        caller={name: value for name, value in request.headers.items() if name in TRACE},
    )


async def _readiness(service: Service) -> Response:
    try:
        async with asyncio.timeout(READY_S):
            pools = dict(await service.ready())
    except Exception as error:
        log.warning("readiness could not be told: %s", type(error).__name__)
        pools = {"workers": False}
    # Without its store the service answers all the same, so it stays ready and says what it lacks;
    # why is for those who have a key (/v1/policies) and for the log.
    degraded = service.degraded is not None
    state = {"workers": pools, "store": not degraded, "degraded": degraded}
    if all(pools.values()):
        return JSONResponse({"ready": True, **state})
    told = Problem(503, "not ready yet", "server_error", code="not_ready")
    return JSONResponse(
        {"ready": False, **state, **told.body},
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
