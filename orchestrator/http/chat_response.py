"""One question being answered over HTTP: solve, send, and stop at once when the client is gone.

Three tasks a request. The *feed* drives `solve` and never waits for a slow reader (what can gather
is bounded by max_tokens), so a worker's row is free as soon as its work is done. The *writer*
turns what gathered into JSON or server-sent events. The *watch* waits for the client to hang up.
Whatever ends the request ends all three.

The response headers wait for the first event, which follows the workers' reading of the prompt:
an error until then is a real HTTP error. Only when that takes longer than `headers_s` does the
stream begin without it, lest a proxy give up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Final

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from orchestrator.errors import Unsupported, describe
from orchestrator.experiments.shadows import ShadowRequest
from orchestrator.http.errors import problem
from orchestrator.http.outcomes import OUTCOMES, outcome
from orchestrator.http.rendering import (
    Json,
    Order,
    Story,
    Stripped,
    chunk,
    completion,
    deltas,
    dump,
    finish_reason,
    record,
    sse,
    trace_name,
    usage_chunk,
)
from orchestrator.http.rendering import baton as baton_object
from orchestrator.http.service import Service
from orchestrator.loop.events import Event
from orchestrator.telemetry.logs import about

log = logging.getLogger(__name__)

PARTING_S: Final = 1.0  # seconds for a last word to the client of a server that stops
STREAM_HEADERS: Final = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}


class _ClientGone(Exception):
    """What is sent arrives nowhere."""


class Feed:
    """Events of one request, made by a task of its own and taken in lots."""

    def __init__(self, events: AsyncGenerator[Event, None]) -> None:
        self._ready: list[Event] = []
        self._error: Exception | None = None
        self._news = asyncio.Event()
        self._task = asyncio.create_task(self._drive(events))

    async def _drive(self, events: AsyncGenerator[Event, None]) -> None:
        # The generator is begun, run and closed by this one task: what it opens inside (timeouts,
        # task groups) belongs to the task that runs it.
        try:
            async with aclosing(events):
                async for event in events:
                    self._ready.append(event)
                    self._news.set()
            self._error = RuntimeError("the events of a request stopped without an Ended")
        except Exception as error:
            self._error = error
        self._news.set()

    async def take(self, patience_s: float | None = None) -> list[Event]:
        """What has happened since the last call, once there is something.

        Nothing after `patience_s` seconds of silence. Raises what the generator raised.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                await self._news.wait()
        if self._ready:
            lot, self._ready = self._ready, []
            if self._error is None:
                self._news.clear()
            return lot
        if self._error is not None:
            raise self._error
        return []

    async def close(self) -> None:
        """Stop the work and wait until it has stopped."""
        self._task.cancel()
        await asyncio.wait({self._task})


