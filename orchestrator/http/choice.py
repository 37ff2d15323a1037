"""One of the answers to a request: its step loop, what watches it, and its record."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import ExitStack, aclosing
from dataclasses import replace
from functools import partial

from orchestrator.experiments.shadows import ShadowRequest
from orchestrator.http.call_reader import calls_at_end, read_answer
from orchestrator.http.chat_format import AnswerFormat
from orchestrator.http.context import RequestContext
from orchestrator.http.rendering import (
    OUTCOMES,
    OUTCOMES_OF,
    OUTCOMES_OF_KEPT,
    Json,
    dump,
    outcome,
    record,
    trace_name,
)
from orchestrator.http.service import Service
from orchestrator.loop.accumulator import ResponseAccumulator
from orchestrator.loop.events import Event, RequestCompleted
from orchestrator.loop.executor import deadline
from orchestrator.loop.request import Request

MakeFormat = Callable[[RequestContext, ResponseAccumulator], AnswerFormat]


class Choice:
    """An answer that is made, counted and recorded like any other, by itself.

    Args:
        context: the request, or the one of its answers that this is; its policy is chosen.
        make_format: of the context and of what the events amount to, the form of the answer.
    """

    def __init__(self, service: Service, context: RequestContext, make_format: MakeFormat) -> None:
        self._service, self._context = service, context
        self.response = ResponseAccumulator()
        self.response.find_calls = partial(calls_at_end, context, self.response)
        self.format = make_format(context, self.response)
        self._recorded = self._exposed = False
        # Of all answers to a request: some begin once the first has read the prompt.
        self._began_at = asyncio.get_running_loop().time()

    async def events(self) -> AsyncGenerator[Event, None]:
        """The step loop's events, with an eye on them for metrics and spans."""
        service, context, response = self._service, self._context, self.response
        if context.enrollment is not None:
            service.recorder.exposure(context.enrollment, context.trace_id)
            self._exposed = True
        with ExitStack() as observers:
            observers.enter_context(service.metrics.request(context.policy_name, response))
            if service.spans is not None:
                observers.enter_context(
                    service.spans.request(context.headers, context.span_attributes, response)
                )
            events = service.solve(context.policy, self._request(), service.workers, response)
            begun = prompt_read = False
            within_deadline = deadline(context.limits.deadline_s, self._began_at)
            async with aclosing(events):
                async for event in events:
                    if not prompt_read and (tokens := response.prompt.prompt):
                        prompt_read = True  # by a worker: another may have failed before
                        context.prompt_read(tokens)
                    if not begun:
                        begun = True
                        async with within_deadline():
                            await self.format.before(service.workers)
                    if isinstance(event, RequestCompleted):
                        response.called = bool(read_answer(context, response)[1])
                        async with within_deadline():
                            await self.format.after(service.workers)
                    yield event

    def _request(self) -> Request:
        context = self._context
        return Request(
            context.trace_id,
            context.messages,
            context.sampling,
            context.limits,
            context.speculation,
            context.owner,
            context.affinity,
            self._began_at,
        )

    def record(self, status: str, error: Json | None = None) -> None:
        """Hand the record and the outcome to the outbox, which carries them to the store later;
        once: how the answer ended first counts."""
        if self._recorded:
            return
        self._recorded = True
        service, context, response = self._service, self._context, self.response
        data = dump(record(context, response, status, error))
        service.outbox.put(trace_name(context.trace_id), data, ttl_s=service.trace_ttl_s)
        ended = outcome(context, response, status, error)
        service.outbox.event(OUTCOMES, ended)
        if not service.access.sees_all(context.headers.get("authorization")):
            own = f"{OUTCOMES_OF}{context.key}"
            service.outbox.event(own, ended, keep=OUTCOMES_OF_KEPT)
        if context.enrollment is not None and self._exposed:
            asked = replace(self._request(), speculation=None, session="", began_at=None)
            again = ShadowRequest(asked, response.answer)
            service.recorder.outcome(context.enrollment, ended, again)
