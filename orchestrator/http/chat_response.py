"""One answer: run the step loop, send what it gives, stop when the client is gone.

Three tasks a request. The *producer* (`EventQueue`) drives `solve` and never waits for a slow
reader (what can gather is bounded by max_tokens), so a worker's row is free as soon as its work is
done. The *writer* turns what gathered into JSON or server-sent events. The *watch* waits for the
client to hang up. Whatever ends the request ends all three.

The response headers wait for the first event, which follows the workers' prefill: an error until
then is a real HTTP error. Only when that takes longer than `headers_s` does the stream begin
without it, so that no proxy gives up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import ExitStack, aclosing, suppress
from typing import Final

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from orchestrator.errors import InvalidRequest, Unsupported, describe
from orchestrator.experiments.shadows import ShadowRequest
from orchestrator.http.chat_format import AnswerFormat
from orchestrator.http.context import RequestContext
from orchestrator.http.errors import http_error
from orchestrator.http.rendering import OUTCOMES, Json, dump, outcome, record, trace_name
from orchestrator.http.service import Service
from orchestrator.loop.accumulator import ResponseAccumulator
from orchestrator.loop.events import Event, RequestCompleted
from orchestrator.loop.executor import deadline
from orchestrator.telemetry.logs import about

log = logging.getLogger(__name__)

SHUTDOWN_S: Final = 1.0  # seconds in which to tell a client that the server stops
STREAM_HEADERS: Final = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}


MakeFormat = Callable[[RequestContext, ResponseAccumulator], AnswerFormat]


class _ClientGone(Exception):
    """What is sent arrives nowhere."""


class EventQueue:
    """Events of one request, made by a task of its own and taken in batches."""

    def __init__(self, events: AsyncGenerator[Event, None]) -> None:
        self._ready: list[Event] = []
        self._error: Exception | None = None
        self._news = asyncio.Event()
        self._task = asyncio.create_task(self._produce(events))

    async def _produce(self, events: AsyncGenerator[Event, None]) -> None:
        # The generator is begun, run and closed by this one task: what it opens inside (timeouts,
        # task groups) belongs to the task that runs it.
        try:
            async with aclosing(events):
                async for event in events:
                    self._ready.append(event)
                    self._news.set()
            self._error = RuntimeError("the step loop stopped without a RequestCompleted")
        except Exception as error:
            self._error = error
        self._news.set()

    async def take(self, timeout_s: float | None = None) -> list[Event]:
        """What has happened since the last call, once there is something.

        Nothing after `timeout_s` seconds of silence. Raises what the generator raised.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._news.wait()
        if self._ready:
            batch, self._ready = self._ready, []
            if self._error is None:
                self._news.clear()
            return batch
        if self._error is not None:
            raise self._error
        return []

    async def close(self) -> None:
        """Stop the work and wait until it has stopped."""
        self._task.cancel()
        await asyncio.wait({self._task})


