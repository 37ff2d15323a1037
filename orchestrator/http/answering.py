"""The answer to a request: run the step loop, send its text, stop when the client is gone.

A request has three kinds of tasks. The *producers* (`EventQueue`, one for each answer) drive
`solve` and never wait for a slow reader, so a worker's row is free as soon as its work is done; the
queue is bounded by `max_tokens`. The *writer* turns queued events into JSON or server-sent events.
The *watch* waits for the client to hang up. The end of the writer or of the watch ends the request,
and so does the failure of one answer.

A stream's headers wait for the first event, which follows the workers' prefill, so an earlier error
is an HTTP error. After `headers_s` the stream begins anyway, so that no proxy gives up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import ExitStack, aclosing, suppress
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Final

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from orchestrator.background import deadline, stop
from orchestrator.errors import InvalidRequest, Unsupported, WorkerError, describe
from orchestrator.experiments.outcome_log import Status
from orchestrator.experiments.shadows import ShadowRequest
from orchestrator.http.admission import Place
from orchestrator.http.api import dump, error_response
from orchestrator.http.ask import Ask, Choice, Incoming, estimated_tokens
from orchestrator.http.body import Json
from orchestrator.http.errors import http_error, shutting_down
from orchestrator.http.records import (
    OUTCOMES,
    OUTCOMES_OF,
    OUTCOMES_OF_KEPT,
    outcome,
    record,
    trace_name,
)
from orchestrator.http.rendering import joined
from orchestrator.http.service import Service
from orchestrator.http.tools.answer_reader import calls_at_end, calls_of
from orchestrator.loop.accumulator import ResponseAccumulator
from orchestrator.loop.events import Event, RequestCompleted
from orchestrator.loop.request import Hurry, Request
from orchestrator.loop.solve import solve
from orchestrator.telemetry.logs import about

log = logging.getLogger(__name__)

SHUTDOWN_S: Final = 1.0  # seconds in which to tell a client that the server stops
STREAM_HEADERS: Final = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}


class _ClientGone(Exception):
    """The client disconnected."""


class EventQueue:
    """Queue a request's events: a task for each answer adds them, `take` returns the new ones.

    `each` consecutive answers share one prompt (None: all do). All but the first of them start once
    it has read the prompt, so that they find it cached.
    """

    def __init__(
        self, choices: Sequence[AsyncGenerator[Event, None]], each: int | None = None
    ) -> None:
        self._ready: list[tuple[int, Event]] = []
        self._error: Exception | None = None
        self.failed: int | None = None  # the index of the answer that failed first
        self._news, self._each = asyncio.Event(), each or len(choices)
        self._prompts_read = [asyncio.Event() for _ in choices[:: self._each]]
        self._tasks = {
            asyncio.create_task(self._produce(index, events))
            for index, events in enumerate(choices)
        }

    async def _produce(self, index: int, events: AsyncGenerator[Event, None]) -> None:
        # One task starts, runs and closes the generator, since its timeouts and task groups belong
        # to the task that entered them.
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
        """Wait for events; return those since the last call, each with its answer's index.

        Return none after `timeout_s` seconds of silence. Raise the first error of a generator.
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
        await stop(*self._tasks)


