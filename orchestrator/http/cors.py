"""Which pages of other origins a browser may let ask the service.

Without admin keys everybody who reaches the service may change it, but no page that somebody's
browser happens to show: from another origin it may then read, and ask for texts, and no more. (A
change needs a JSON body, so a browser asks for permission first.)
"""

from __future__ import annotations

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from orchestrator.http.auth import USER_PATHS
from orchestrator.http.errors import EXPOSED
from orchestrator.http.service import Service


class CrossOrigin:
    """ASGI middleware for the deployment's `cors_origins`; outside of the check of keys, since a
    browser's preflight has none."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        def allowing(*methods: str) -> CORSMiddleware:
            return CORSMiddleware(
                app,
                allow_origins=list(service.cors_origins),
                allow_methods=methods,
                allow_headers=["*"],
                expose_headers=EXPOSED,
            )

        self._users = allowing("GET", "POST")
        self._others = allowing("GET", "POST", "PUT") if service.access.admins else allowing("GET")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "").removeprefix(scope.get("root_path", ""))
        await (self._users if path in USER_PATHS else self._others)(scope, receive, send)
