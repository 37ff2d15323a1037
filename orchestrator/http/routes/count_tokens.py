"""`POST /v1/messages/count_tokens`: how many tokens a prompt has, as the model reads it."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from fastapi import FastAPI, Request
from starlette.responses import JSONResponse, Response

from orchestrator.background import deadline
from orchestrator.http.api import MESSAGES
from orchestrator.http.apis.messages import CountRequest, parse
from orchestrator.http.ask import Ask, Incoming
from orchestrator.http.body import json_body
from orchestrator.http.routes.openapi import described
from orchestrator.http.service import Service
from orchestrator.loop.policy_runner import beginning
from orchestrator.types import Generation, StopCriteria
from orchestrator.worker import Call


def add_count_route(app: FastAPI, service: Service) -> None:
    (path,) = MESSAGES.also
    about = "The tokens of a prompt; an answer to it then finds it cached"

    @app.post(path, name="count_tokens", **described(about, CountRequest))
    async def count_tokens(request: Request) -> Response:
        given = await json_body(request, service.settings)
        ask = await asyncio.to_thread(parse, given, service.settings, CountRequest)
        state = request.state
        incoming = Incoming(state.request_id, state.caller, request.headers)
        return JSONResponse({"input_tokens": await _count(service, ask, incoming)})


async def _count(service: Service, ask: Ask, incoming: Incoming) -> int:
    """Have a worker of the policy read the prompt, the large one if there are both."""
    async with service.admit(ask, incoming) as ((choice,), _):
        name = min(choice.plan.policy.called)  # "large" is before "small"
        transcript = beginning(choice.messages, ask.limits)
        call = Call(choice.trace_id, transcript, name, owner=choice.owner, session=choice.affinity)
        made = service.pools.workers[name].generate(
            call, StopCriteria(0), choice.sampling, stream=False
        )
        async with deadline(ask.limits.deadline_s), aclosing(made) as items:
            async for item in items:
                if isinstance(item, Generation):
                    return item.usage.prompt
    raise RuntimeError("the worker gave no generation")