class Answer:
    """Run the step loop for one answer; count and record it."""

    def __init__(self, service: Service, choice: Choice, place: Place, hurry: Hurry) -> None:
        self._service, self.choice, self._place = service, choice, place
        self.response = ResponseAccumulator()
        self.response.find_calls = partial(calls_at_end, choice, self.response)
        self.encoder = choice.ask.encoder(choice, self.response)
        self._recorded = self._exposed = False
        # Now: the deadline includes the wait until the first answer has read the prompt.
        self._began_at = asyncio.get_running_loop().time()
        self._request = Request(
            choice.trace_id,
            choice.messages,
            choice.sampling,
            choice.ask.limits,
            choice.plan.speculation,
            choice.owner,
            choice.affinity,
            service.settings.remarks,
            hurry,
        )

    async def events(self) -> AsyncGenerator[Event, None]:
        """Run the step loop under metrics and spans; yield its events."""
        service, choice, response = self._service, self.choice, self.response
        plan, workers = choice.plan, service.pools.workers
        if plan.enrollment is not None:
            service.shared.recorder.exposure(plan.enrollment, choice.trace_id)
            self._exposed = True
        with ExitStack() as observers:
            observers.enter_context(service.metrics.request(plan.name, response))
            if service.spans is not None:
                headers, attributes = choice.incoming.headers, choice.span_attributes
                observers.enter_context(service.spans.request(headers, attributes, response))
            begun = prompt_read = False
            answering = solve(plan.policy, self._request, workers, response)
            seconds = choice.ask.limits.deadline_s
            async with deadline(seconds, self._began_at), aclosing(answering) as events:
                async for event in events:
                    if not prompt_read and (tokens := response.prompt.prompt):
                        prompt_read = True
                        if choice.reads_prompt:  # replace the estimate by the count
                            self._place.prompt += tokens - estimated_tokens(choice.messages)
                    if not begun:
                        begun = True
                        await self.encoder.before(workers)
                    if isinstance(event, RequestCompleted):
                        response.called = bool(calls_of(choice, response))
                        await self.encoder.after(workers)
                    yield event

    def record(self, status: Status, error: Json | None = None) -> None:
        """Queue the record and the outcome for the store; only the first call has an effect."""
        if self._recorded:
            return
        self._recorded = True
        shared, choice, response = self._service.shared, self.choice, self.response
        incoming, enrollment = choice.incoming, choice.plan.enrollment
        data = dump(record(choice, response, status, error))
        ttl_s = self._service.settings.trace_ttl_s
        shared.outbox.put(trace_name(choice.trace_id), data, ttl_s=ttl_s)
        ended = outcome(choice, response, status, error)
        shared.outbox.event(OUTCOMES, ended.model_dump())
        if not incoming.caller.sees_all:
            own = f"{OUTCOMES_OF}{incoming.key}"
            shared.outbox.event(own, ended.model_dump(), keep=OUTCOMES_OF_KEPT)
        if enrollment is not None and self._exposed:
            asked = replace(self._request, speculation=None, session="", hurry=None)
            again = ShadowRequest(asked, response.answer, choice.plan.thought_cap)
            shared.recorder.outcome(enrollment, ended, again)


