"""The console: a page for people at `/ui`, which talks to the API as every client does.

Its files are static and hold nothing of the service, so they need no key. The browser may load and
run nothing but them: no inline script or style, no other origin, no markup from strings.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from fastapi import FastAPI, Request
from starlette.responses import RedirectResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from orchestrator.http.errors import HttpError

FILES: Final = Path(__file__).parents[1] / "console"
HEADERS: Final = {
    "content-security-policy": "default-src 'self'; object-src 'none'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
    "trusted-types 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-cache",  # a browser asks each time; unchanged files are not sent again
}


class ConsoleFiles(StaticFiles):
    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers.update(HEADERS)
        return response


def add_console(app: FastAPI) -> None:
    """Add the page; all its links are relative, so it works under any prefix."""
    files = ConsoleFiles(directory=FILES)

    @app.get("/", include_in_schema=False)
    async def root(request: Request) -> Response:
        if "text/html" in request.headers.get("accept", ""):
            return RedirectResponse("ui")
        raise HttpError(
            404, "nothing is here: the API is under /v1, the console at /ui", code="not_found"
        )

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return RedirectResponse("ui#/api")

    @app.get("/ui", include_in_schema=False)
    async def console(request: Request) -> Response:
        return await files.get_response("index.html", request.scope)

    @app.get("/ui/{file:path}", include_in_schema=False)
    async def console_file(file: str, request: Request) -> Response:
        if not file:
            return RedirectResponse("../ui")
        return await files.get_response(file, request.scope)
