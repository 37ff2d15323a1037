"""The routes of recorded requests.

If there are keys, an API key sees only its own requests; observers and admins see all.
"""

from __future__ import annotations

import asyncio
import json
import re
from typing import Annotated, Final

from fastapi import FastAPI, Query, Request
from pydantic import BaseModel, Field
from starlette.responses import JSONResponse, Response

from orchestrator.errors import StoreError
from orchestrator.experiments.outcome_log import Outcome, Status, parse_event
from orchestrator.http.body import Json
from orchestrator.http.errors import HttpError
from orchestrator.http.records import OUTCOMES, OUTCOMES_OF, trace_id_of, trace_name
from orchestrator.http.routes.openapi import described
from orchestrator.http.service import Service

SEARCHED: Final = 2000  # of the latest outcomes, by a filter
QUESTION_LISTED: Final = 200  # characters of a question that the list shows
_TRACE_ID: Final = r"[A-Za-z0-9._-]{1,128}"


class Wanted(BaseModel):
    """The filter of a list; None: any value."""

    count: Annotated[int, Field(ge=1, le=200)] = 50
    policy: str | None = None
    version: int | None = None
    experiment: str | None = None
    arm: str | None = None
    status: Status | None = None
    min_ms: Annotated[float, Field(ge=0)] = 0.0
    min_large_tokens: Annotated[int, Field(ge=0)] = 0

    def fits(self, outcome: Outcome) -> bool:
        """Return whether an outcome passes."""
        same = self.model_dump(
            include={"policy", "version", "experiment", "arm", "status"}, exclude_none=True
        )
        return (
            all(getattr(outcome, name) == value for name, value in same.items())
            and (outcome.ms or 0.0) >= self.min_ms
            and outcome.large_tokens >= self.min_large_tokens
        )


def add_trace_routes(app: FastAPI, service: Service) -> None:
    @app.get("/v1/traces", **described("The latest requests, newest first"))
    async def traces(request: Request, wanted: Annotated[Wanted, Query()]) -> Response:
        # Each key has a separate stream: in a common one other keys' requests would displace its
        # own, and the number left would show how many those are.
        stream = OUTCOMES
        if not request.state.caller.sees_all:
            stream = f"{OUTCOMES_OF}{request.state.caller.key}"
        found = list[Outcome]()
        for entry in await service.shared.store.newest(stream, SEARCHED):
            event = parse_event(entry.event)
            if isinstance(event, Outcome) and not event.shadow and wanted.fits(event):
                found.append(event)
            if len(found) == wanted.count:
                break
        questions = await asyncio.gather(*(_question(service, one.trace_id) for one in found))
        data = [
            {
                "object": "baton.trace_summary",
                "id": outcome.trace_id,
                **outcome.model_dump(exclude={"shadow", "agreement"}),
                "question": question,
            }
            for outcome, question in zip(found, questions, strict=True)
        ]
        return JSONResponse({"object": "list", "data": data})

    @app.get("/v1/traces/{trace_id}", **described("Everything on record about one request"))
    async def trace(trace_id: str, request: Request) -> Response:
        found, _ = await read_record(service, request, trace_id)
        return Response(found, media_type="application/json")


async def read_record(service: Service, request: Request, trace_id: str) -> tuple[bytes, Json]:
    """Return a request's record, as bytes and as JSON.

    Raises:
        HttpError: 404, there is none, it is no longer kept, or it is another key's.
    """
    trace_id = trace_id_of(trace_id)
    kept = await _kept(service, trace_id) if re.fullmatch(_TRACE_ID, trace_id) else None
    if kept is not None:
        caller = request.state.caller
        if caller.sees_all or kept[1].get("key") == caller.key:
            return kept
    raise HttpError(404, "no such trace, or no longer kept", code="trace_not_found")


async def _question(service: Service, trace_id: str) -> str | None:
    """Return the beginning of a request's question; None if its record is no longer kept."""
    try:
        kept = await _kept(service, trace_id)
    except StoreError:
        return None
    return None if kept is None else kept[1]["question"][:QUESTION_LISTED]


async def _kept(service: Service, trace_id: str) -> tuple[bytes, Json] | None:
    """Return a record; None if it is not kept, or another program wrote it."""
    found = await service.shared.outbox.get(trace_name(trace_id))
    if found is None:
        return None
    try:
        record = await asyncio.to_thread(json.loads, found)  # it may be long
    except (ValueError, RecursionError):
        record = None
    known = isinstance(record, dict) and isinstance(record.get("question"), str)
    return (found, record) if known else None