class AnswerResponse(Response):
    """The response to a request for a text: a JSON object, or a stream of server-sent events."""

    def __init__(self, service: Service, ask: Ask, incoming: Incoming) -> None:
        super().__init__()
        self._service, self._ask, self._incoming = service, ask, incoming
        self._patience = service.settings.patience
        self._answers: list[Answer] = []
        self._started = self._ended = self._cut = False
        self._sent_at = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def bounded(message: Message) -> None:
            try:
                async with asyncio.timeout(self._patience.send_s):
                    await send(message)
            except (TimeoutError, OSError):
                raise _ClientGone from None

        incoming, live = self._incoming, self._service.live
        trace_id = incoming.trace_id
        names = {incoming.request_id, trace_id, self._ask.api.id_prefix + trace_id}
        with about(trace_id=trace_id), live.hurry(names, incoming.key) as hurry:
            async with self._service.admit(self._ask, incoming) as (choices, place):
                self._answers = [Answer(self._service, one, place, hurry) for one in choices]
                writer = asyncio.create_task(self._write(bounded, place))
                watch = asyncio.create_task(_wait_for_hangup(receive))

                def cut() -> None:
                    self._cut = True
                    watch.cancel()

                live.cuts.add(cut)
                try:
                    await asyncio.wait({writer, watch}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    live.cuts.remove(cut)
                    await stop(watch, writer)
                if not writer.cancelled():
                    writer.result()
                elif self._cut:
                    await self._report_shutdown(scope, receive, send)

    async def _write(self, send: Send, place: Place) -> None:
        events = EventQueue([answer.events() for answer in self._answers], self._ask.answers_each)
        try:
            try:
                if self._ask.stream:
                    await self._write_stream(events, send)
                else:
                    await self._write_whole(events, send)
            except BaseException:
                place.broke_off = True  # then its duration is not counted
                raise
            finally:
                await events.close()
        except asyncio.CancelledError:
            if self._cut:
                self._record("failed", shutting_down().body["error"])
            else:
                self._record("cancelled")
            raise
        except _ClientGone:
            self._record("cancelled")
        except Exception as error:
            if isinstance(error, Unsupported):
                error.policy = self._answers[0].choice.plan.name
            elif isinstance(error, InvalidRequest) and error.param == "messages":
                error.param = self._ask.api.question  # workers call every question `messages`
            shown = http_error(error)
            failed = shown.body["error"]
            if isinstance(error, WorkerError) and error.worker is not None:
                failed = failed | {"worker": error.worker}  # for the record only
            self._record("failed", failed, events.failed)
            if not self._started:
                raise
            log.error("trace %s broke off: %s", self._incoming.trace_id, describe(error))
            with suppress(_ClientGone):
                await self._send(send, self._answers[0].encoder.failure(shown), more=False)

    async def _write_whole(self, events: EventQueue, send: Send) -> None:
        writing = len(self._answers)
        while writing:
            writing -= sum(isinstance(event, RequestCompleted) for _, event in await events.take())
        wholes = [answer.encoder.whole() for answer in self._answers]
        body = dump(joined(wholes, self._ask.answers_each))
        self._record("finished")
        headers = {"content-type": "application/json", "content-length": str(len(body))}
        await self._start(send, headers)
        await self._send(send, body, more=False)

    async def _write_stream(self, events: EventQueue, send: Send) -> None:
        times, writing = self._patience, len(self._answers)
        while writing:
            patience = times.ping_s - self._silent_s if self._started else times.headers_s
            batch = await events.take(max(0.0, patience))
            if not self._started:
                await self._start(send, STREAM_HEADERS)
                await self._send(send, b"".join(one.encoder.begin() for one in self._answers))
            batches = [
                (answer, news)
                for index, answer in enumerate(self._answers)
                if (news := [event for of, event in batch if of == index])
            ]
            if data := b"".join(answer.encoder.more(news) for answer, news in batches):
                await self._send(send, data)
            elif self._silent_s >= times.ping_s:  # also while new text cannot be shown yet
                await self._send(send, self._ask.api.ping)
            ended = [answer for answer, news in batches if isinstance(news[-1], RequestCompleted)]
            writing -= len(ended)
            for answer in ended:
                answer.record("finished")
            if data := b"".join(answer.encoder.finish() for answer in ended):
                if not writing:
                    data += ended[0].encoder.end([one.response for one in self._answers])
                await self._send(send, data, more=writing > 0)

    async def _start(self, send: Send, headers: dict[str, str]) -> None:
        self._started = True
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": 200, "headers": raw})

    @property
    def _silent_s(self) -> float:
        return perf_counter() - self._sent_at

    async def _send(self, send: Send, data: bytes, *, more: bool = True) -> None:
        self._ended, self._sent_at = not more, perf_counter()
        await send({"type": "http.response.body", "body": data, "more_body": more})

    def _record(self, status: Status, error: Json | None = None, failed: int | None = None) -> None:
        """Record how the answers ended. If one `failed`, the unfinished others were cancelled."""
        for index, answer in enumerate(self._answers):
            if failed in (None, index):
                answer.record(status, error)
            else:
                answer.record("cancelled" if answer.response.completed is None else "finished")

    async def _report_shutdown(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the error of a service that stops during an answer, if the client still reads."""
        error = shutting_down()
        with suppress(Exception):
            async with asyncio.timeout(SHUTDOWN_S):
                if not self._started:
                    await error_response(error, scope)(scope, receive, send)
                elif self._ask.stream and not self._ended:
                    failure = self._answers[0].encoder.failure(error)
                    await self._send(send, failure, more=False)


async def _wait_for_hangup(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
