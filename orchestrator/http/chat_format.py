"""An answer in the form of a chat completion; and what every form of an answer has.

A form (chat completion, completion, response) turns the events of one answer into what clients
read. It knows no connection, and no other answers to the same request: `ChatResponse` puts them
together, and sends what they give.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress

from orchestrator.errors import ContextLengthExceeded
from orchestrator.http.call_reader import AnswerReader
from orchestrator.http.chat_schema import ChatRequest
from orchestrator.http.context import RequestContext
from orchestrator.http.rendering import (
    DONE,
    Json,
    Stripped,
    answer_deltas,
    baton,
    chunk,
    completion,
    deltas,
    running_usage,
    sse,
    usage,
    usage_chunk,
)
from orchestrator.http.scores import TokenScore, check_scoring, score_answer, shown_tokens
from orchestrator.http.stream_events import StreamEvents, beginning
from orchestrator.loop.accumulator import ResponseAccumulator
from orchestrator.loop.actions import WorkerName
from orchestrator.loop.events import Event
from orchestrator.worker import Worker


class AnswerFormat(ABC):
    """One answer in the form of one of the API's paths.

    Args:
        context: the request, or the one of its answers that this is.
        response: what its events amount to so far; each is in there before it comes here.
    """

    def __init__(self, context: RequestContext, response: ResponseAccumulator) -> None:
        self.context, self.response = context, response

    async def before(self, workers: Mapping[WorkerName, Worker]) -> None:  # noqa: B027 (optional)
        """Ask `workers` what the form needs besides the answer, once the prompt is read; a worker
        that cannot tell refuses here, before anything is shown."""

    async def after(self, workers: Mapping[WorkerName, Worker]) -> None:  # noqa: B027 (optional)
        """Ask `workers` what the form needs of the finished answer."""

    @abstractmethod
    def whole(self) -> Json:
        """The body of an answer that is not streamed, as if it were the only one."""

    @abstractmethod
    def begin(self) -> bytes:
        """How the answer begins in a stream, once the prompt is read."""

    @abstractmethod
    def more(self, events: Sequence[Event]) -> bytes:
        """What a stream shows of these events; empty for nothing."""

    @abstractmethod
    def finish(self) -> bytes:
        """How the answer ends in a stream."""

    def end(self, responses: Sequence[ResponseAccumulator]) -> bytes:
        """How a stream ends in which all of a request's answers have ended: these."""
        return b""

    def failure(self, body: Json) -> bytes:
        """The end of a stream that broke off; `body` is the error as OpenAI has it."""
        return sse(body)


class ChatFormat(AnswerFormat):
    """`POST /v1/chat/completions`; `thought_in` names the fields that hold the thought."""

    def __init__(
        self, context: RequestContext, response: ResponseAccumulator, thought_in: Sequence[str]
    ) -> None:
        super().__init__(context, response)
        body = context.body
        assert isinstance(body, ChatRequest)
        self._body, self._thought_in = body, thought_in
        self._strip = Stripped(begun=body.continue_final_message)
        self._answer = AnswerReader(context, response)
        self._events = StreamEvents(response) if body.wants_events else None
        self._logprobs: Json | None = None  # where they are asked for

    async def before(self, workers: Mapping[WorkerName, Worker]) -> None:
        if self._body.logprobs:
            await check_scoring(self.context, self.response, workers, self._body.top_logprobs)

    async def after(self, workers: Mapping[WorkerName, Worker]) -> None:
        if self._body.logprobs:
            with suppress(ContextLengthExceeded):  # the answer itself is there, and stays
                top = self._body.top_logprobs
                scored = await score_answer(self.context, self.response, workers, top)
                tokens = shown_tokens(scored, begun=self._body.continue_final_message)
                self._logprobs = _logprobs(tokens)

    def whole(self) -> Json:
        return completion(self.context, self.response, self._thought_in, self._logprobs)

    def begin(self) -> bytes:
        first = chunk(self.context, {"role": "assistant", "content": ""})
        return sse(first if self._events is None else {**first, "baton": beginning(self.context)})

    def more(self, events: Sequence[Event]) -> bytes:
        chunks = [
            chunk(self.context, delta)
            for delta in deltas(events, self._answer, self._strip, self._thought_in)
        ]
        if chunks and self._body.wants_running_usage:
            chunks[-1]["usage"] = running_usage(self.response)
        if self._events is not None and (told := self._events.more(events)) is not None:
            told = {"index": self.context.index, **told}
            chunks.append({**chunk(self.context, {}), "choices": [], "baton": told})
        return b"".join(map(sse, chunks))

    def finish(self) -> bytes:
        rest = [
            chunk(self.context, delta) for delta in answer_deltas(self._answer.end(), self._strip)
        ]
        if self._logprobs is not None:
            rest.append(chunk(self.context, {}, logprobs=self._logprobs))
        finish = self.response.finish_reason
        last = chunk(self.context, {}, finish)
        if self._body.wants_running_usage:
            last["usage"] = usage(self.response)
        data = b"".join(map(sse, rest))
        return data + sse({**last, "baton": baton(self.context, self.response)})

    def end(self, responses: Sequence[ResponseAccumulator]) -> bytes:
        data = sse(usage_chunk(self.context, responses)) if self._body.wants_usage else b""
        return data + DONE


def _logprobs(tokens: Sequence[tuple[TokenScore, Sequence[TokenScore]]]) -> Json:
    """As OpenAI lists them: each token, and the likeliest in its place."""
    rows = [{**_row(token), "top_logprobs": list(map(_row, likely))} for token, likely in tokens]
    return {"content": rows, "refusal": None}


def _row(token: TokenScore) -> Json:
    # A token without text has no bytes of its own: a character that lies across tokens belongs to
    # the one that completes it.
    known = list(token.text.encode()) if token.text else None
    return {"token": token.name, "logprob": token.logprob, "bytes": known}
