"""The answer to a request: run the step loop, send what it gives, stop when the client is gone.

Three tasks a request. The *producer* (`EventQueue`; one for each choice, where several are wanted)
drives `solve` and never waits for a slow reader (what can gather is bounded by max_tokens), so a
worker's row is free as soon as its work is done. The *writer* turns what gathered into JSON or
server-sent events. The *watch* waits for the client to hang up. Whatever ends the request ends all
three, and a choice that fails ends the request.

The response headers wait for the first event, which follows the workers' prefill: an error until
then is a real HTTP error. Only when that takes longer than `headers_s` does the stream begin
without it, so that no proxy gives up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, suppress
from time import perf_counter
from typing import Final

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from orchestrator.background import stop
from orchestrator.errors import InvalidRequest, Unsupported, WorkerError, describe
from orchestrator.http.choice import Choice, MakeFormat
from orchestrator.http.context import RequestContext
from orchestrator.http.errors import http_error
from orchestrator.http.rendering import Json, dump, joined
from orchestrator.http.service import Service
from orchestrator.loop.events import Event, RequestCompleted
from orchestrator.telemetry.logs import about

log = logging.getLogger(__name__)

SHUTDOWN_S: Final = 1.0  # seconds in which to tell a client that the server stops
STREAM_HEADERS: Final = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}


class _ClientGone(Exception):
    """What is sent arrives nowhere."""


class EventQueue:
    """Events of one request, made by a task for each of its choices and taken in batches.

    Of every `each` choices, those to one prompt (None: all), the others begin when the first has
    read the prompt, which they then find cached.
    """

    def __init__(
        self, choices: Sequence[AsyncGenerator[Event, None]], each: int | None = None
    ) -> None:
        self._ready: list[tuple[int, Event]] = []
        self._error: Exception | None = None
        self.failed: int | None = None  # the choice that ended the request
        self._news, self._each = asyncio.Event(), each or len(choices)
        self._prompts_read = [asyncio.Event() for _ in choices[:: self._each]]
        self._tasks = {
            asyncio.create_task(self._produce(index, events))
            for index, events in enumerate(choices)
        }

    async def _produce(self, index: int, events: AsyncGenerator[Event, None]) -> None:
        # The generator is begun, run and closed by this one task: what it opens inside (timeouts,
        # task groups) belongs to the task that runs it.
        completed, prompt_read = False, self._prompts_read[index // self._each]
        try:
            async with aclosing(events):
                if index % self._each:
                    await prompt_read.wait()
                async for event in events:
                    prompt_read.set()
                    completed = isinstance(event, RequestCompleted)
                    self._ready.append((index, event))
                    self._news.set()
            if not completed:
                raise RuntimeError("the step loop stopped without a RequestCompleted")
        except Exception as error:
            if self._error is None:
                self._error, self.failed = error, index
            self._news.set()

    async def take(self, timeout_s: float | None = None) -> list[tuple[int, Event]]:
        """What has happened since the last call, and to which choice, once there is something.

        Nothing after `timeout_s` seconds of silence. Raises what a generator raised.
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
        await stop(*self._tasks)