class Answer(Response):
    """The response to a chat completion: a JSON object, or a stream of server-sent events."""

    def __init__(self, service: Service, order: Order) -> None:
        super().__init__()
        self._service, self._order = service, order
        self._story = Story()
        self._started = self._ended = self._kept = self._exposed = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def bounded(message: Message) -> None:
            try:
                async with asyncio.timeout(self._service.limits.send_s):
                    await send(message)
            except (TimeoutError, OSError):
                raise _ClientGone from None

        with self._service.slot(), about(trace_id=self._order.trace_id):
            writer = asyncio.create_task(self._answer(bounded))
            watch = asyncio.create_task(_gone(receive))
            try:
                await asyncio.wait({writer, watch}, return_when=asyncio.FIRST_COMPLETED)
            except asyncio.CancelledError:
                writer.cancel()  # not awaited: a server in a hurry cancels us once more
                await self._part(scope, receive, send)
                raise
            finally:
                await _stop(watch, writer)
            if not writer.cancelled():
                writer.result()

    async def _answer(self, send: Send) -> None:
        try:
            async with self._feed() as feed:
                await (self._stream(feed, send) if self._order.stream else self._whole(feed, send))
        except asyncio.CancelledError:
            self._keep("cancelled")
            raise
        except _ClientGone:
            self._keep("cancelled")
        except Exception as error:
            if isinstance(error, Unsupported):
                error.policy = self._order.choice.name
            told = problem(error)
            self._keep("failed", told.body["error"])
            if not self._started:
                raise
            log.error("trace %s broke off: %s", self._order.trace_id, describe(error))
            with suppress(_ClientGone):
                await self._send(send, sse(told.body), more=False)

    @asynccontextmanager
    async def _feed(self) -> AsyncIterator[Feed]:
        service, order = self._service, self._order
        events = service.solve(
            order.choice.policy,
            order.messages,
            service.workers,
            request=order.trace_id,
            sampling=order.sampling,
            limits=order.limits,
            speculation=order.choice.speculation,
        )
        if order.choice.taken is not None:
            service.experimenter.exposed(order.choice.taken, order.trace_id)
            self._exposed = True
        events = service.metrics.watch(order.choice.name, events)
        if service.spans is not None:
            told = {"trace_id": order.trace_id, "policy": order.choice.name}
            events = service.spans.watch(order.caller, told, events)
        feed = Feed(events)
        try:
            yield feed
        finally:
            await feed.close()

    async def _whole(self, feed: Feed, send: Send) -> None:
        while self._story.ended is None:
            self._learn(await feed.take())
        self._keep("finished")
        body = dump(completion(self._order, self._story))
        headers = {"content-type": "application/json", "content-length": str(len(body))}
        await self._start(send, headers)
        await self._send(send, body, more=False)

    async def _stream(self, feed: Feed, send: Send) -> None:
        order, story, strip, limits = self._order, self._story, Stripped(), self._service.limits
        while story.ended is None:
            lot = await feed.take(limits.ping_s if self._started else limits.headers_s)
            self._learn(lot)
            if not self._started:
                await self._start(send, STREAM_HEADERS)
                first = {"role": "assistant", "content": ""}
                await self._send(send, sse(chunk(order, first)))
            if data := b"".join(sse(chunk(order, delta)) for delta in deltas(lot, strip)):
                await self._send(send, data)
            elif not lot:
                await self._send(send, b": ping\n\n")
        self._keep("finished")
        last = chunk(order, {}, finish_reason(story))
        data = sse({**last, "baton": baton_object(order, story)})
        if order.include_usage:
            data += sse(usage_chunk(order, story))
        await self._send(send, data + b"data: [DONE]\n\n", more=False)

    def _learn(self, lot: list[Event]) -> None:
        for event in lot:
            self._story.add(event)

    async def _start(self, send: Send, headers: dict[str, str]) -> None:
        self._started = True
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": 200, "headers": raw})

    async def _send(self, send: Send, data: bytes, *, more: bool = True) -> None:
        self._ended = not more
        await send({"type": "http.response.body", "body": data, "more_body": more})

    def _keep(self, status: str, error: Json | None = None) -> None:
        """Hand the record and the outcome over to the store, which may take its time."""
        if self._kept:
            return
        self._kept = True
        service, order, story = self._service, self._order, self._story
        data = dump(record(order, story, status, error))
        service.outbox.put(trace_name(order.trace_id), data, ttl_s=service.trace_ttl_s)
        ended = outcome(order, story, status)
        service.outbox.event(OUTCOMES, ended)
        if order.choice.taken is not None and self._exposed:
            again = ShadowRequest(
                order.trace_id, order.messages, order.sampling, order.limits, story.answer
            )
            service.experimenter.ended(order.choice.taken, ended, again)

    async def _part(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The server stops in mid-answer: say so, if the client still listens."""
        told = problem(asyncio.CancelledError())
        with suppress(Exception):
            async with asyncio.timeout(PARTING_S):
                if not self._started:
                    await told.response()(scope, receive, send)
                elif self._order.stream and not self._ended:
                    await self._send(send, sse(told.body), more=False)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _stop(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
