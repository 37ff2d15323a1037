"""The HTTP surface that belongs to answering: OpenAI-compatible, with SSE.

`trace_routes`, `policy_routes`, `experiment_routes` and `console_routes` add theirs here. What
each route says of itself (`described`) is what /openapi.json and /docs show.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Match, Route

from orchestrator.http.body import json_body, read_body
from orchestrator.http.chat_format import ChatFormat
from orchestrator.http.chat_response import ChatResponse
from orchestrator.http.chat_schema import ChatRequest
from orchestrator.http.choice import MakeFormat
from orchestrator.http.completion_format import CompletionFormat
from orchestrator.http.completion_schema import CompletionRequest
from orchestrator.http.console_routes import add_console
from orchestrator.http.context import RequestContext
from orchestrator.http.cors import CrossOrigin
from orchestrator.http.docs_page import HEADERS, page
from orchestrator.http.errors import HttpError, http_error
from orchestrator.http.experiment_routes import add_experiment_routes
from orchestrator.http.feedback import Feedback, is_first_feedback, reward
from orchestrator.http.middleware import RequestMiddleware
from orchestrator.http.openapi import describe, described
from orchestrator.http.policy_routes import add_policy_routes
from orchestrator.http.rendering import REWARDS
from orchestrator.http.responses_format import ResponsesFormat
from orchestrator.http.responses_schema import ResponsesRequest
from orchestrator.http.schemas import GenerationRequest, parse_request
from orchestrator.http.service import Service, no_model
from orchestrator.http.trace_routes import add_trace_routes, read_record
from orchestrator.loop.actions import WorkerName
from orchestrator.validation import body_path, first_error

log = logging.getLogger(__name__)

TEXT_ERRORS: Final = (
    403,  # an arm may not be chosen with this key
    404,  # no such model
    429,  # no place
    503,  # no worker or no time
)
READY_S: Final = 5.0  # seconds after which a pool that does not answer counts as not ready


def create_app(service: Service) -> FastAPI:
    """The ASGI application; routes added to it later are behind the same middleware."""

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
    app.add_middleware(RequestMiddleware, service=service)
    app.add_exception_handler(HTTPException, _routing_error)
    app.add_exception_handler(RequestValidationError, _query_error)
    started = int(time.time())

    def card(model: str, contexts: Mapping[WorkerName, int | None]) -> dict[str, object]:
        return {
            "id": model,
            "object": "model",
            "created": started,
            "owned_by": "baton",
            "max_model_len": service.context_of(model, contexts),
            "speculation": dict(service.speculation),
            "methods": [
                {"name": name, "lossy": label != name} for name, label in service.methods.items()
            ],
        }

    def text_route(
        path: str,
        name: str,
        kind: type[GenerationRequest],
        make: MakeFormat,
        *,
        about: str,
        answer: str,
    ) -> None:
        """Serve requests for a text: of this kind, answered in this form."""

        async def respond(request: Request) -> Response:
            given = await json_body(request, service.limits)
            # In a thread: a second may go by until the grammars of many schemas are known.
            body = await asyncio.to_thread(parse_request, given, kind, strict=service.strict)
            return ChatResponse(service, RequestContext.of(request, body, service.limits), make)

        app.post(
            path, name=name, **described(about, kind, answer, errors=TEXT_ERRORS, streams=True)
        )(respond)

    text_route(
        "/v1/chat/completions",
        "chat",
        ChatRequest,
        partial(ChatFormat, thought_in=service.reasoning_fields),
        about="A chat completion, streamed or not",
        answer="ChatCompletion",
    )
    text_route(
        "/v1/completions",
        "complete",
        CompletionRequest,
        CompletionFormat,
        about="A text or token ids, continued",
        answer="TextCompletion",
    )
    text_route(
        "/v1/responses",
        "respond",
        ResponsesRequest,
        ResponsesFormat,
        about="A response, streamed or not",
        answer="ResponseObject",
    )

    @app.get("/v1/models", **described("Every policy is a model", answer="ModelList"))
    async def models() -> Response:
        contexts = await service.contexts()
        cards = [card(name, contexts) for name in service.models]
        return JSONResponse({"object": "list", "data": cards})

    @app.get("/v1/models/{model:path}", **described("One model", answer="Model", errors=(404, 503)))
    async def model(model: str) -> Response:
        if not await service.knows(model):
            raise no_model(model)
        return JSONResponse(card(model, await service.contexts()))

    @app.post(
        "/v1/feedback",
        **described("What an answer was worth, from 0 to 1", Feedback, errors=(404, 409, 503)),
    )
    async def feedback(request: Request) -> Response:
        body = await read_body(request, service.limits, Feedback)
        # Where the store is away, whose answer it was and which arm gave it are not known: 503.
        _, record = await read_record(service, request, body.trace_id)
        key = request.state.key
        if await is_first_feedback(service.outbox, body, key, service.trace_ttl_s):
            event = reward(body, record, key)
            service.outbox.event(REWARDS, event)
            service.recorder.reward(record, event)
        return JSONResponse({"object": "baton.feedback", **body.model_dump()})

    @app.get("/health", **described("The process lives"))
    async def health() -> Response:
        return JSONResponse({"status": "ok"})

    @app.get("/ready", **described("Both worker pools answer", errors=(503,)))
    async def ready() -> Response:
        return await _readiness(service)

    @app.get("/metrics", **described("Metrics", kind="text/plain"))
    async def metrics() -> Response:
        return Response(await service.metrics_text(), media_type=CONTENT_TYPE_LATEST)

    add_trace_routes(app, service)
    add_policy_routes(app, service)
    add_experiment_routes(app, service)
    add_console(app)
    document = describe(app, service)

    @app.get("/openapi.json", include_in_schema=False)
    async def openapi() -> Response:
        return JSONResponse(document)

    @app.get("/docs", include_in_schema=False)
    async def docs(request: Request) -> Response:
        return HTMLResponse(page(document, str(request.base_url).rstrip("/")), headers=HEADERS)

    for route in app.routes:
        if isinstance(route, Route) and route.methods and "GET" in route.methods:
            route.methods.add("HEAD")
    if service.cors_origins:
        app.add_middleware(CrossOrigin, service=service)
    return app


async def _readiness(service: Service) -> Response:
    try:
        async with asyncio.timeout(READY_S):
            pools = dict(await service.ready())
    except Exception as error:
        log.warning("readiness cannot be determined: %s", type(error).__name__)
        pools = {"workers": False}
    # Without its store, or something in it, the service answers all the same, so it stays ready and
    # says that it lacks it; why is for those who have a key (/v1/policies) and for the log.
    degraded = service.degraded is not None
    state = {"workers": pools, "store": service.store_error is None, "degraded": degraded}
    if all(pools.values()) and not service.draining:
        return JSONResponse({"ready": True, **state})
    not_ready = HttpError(503, "not ready yet", code="not_ready")
    return JSONResponse(
        {"ready": False, **state, **not_ready.body}, status_code=503, headers=not_ready.headers
    )


async def _routing_error(request: Request, error: Exception) -> Response:
    answer = http_error(error)
    if answer.status == 404:
        docs = f"{request.scope.get('root_path', '')}/docs"
        answer = replace(answer, message=f"nothing is at this path; {docs} lists what there is")
    if answer.status == 405:  # the router names the methods of the first route that fits the path
        fitting = (
            route.methods or set()
            for route in request.app.routes
            if isinstance(route, Route) and route.matches(request.scope)[0] is not Match.NONE
        )
        allowed = ", ".join(sorted(set[str]().union(*fitting)))
        answer = replace(
            answer,
            message=f"{request.method} is not allowed here; use {allowed}",
            headers={**answer.headers, "allow": allowed},
        )
    return answer.response()


async def _query_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    _kind, loc, text = first_error(error.errors(), None, "parameter")
    place = body_path(tuple(part for part in loc if part != "body")) or None
    return HttpError(
        400, f"{place or loc[0]}: {text}", param=place, code="invalid_value"
    ).response()
