"""Middleware of every request: its id, the check of its key, its errors, one line in the log.

Plain ASGI rather than Starlette's BaseHTTPMiddleware, which hides from a response that its client
has disconnected.
"""

from __future__ import annotations

import logging
import re
import secrets
from time import perf_counter
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from orchestrator.errors import describe
from orchestrator.http.api import api_at, credentials, error_response
from orchestrator.http.auth import Caller, is_for_users, is_loopback
from orchestrator.http.errors import EXPOSED, HttpError, http_error
from orchestrator.http.service import Service
from orchestrator.telemetry.logs import about

log = logging.getLogger(__name__)

_HOST: Final = re.compile(r"(?:\[([0-9a-f:.]+)\]|([^:\[\]]+))(?::\d{1,5})?")
_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._:-]{1,128}")


class RequestMiddleware:
    """ASGI middleware that sets the request's `state.request_id` and `state.caller`."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app, self._service = app, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            given = Headers(scope=scope).get("x-request-id", "")
            request_id = given if _REQUEST_ID.fullmatch(given) else secrets.token_hex(16)
            with about(request_id=request_id):
                await self._answer(scope, receive, send, request_id)
        else:  # no route is a websocket
            await send({"type": "websocket.close", "code": 1008})

    async def _answer(self, scope: Scope, receive: Receive, send: Send, request_id: str) -> None:
        headers, began, status = Headers(scope=scope), perf_counter(), 0
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        api = api_at(path)
        scope.setdefault("state", {}).update(request_id=request_id)

        async def with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                self._service.responses.labels(str(status)).inc()
                if not self._service.settings.proxy_adds_request_id:
                    MutableHeaders(scope=message)["x-request-id"] = request_id
                if api is not None and api.id_header:
                    MutableHeaders(scope=message)[api.id_header] = request_id
            await send(message)

        caller = Caller()
        try:
            named = _HOST.fullmatch(headers.get("host", "").lower())
            if self._service.settings.loopback and not (
                named and is_loopback(named[1] or named[2])
            ):
                raise HttpError(
                    421,
                    "without API keys this service answers to localhost alone (Host header)",
                    code="wrong_host",
                )
            caller = self._service.access.authorize(scope["method"], path, credentials(headers))
            scope["state"]["caller"] = caller
            await self._app(scope, receive, with_id)
        except ClientDisconnect:
            pass
        except Exception as error:
            response = http_error(error)
            if response.status >= 500:
                log.error("request %s failed: %s", request_id, describe(error))
            if not status:
                await error_response(response, scope)(scope, receive, with_id)
        finally:
            ms = (perf_counter() - began) * 1000
            method, path = scope["method"], scope["path"]
            fields = {"method": method, "path": path, "status": status, "ms": round(ms, 1)}
            line = "%s %r %d %.0f ms request=%s key=%s"
            log.info(line, method, path, status, ms, request_id, caller.key, extra=fields)


class CrossOrigin:
    """ASGI middleware for the deployment's `cors_origins`, before the check of keys: a browser's
    preflight request has no key.

    Without admin keys every client may change the service, but a page of another origin may only
    read and request texts. (A change needs a JSON body, so a browser asks for permission first.)
    """

    def __init__(self, app: ASGIApp, service: Service) -> None:
        def allowing(*methods: str) -> CORSMiddleware:
            return CORSMiddleware(
                app,
                allow_origins=list(service.settings.cors_origins),
                allow_methods=methods,
                allow_headers=["*"],
                expose_headers=EXPOSED,
            )

        self._users = allowing("GET", "POST")
        self._others = allowing("GET", "POST", "PUT") if service.access.admins else allowing("GET")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "").removeprefix(scope.get("root_path", ""))
        await (self._users if is_for_users(path) else self._others)(scope, receive, send)