class ChatResponse(Response):
    """The response to a request for a text: a JSON object, or a stream of server-sent events.

    Args:
        make_format: of a choice and of what its events amount to, the form of the answer.
    """

    def __init__(
        self,
        service: Service,
        context: RequestContext,
        make_format: MakeFormat,
    ) -> None:
        super().__init__()
        self._service, self._context, self._make_format = service, context, make_format
        self._choices: list[Choice] = []
        self._started = self._ended = self._cut = False
        self._sent_at = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def bounded(message: Message) -> None:
            try:
                async with asyncio.timeout(self._service.limits.send_s):
                    await send(message)
            except (TimeoutError, OSError):
                raise _ClientGone from None

        with about(trace_id=self._context.trace_id):
            async with self._service.admit(self._context):
                self._choices = [
                    Choice(self._service, one, self._make_format) for one in self._context.choices()
                ]
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
                    await stop(watch, writer)
                if not writer.cancelled():
                    writer.result()
                elif self._cut:
                    await self._report_shutdown(scope, receive, send)

    async def _write(self, send: Send) -> None:
        each = self._context.answers_each
        events = EventQueue([choice.events() for choice in self._choices], each)
        try:
            try:
                if self._context.body.stream:
                    await self._write_stream(events, send)
                else:
                    await self._write_whole(events, send)
            except BaseException:
                if self._context.place is not None:  # how long it took is not what answers take
                    self._context.place.broke_off = True
                raise
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
            failed = body["error"]
            if isinstance(error, WorkerError) and error.worker is not None:
                failed = failed | {"worker": error.worker}  # which clients have no use for
            self._record_failure(failed, events.failed)
            if not self._started:
                raise
            log.error("trace %s broke off: %s", self._context.trace_id, describe(error))
            with suppress(_ClientGone):
                await self._send(send, self._choices[0].format.failure(body), more=False)

    async def _write_whole(self, events: EventQueue, send: Send) -> None:
        writing = len(self._choices)
        while writing:
            writing -= sum(isinstance(event, RequestCompleted) for _, event in await events.take())
        wholes = [choice.format.whole() for choice in self._choices]
        body = dump(joined(wholes, self._context.answers_each))
        self._record("finished")
        headers = {"content-type": "application/json", "content-length": str(len(body))}
        await self._start(send, headers)
        await self._send(send, body, more=False)

    async def _write_stream(self, events: EventQueue, send: Send) -> None:
        limits, writing = self._service.limits, len(self._choices)
        while writing:
            patience = limits.ping_s - self._silent_s if self._started else limits.headers_s
            batch = await events.take(max(0.0, patience))
            if not self._started:
                await self._start(send, STREAM_HEADERS)
                await self._send(send, b"".join(one.format.begin() for one in self._choices))
            told = list(self._by_choice(batch))
            if data := b"".join(choice.format.more(news) for choice, news in told):
                await self._send(send, data)
            elif self._silent_s >= limits.ping_s:  # also while what comes cannot be shown yet
                await self._send(send, b": ping\n\n")
            ended = [choice for choice, news in told if isinstance(news[-1], RequestCompleted)]
            writing -= len(ended)
            for choice in ended:
                choice.record("finished")
            if data := b"".join(choice.format.finish() for choice in ended):
                if not writing:
                    data += ended[0].format.end([one.response for one in self._choices])
                await self._send(send, data, more=writing > 0)

    def _by_choice(self, batch: list[tuple[int, Event]]) -> Iterator[tuple[Choice, list[Event]]]:
        """A batch's events, those of each choice together."""
        for index, choice in enumerate(self._choices):
            if news := [event for of, event in batch if of == index]:
                yield choice, news

    async def _start(self, send: Send, headers: dict[str, str]) -> None:
        self._started = True
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": 200, "headers": raw})

    @property
    def _silent_s(self) -> float:
        """Seconds since something was last sent."""
        return perf_counter() - self._sent_at

    async def _send(self, send: Send, data: bytes, *, more: bool = True) -> None:
        self._ended, self._sent_at = not more, perf_counter()
        await send({"type": "http.response.body", "body": data, "more_body": more})

    def _record(self, status: str, error: Json | None = None) -> None:
        for choice in self._choices:
            choice.record(status, error)

    def _record_failure(self, error: Json, failed: int | None) -> None:
        """One choice failed, and ended those that were not done; None: all of them failed."""
        for index, choice in enumerate(self._choices):
            if failed in (None, index):
                choice.record("failed", error)
            else:
                choice.record("cancelled" if choice.response.completed is None else "finished")

    async def _report_shutdown(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The server stops in mid-answer: say so, if the client still listens."""
        error = http_error(asyncio.CancelledError())
        with suppress(Exception):
            async with asyncio.timeout(SHUTDOWN_S):
                if not self._started:
                    await error.response()(scope, receive, send)
                elif self._context.body.stream and not self._ended:
                    failure = self._choices[0].format.failure(error.body)
                    await self._send(send, failure, more=False)


async def _wait_for_hangup(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
