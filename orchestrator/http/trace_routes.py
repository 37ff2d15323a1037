"""The HTTP surface of what is on record about requests.

With keys, the list holds the requests of the key that asks; an admin key sees everybody's.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from typing import Any, Final, Literal

from fastapi import FastAPI, Query, Request
from starlette.responses import JSONResponse, Response

from orchestrator.errors import StoreError
from orchestrator.http.errors import HttpError
from orchestrator.http.openapi import described
from orchestrator.http.rendering import OUTCOMES, OUTCOMES_OF, trace_id_of, trace_name
from orchestrator.http.service import Service

Json = dict[str, Any]
SEARCHED: Final = 2000
"""Of the latest outcomes, how many a filter looks through."""
QUESTION: Final = 200
"""Characters of a question in the list."""

_TRACE_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,128}")


def add_trace_routes(app: FastAPI, service: Service) -> None:
    """Add the routes; the application's middleware applies to them."""

    @app.get("/v1/traces", **described("The latest requests, newest first", errors=(503,)))
    async def traces(
        request: Request,
        count: int = Query(50, ge=1, le=200),
        policy: str | None = None,
        version: int | None = None,
        experiment: str | None = None,
        arm: str | None = None,
        status: Literal["finished", "failed", "cancelled"] | None = None,
        min_ms: float = Query(0.0, ge=0),
        min_large_tokens: int = Query(0, ge=0),
    ) -> Response:
        wanted = {
            name: value
            for name, value in (
                ("policy", policy),
                ("version", version),
                ("experiment", experiment),
                ("arm", arm),
                ("status", status),
            )
            if value is not None
        }
        # A key's own have a stream of their own: in that of all keys they would be pushed out by
        # others' requests, and how many are left would tell how many these are.
        stream = OUTCOMES
        if not service.access.sees_all(request.headers.get("authorization")):
            stream = f"{OUTCOMES_OF}{request.state.key}"
        rows = []
        for entry in await service.store.newest(stream, SEARCHED):
            row = json.loads(entry.event)
            if (
                row["kind"] == "outcome"  # a store may hold rewards among them, of before
                and all(row.get(name) == value for name, value in wanted.items())
                and row["ms"] >= min_ms
                and row["large_tokens"] >= min_large_tokens
            ):
                rows.append(row)
                if len(rows) == count:
                    break
        questions = await asyncio.gather(*(_question(service, row["trace_id"]) for row in rows))
        data = [
            {"object": "baton.trace_summary", "id": row["trace_id"], **row, "question": question}
            for row, question in zip(rows, questions, strict=True)
        ]
        return JSONResponse({"object": "list", "data": data})

    @app.get(
        "/v1/traces/{trace_id}",
        **described("Everything on record about one request", errors=(404, 503)),
    )
    async def trace(trace_id: str, request: Request) -> Response:
        found = await read_record(service, trace_id)
        await own_record(service, request, found)
        return Response(found, media_type="application/json")


async def own_record(service: Service, request: Request, found: bytes) -> Json:
    """A record that whoever asks may know of.

    Raises:
        HttpError: 404, as if there were none: another key's request left it.
    """
    record: Json = await asyncio.to_thread(json.loads, found)  # it may be long
    if record.get("key") != request.state.key and not service.access.sees_all(
        request.headers.get("authorization")
    ):
        raise _no_trace()
    return record


async def read_record(service: Service, trace_id: str) -> bytes:
    """A request's record.

    Raises:
        HttpError: 404, there is none, or no longer.
    """
    trace_id, found = trace_id_of(trace_id), None
    if _TRACE_ID.fullmatch(trace_id):
        found = await service.outbox.get(trace_name(trace_id))
    if found is None:
        raise _no_trace()
    return found


def _no_trace() -> HttpError:
    return HttpError(404, "no such trace, or no longer kept", code="trace_not_found")


async def _question(service: Service, trace_id: str) -> str | None:
    """How a request's question begins; None where its record is not kept any more."""
    try:
        found = await service.outbox.get(trace_name(trace_id))
    except StoreError:
        return None
    if found is None:
        return None
    record: Mapping[str, str] = await asyncio.to_thread(json.loads, found)  # it may be long
    return record["question"][:QUESTION]
