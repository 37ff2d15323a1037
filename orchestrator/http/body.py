"""A request's body: JSON, of bounded size, and here in time."""

from __future__ import annotations

import asyncio

from fastapi import Request

from orchestrator.errors import InvalidRequest
from orchestrator.http.errors import Refused
from orchestrator.http.service import ServiceLimits


async def json_body(request: Request, limits: ServiceLimits) -> bytes:
    """The whole body, announced as JSON.

    A browser may post forms and plain text across origins without asking; those are refused.

    Raises:
        InvalidRequest: it is announced as something else.
        Refused: 413, it is too large; 408, it did not arrive in time.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise InvalidRequest(
            "the body must be JSON (Content-Type: application/json)", code="invalid_content_type"
        )
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