class ChatResponse(Response):
    """The response to a request for a text: a JSON object, or a stream of server-sent events.

    Args:
        make_format: of the request and of what its events amount to, the form of the answer.
    """

    def __init__(
        self,
        service: Service,
        context: RequestContext,
        make_format: MakeFormat,
    ) -> None:
        super().__init__()
        self._service, self._context = service, context
        self._response = ResponseAccumulator()
        self._format = make_format(context, self._response)
        self._started = self._ended = self._recorded = self._exposed = self._cut = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def bounded(message: Message) -> None:
            try:
                async with asyncio.timeout(self._service.limits.send_s):
                    await send(message)
            except (TimeoutError, OSError):
                raise _ClientGone from None

        with about(trace_id=self._context.trace_id):
            async with self._service.admit(self._context):
                writer = asyncio.create_task(self._write(bounded))
                watch = asyncio.create_task(_wait_for_hangup(receive))

                def cut() -> None:
                    self._cut = True
                    watch.cancel()

                self._service.cuts.add(cut)
                try:
                    await asyncio.wait({writer, watch}, return_when=asyncio.FIRST_COMPLETED)
                except asyncio.CancelledError:
                    writer.cancel()  # not awaited: a server in a hurry cancels us once more
                    await self._report_shutdown(scope, receive, send)
                    raise
                finally:
                    self._service.cuts.remove(cut)
                    await _stop(watch, writer)
                if not writer.cancelled():
                    writer.result()
                elif self._cut:
                    await self._report_shutdown(scope, receive, send)

    async def _events(self) -> AsyncGenerator[Event, None]:
        """The step loop's events, with an eye on them for metrics and spans."""
        service, context, response = self._service, self._context, self._response
        if context.enrollment is not None:
            service.experimenter.record_exposure(context.enrollment, context.trace_id)
            self._exposed = True
        with ExitStack() as observers:
            observers.enter_context(service.metrics.request(context.policy_name, response))
            if service.spans is not None:
                observers.enter_context(
                    service.spans.request(context.headers, context.span_attributes, response)
                )
            events = service.solve(
                context.policy,
                context.messages,
                service.workers,
                request=context.trace_id,
                sampling=context.sampling,
                limits=context.limits,
                speculation=context.speculation,
                owner=context.owner,
                response=response,
            )
            prompt_read, within_deadline = False, deadline(context.limits.deadline_s)
            async with aclosing(events):
                async for event in events:
                    if not prompt_read:
                        prompt_read = True
                        async with within_deadline():
                            await self._format.before(service.workers)
                    if isinstance(event, RequestCompleted):
                        async with within_deadline():
                            await self._format.after(service.workers)
                    yield event

    async def _write(self, send: Send) -> None:
        events = EventQueue(self._events())
        try:
            try:
                if self._context.body.stream:
                    await self._write_stream(events, send)
                else:
                    await self._write_whole(events, send)
            finally:
                await events.close()
        except asyncio.CancelledError as error:
            if self._cut:
                self._record("failed", http_error(error).body["error"])
            else:
                self._record("cancelled")
            raise
        except _ClientGone:
            self._record("cancelled")
        except Exception as error:
            if isinstance(error, Unsupported):
                error.policy = self._context.policy_name
            elif isinstance(error, InvalidRequest) and error.param == "messages":
                error.param = self._context.body.question_name  # workers know messages alone
            body = http_error(error).body
            self._record("failed", body["error"])
            if not self._started:
                raise
            log.error("trace %s broke off: %s", self._context.trace_id, describe(error))
            with suppress(_ClientGone):
                await self._send(send, self._format.failure(body), more=False)

    async def _write_whole(self, events: EventQueue, send: Send) -> None:
        while not any(isinstance(event, RequestCompleted) for event in await events.take()):
            pass
        body = dump(self._format.whole())
        self._record("finished")
        headers = {"content-type": "application/json", "content-length": str(len(body))}
        await self._start(send, headers)
        await self._send(send, body, more=False)

    async def _write_stream(self, events: EventQueue, send: Send) -> None:
        limits, completed = self._service.limits, False
        while not completed:
            batch = await events.take(limits.ping_s if self._started else limits.headers_s)
            completed = any(isinstance(event, RequestCompleted) for event in batch)
            if not self._started:
                await self._start(send, STREAM_HEADERS)
                await self._send(send, self._format.begin())
            if data := self._format.more(batch):
                await self._send(send, data)
            elif not batch:
                await self._send(send, b": ping\n\n")
        self._record("finished")
        await self._send(send, self._format.end(), more=False)

    async def _start(self, send: Send, headers: dict[str, str]) -> None:
        self._started = True
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": 200, "headers": raw})

    async def _send(self, send: Send, data: bytes, *, more: bool = True) -> None:
        self._ended = not more
        await send({"type": "http.response.body", "body": data, "more_body": more})

    def _record(self, status: str, error: Json | None = None) -> None:
        """Hand the record and the outcome to the outbox, which carries them to the store later."""
        if self._recorded:
            return
        self._recorded = True
        service, context, response = self._service, self._context, self._response
        data = dump(record(context, response, status, error))
        service.outbox.put(trace_name(context.trace_id), data, ttl_s=service.trace_ttl_s)
        ended = outcome(context, response, status)
        service.outbox.event(OUTCOMES, ended)
        if context.enrollment is not None and self._exposed:
            again = ShadowRequest(
                context.trace_id,
                context.messages,
                context.sampling,
                context.limits,
                response.answer,
                owner=context.owner,
            )
            service.experimenter.record_outcome(context.enrollment, ended, again)

    async def _report_shutdown(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The server stops in mid-answer: say so, if the client still listens."""
        error = http_error(asyncio.CancelledError())
        with suppress(Exception):
            async with asyncio.timeout(SHUTDOWN_S):
                if not self._started:
                    await error.response()(scope, receive, send)
                elif self._context.body.stream and not self._ended:
                    await self._send(send, self._format.failure(error.body), more=False)


async def _wait_for_hangup(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _stop(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
