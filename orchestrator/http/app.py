"""The application: its routes for texts, models and health.

The modules in `routes` add theirs. /openapi.json and /docs show what each declares by `described`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.routing import Match, Route

from orchestrator.http.answering import AnswerResponse
from orchestrator.http.api import CHAT, MESSAGES, RESPONSES, TEXT_COMPLETION, error_response
from orchestrator.http.apis import chat, completions, messages, responses
from orchestrator.http.ask import Ask, Incoming
from orchestrator.http.body import Given, json_body, read_body
from orchestrator.http.errors import Error, HttpError, http_error
from orchestrator.http.middleware import CrossOrigin, RequestMiddleware
from orchestrator.http.planning import no_model
from orchestrator.http.records import REWARDS
from orchestrator.http.routes.console import add_console
from orchestrator.http.routes.count_tokens import add_count_route
from orchestrator.http.routes.experiments import add_experiment_routes
from orchestrator.http.routes.feedback import Feedback, record_if_first, reward
from orchestrator.http.routes.openapi import describe, described
from orchestrator.http.routes.policies import add_policy_routes
from orchestrator.http.routes.traces import add_trace_routes, read_record
from orchestrator.http.service import Service
from orchestrator.http.settings import HttpSettings
from orchestrator.loop.accumulator import WORKERS
from orchestrator.validation import body_path, each_error

log = logging.getLogger(__name__)

READY_S: Final = 5.0  # seconds after which a pool that does not answer counts as not ready
TEXTS: Final[tuple[Any, ...]] = (
    (CHAT, chat.parse, chat.ChatRequest, "A chat completion"),
    (TEXT_COMPLETION, completions.parse, completions.CompletionRequest, "A text's continuation"),
    (RESPONSES, responses.parse, responses.ResponsesRequest, "A response"),
    (MESSAGES, messages.parse, messages.MessagesRequest, "A message"),
)
"""Each API with its parser, the type of a request, and its summary."""


class AnswerNow(Given):
    """The body of `POST /v1/requests/{id}/answer`: an empty object."""


def create_app(service: Service) -> FastAPI:
    """Return the ASGI application; its middleware also applies to routes that are added later."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await service.shared.start()
        try:
            yield
        finally:
            await service.shared.stop()

    app = FastAPI(
        title="Baton",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
        responses={"default": {"description": "An error", "model": Error}},
    )
    app.add_middleware(RequestMiddleware, service=service)
    app.add_exception_handler(HTTPException, _routing_error)
    app.add_exception_handler(RequestValidationError, _query_error)
    for api, parse, kind, about in TEXTS:
        shown = described(f"{about}, streamed or not", kind, streams=True)
        name = parse.__module__.rpartition(".")[2]
        app.post(api.path, name=name, **shown)(_text_route(service, parse))
    add_count_route(app, service)
    _add_model_routes(app, service)

    @app.post("/v1/feedback", **described("What an answer was worth, from 0 to 1", Feedback))
    async def feedback(request: Request) -> Response:
        body = await read_body(request, service.settings, Feedback)
        # Without the store, the answer's key and arm are unknown: 503.
        _, record = await read_record(service, request, body.trace_id)
        key, ttl_s = request.state.caller.key, service.settings.trace_ttl_s
        event = reward(body, record, key)
        if await record_if_first(service.shared.outbox, body, key, ttl_s):
            service.shared.outbox.event(REWARDS, event.model_dump())
            service.shared.recorder.reward(record, event)
        return JSONResponse({"object": "baton.feedback", **body.model_dump()})

    @app.post(
        "/v1/requests/{request_id}/answer",
        **described("End a running request's thought, so that its answer follows", AnswerNow),
    )
    async def answer_now(request: Request, request_id: str) -> Response:
        await read_body(request, service.settings, AnswerNow)
        count = await service.hurry(request_id, request.state.caller.key)
        if not count:
            raise HttpError(
                404, "this key has no running request of this id", code="request_not_found"
            )
        return JSONResponse({"object": "baton.request", "id": request_id, "requests": count})

    @app.get("/health", **described("The process lives"))
    async def health() -> Response:
        return JSONResponse({"status": "ok"})

    @app.get("/ready", **described("Both worker pools answer"))
    async def ready() -> Response:
        return await _readiness(service)

    @app.get(
        "/metrics",
        summary="Metrics",
        response_class=Response,  # not one of text alone: an error is JSON
        responses={200: {"content": {"text/plain": {}}}},
    )
    async def metrics() -> Response:
        return Response(await service.metrics_text(), media_type=CONTENT_TYPE_LATEST)

    add_trace_routes(app, service)
    add_policy_routes(app, service)
    add_experiment_routes(app, service)
    add_console(app)
    document = describe(app, service)
    app.openapi = lambda: document  # type: ignore[method-assign]
    for route in app.routes:
        if isinstance(route, Route) and route.methods and "GET" in route.methods:
            route.methods.add("HEAD")
    if service.settings.cors_origins:
        app.add_middleware(CrossOrigin, service=service)
    return app


