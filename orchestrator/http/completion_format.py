"""An answer in the form of a text completion: `POST /v1/completions`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate

from orchestrator.http.chat_format import AnswerFormat
from orchestrator.http.completion_schema import CompletionRequest
from orchestrator.http.context import RequestContext
from orchestrator.http.rendering import (
    TEXT_COMPLETION,
    Json,
    baton,
    finish_reason,
    running_usage,
    sse,
    usage,
)
from orchestrator.loop.accumulator import ResponseAccumulator
from orchestrator.loop.actions import WorkerName
from orchestrator.loop.events import Event, TextDelta
from orchestrator.types import (
    NO_SEGMENTS,
    Message,
    Sampling,
    Segment,
    Segments,
    Transcript,
    Verification,
)
from orchestrator.worker import Call, Worker


class CompletionFormat(AnswerFormat):
    """The text as the model wrote it, white space and all."""

    def __init__(self, context: RequestContext, response: ResponseAccumulator) -> None:
        super().__init__(context, response)
        assert isinstance(context.body, CompletionRequest)
        self._body = context.body
        self._prompt: Verification | None = None  # scored, where that is asked for
        self._answer: list[Verification] = []

    async def before(self, workers: Mapping[WorkerName, Worker]) -> None:
        body = self._body
        if body.echo and (body.logprobs is not None or not isinstance(body.prompt, str)):
            self._prompt = await self._score_prompt(workers)
        elif body.logprobs is not None:  # only a call shows whether the worker can score
            (prompt,) = self.context.messages
            await self._verify(workers, prompt, Segment(self._worker, ""))

    async def after(self, workers: Mapping[WorkerName, Worker]) -> None:
        if self._body.logprobs is not None:
            self._answer = await self._score_answer(workers)

    def whole(self) -> Json:
        body, text = self._body, self.response.raw_answer
        scored = self._answer
        if self._prompt is not None:
            scored = [self._prompt, *scored]
            text = "".join(self._prompt.pieces) + text
        elif body.echo:
            text = str(body.prompt) + text
        logprobs = None if body.logprobs is None else _logprobs(scored, body.echo, self._unwritten)
        return {
            **self._choice(text, finish_reason(self.response), logprobs),
            "usage": usage(self.response),
            "baton": baton(self.context, self.response),
        }

    def begin(self) -> bytes:
        return b""

    def more(self, events: Sequence[Event]) -> bytes:
        text = "".join(event.text for event in events if isinstance(event, TextDelta))
        if not text:
            return b""
        return sse(self._chunk(text, None, running_usage(self.response)))

    def end(self) -> bytes:
        total = usage(self.response)
        last = self._chunk("", finish_reason(self.response), total)
        data = sse({**last, "baton": baton(self.context, self.response)})
        if self._body.wants_usage:
            data += sse({**last, "choices": [], "usage": total})
        return data + b"data: [DONE]\n\n"

    def _chunk(self, text: str, finish: str | None, so_far: Json | None) -> Json:
        made = self._choice(text, finish)
        if not self._body.wants_usage:
            return made
        return {**made, "usage": so_far if self._body.wants_running_usage else None}

    def _choice(self, text: str, finish: str | None, logprobs: Json | None = None) -> Json:
        return {
            "id": TEXT_COMPLETION + self.context.trace_id,
            "object": "text_completion",
            "created": self.context.created,
            "model": self._body.model,
            "choices": [{"index": 0, "text": text, "logprobs": logprobs, "finish_reason": finish}],
        }

    async def _score_prompt(self, workers: Mapping[WorkerName, Worker]) -> Verification:
        """The prompt's tokens, behind whatever any text begins with."""
        (prompt,) = self.context.messages
        if prompt.tokens is None:
            return await self._verify(
                workers, Message("prompt", ""), Segment("policy", prompt.content)
            )
        segment = Segment("policy", "", prompt.tokens, tokenizer=self.response.vocabulary)
        return await self._verify(workers, Message("prompt", "", ()), segment)

    async def _score_answer(self, workers: Mapping[WorkerName, Worker]) -> list[Verification]:
        assert self.response.completed is not None
        (prompt,) = self.context.messages
        answer = self.response.completed.transcript.answer
        segments = list(answer) or [Segment(self._worker, "", finish="eos")]
        return [
            await self._verify(workers, prompt, segment, answer.first(number))
            for number, segment in enumerate(segments)
        ]

    @property
    def _unwritten(self) -> bool:
        """Whether a token was made that no text shows: the model's own end, or, where there is
        nothing else, half a character. Evaluations that ask for one token count on its row."""
        assert self.response.completed is not None
        transcript = self.response.completed.transcript
        return transcript.ends > 0 or not transcript.answer

    @property
    def _worker(self) -> WorkerName:
        (name,) = self.context.policy.workers
        return name

    async def _verify(
        self,
        workers: Mapping[WorkerName, Worker],
        prompt: Message,
        segment: Segment,
        before: Segments = NO_SEGMENTS,
    ) -> Verification:
        transcript = Transcript((prompt,), answer=before, thinking=False, closed=True)
        call = Call(self.context.trace_id, transcript, self._worker, owner=self.context.owner)
        return await workers[self._worker].verify(call, segment, Sampling())


def _logprobs(scored: Sequence[Verification], echo: bool, unwritten: bool) -> Json:
    """As OpenAI lists them: the first token of an echoed text has none.

    `unwritten`: a token that no text shows follows the scored ones, with a row of its own.
    """
    tokens = [piece for one in scored for piece in one.pieces]
    values: list[float | None] = [-nll for one in scored for nll in one.nll]
    top: list[Json | None] = []
    for one in scored:
        rows = zip(one.pieces, one.nll, one.choices, one.options, one.logprobs, strict=False)
        for piece, nll, choice, option, logprob in rows:  # the last choice follows all tokens
            top.append({option.text or f"token_id:{choice}": logprob, piece: -nll})
    if unwritten:
        last = scored[-1]
        value = last.logprobs[-1] if last.ending is None else -last.ending
        tokens.append("")
        values.append(value)
        choice, option = last.choices[-1], last.options[-1]
        ends = option.finish in ("eos", "think_end")
        best = {} if ends else {option.text or f"token_id:{choice}": last.logprobs[-1]}
        top.append({**best, "": value})
    if echo and values:
        values[0] = top[0] = None
    offsets = list(accumulate(map(len, tokens), initial=0))[:-1]
    return {
        "tokens": tokens,
        "token_logprobs": values,
        "top_logprobs": top,
        "text_offset": offsets,
    }
