"""What Serve's proxies answer before any replica of the orchestrator does.

Serve itself would answer 404, and later let requests wait. The console's files hold nothing of the
service, so they are here at once; its API says that the service starts.
"""

from __future__ import annotations

from typing import Final

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp

from deploy.service.direct import serves_proxy
from orchestrator.http.api import error_response
from orchestrator.http.errors import HttpError
from orchestrator.http.routes.console import add_console

READ: Final = ["GET", "HEAD"]
STARTING: Final = HttpError(
    503, "the service is starting: its API does not answer yet; try again shortly", code="starting"
)


def is_starting(app: ASGIApp) -> bool:
    """Return whether Serve's proxy, at the end of a chain of middleware, never had a replica."""
    if (proxy := serves_proxy(app)) is None:
        return False
    return not any(one.running_replicas_populated() for one in proxy.proxy_router.handles.values())


def starting_app() -> FastAPI:
    """Return the application that answers meanwhile."""
    app = FastAPI(title="Baton", docs_url=None, redoc_url=None, openapi_url=None)
    add_console(app)

    @app.api_route("/health", methods=READ)
    async def health() -> Response:
        return JSONResponse({"status": "ok"})

    @app.api_route("/ready", methods=READ)
    async def ready() -> Response:
        state = {"ready": False, "workers": {}, **STARTING.body}
        return JSONResponse(state, status_code=503, headers=STARTING.headers)

    @app.exception_handler(HttpError)
    @app.exception_handler(HTTPException)
    async def other(request: Request, error: Exception) -> Response:
        return error_response(STARTING, request.scope)

    return app