def _text_route(
    service: Service, parse: Callable[[bytes, HttpSettings], Ask]
) -> Callable[[Request], Awaitable[Response]]:
    async def respond(request: Request) -> Response:
        given = await json_body(request, service.settings)
        # In a thread: the grammars of many schemas may take a second.
        ask = await asyncio.to_thread(parse, given, service.settings)
        return AnswerResponse(
            service, ask, Incoming(request.state.request_id, request.state.caller, request.headers)
        )

    return respond


def _add_model_routes(app: FastAPI, service: Service) -> None:
    planner, started = service.planner, int(time.time())
    common = {
        "object": "model",
        "type": "model",
        "created": started,
        "created_at": datetime.fromtimestamp(started, UTC).isoformat(),
        "owned_by": "baton",
        "speculation": dict(planner.catalog.speculation),
        "methods": [
            {"name": name, "lossy": label != name}
            for name, label in planner.catalog.methods.items()
        ],
    }

    async def cards(*names: str) -> list[dict[str, Any]]:
        facts = await service.pools.facts(WORKERS)
        return [
            {
                "id": name,
                "display_name": name,
                "max_model_len": planner.context_of(name, facts),
                **common,
            }
            for name in names
        ]

    @app.get("/v1/models", **described("Every policy is a model"))
    async def models() -> Response:
        data = await cards(*planner.models)
        listed = {"object": "list", "data": data, "notes": list(service.settings.notes)}
        ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]}
        return JSONResponse({**listed, "has_more": False, **ends})

    @app.get("/v1/models/{model:path}", **described("One model"))
    async def model(model: str) -> Response:
        if not await planner.knows(model):
            raise no_model(model)
        return JSONResponse((await cards(model))[0])


async def _readiness(service: Service) -> Response:
    try:
        async with asyncio.timeout(READY_S):
            troubles: Mapping[Any, str | None] = await service.pools.troubles()
    except Exception as error:
        log.warning("readiness cannot be determined: %s", type(error).__name__)
        troubles = {"workers": "they are silent"}
    # Without its store, or a document in it, the service still answers, so it stays ready and
    # reports `degraded`; only the log and /v1/policies, which needs a key, give the reason.
    degraded = service.shared.degraded is not None
    well = {name: why is None for name, why in troubles.items()}
    state = {"workers": well, "store": service.shared.error is None, "degraded": degraded}
    if all(well.values()) and not service.live.draining:
        return JSONResponse({"ready": True, **state})
    reasons = {name: why for name, why in troubles.items() if why is not None}
    silent = "; ".join(f"{name}: {why}" for name, why in reasons.items())
    reason = f"not ready yet: {silent}" if silent else "stopping"
    not_ready = HttpError(503, reason, code="not_ready")
    return JSONResponse(
        {"ready": False, **state, "reasons": reasons, **not_ready.body},
        status_code=503,
        headers=not_ready.headers,
    )


async def _routing_error(request: Request, error: Exception) -> Response:
    answer = http_error(error)
    if answer.status == 404:
        docs = f"{request.scope.get('root_path', '')}/docs"
        answer = replace(answer, message=f"nothing is at this path; {docs} lists what there is")
    if answer.status == 405:  # the router names only the methods of the first route at this path
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
    return error_response(answer, request.scope)


async def _query_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    _kind, loc, text = next(each_error(error.errors(), None, "parameter"))
    place = body_path(tuple(part for part in loc if part != "body")) or None
    answer = HttpError(400, f"{place or loc[0]}: {text}", param=place, code="invalid_value")
    return error_response(answer, request.scope)
