"""An answer in the form of a text completion: `POST /v1/completions`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate

from orchestrator.errors import ContextLengthExceeded
from orchestrator.http.chat_format import AnswerFormat
from orchestrator.http.completion_schema import CompletionRequest
from orchestrator.http.context import RequestContext
from orchestrator.http.rendering import (
    DONE,
    Json,
    baton,
    head,
    running_usage,
    sse,
    total_usage,
    usage,
)
from orchestrator.http.scores import (
    ScoredSegment,
    TokenScore,
    check_scoring,
    score_answer,
    verify,
)
from orchestrator.loop.accumulator import ResponseAccumulator
from orchestrator.loop.actions import WorkerName
from orchestrator.loop.events import Event, TextDelta
from orchestrator.types import Message, Segment, Transcript
from orchestrator.worker import Worker


class CompletionFormat(AnswerFormat):
    """The text as the model wrote it, white space and all."""

    def __init__(self, context: RequestContext, response: ResponseAccumulator) -> None:
        super().__init__(context, response)
        assert isinstance(context.body, CompletionRequest)
        self._body = context.body
        self._prompt: ScoredSegment | None = None  # where that is asked for
        self._answer: list[ScoredSegment] | None = None  # where it is asked for, and can be had

    async def before(self, workers: Mapping[WorkerName, Worker]) -> None:
        body, (prompt,) = self._body, self.context.messages
        if body.echo and (body.logprobs is not None or prompt.tokens is not None):
            self._prompt = await self._score_prompt(workers)
        elif body.logprobs is not None:  # only a call shows whether the worker can score
            await check_scoring(self.context, self.response, workers, body.logprobs)

    async def after(self, workers: Mapping[WorkerName, Worker]) -> None:
        if self._body.logprobs is not None and self._body.max_tokens:
            with suppress(ContextLengthExceeded):  # the answer itself is there, and stays
                top = self._body.logprobs
                self._answer = await score_answer(self.context, self.response, workers, top)

    def whole(self) -> Json:
        body, text, logprobs = self._body, self.response.raw_answer, None
        if self._answer is not None:
            scored = [*([] if self._prompt is None else [self._prompt]), *self._answer]
            logprobs = _logprobs(scored, body.echo, self._unwritten)
        elif self._prompt is not None and body.logprobs is not None and not body.max_tokens:
            logprobs = _logprobs([self._prompt], echo=True, unwritten=False)
        if self._prompt is not None:
            text = "".join(self._prompt.scores.pieces) + text
        elif body.echo:
            text = self.context.messages[0].content + text
        return {
            **self._choice(text, self.response.finish_reason, logprobs),
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

    def finish(self) -> bytes:
        last = self._chunk("", self.response.finish_reason, usage(self.response))
        return sse({**last, "baton": baton(self.context, self.response)})

    def end(self, responses: Sequence[ResponseAccumulator]) -> bytes:
        if not self._body.wants_usage:
            return DONE
        last = self._chunk("", None, None)
        total = total_usage(map(usage, responses), self.context.answers_each)
        return sse({**last, "choices": [], "usage": total}) + DONE

    def _chunk(self, text: str, finish: str | None, so_far: Json | None) -> Json:
        made = self._choice(text, finish)
        if not self._body.wants_usage:
            return made
        return {**made, "usage": so_far if self._body.wants_running_usage else None}

    def _choice(self, text: str, finish: str | None, logprobs: Json | None = None) -> Json:
        choice = {
            "index": self.context.index,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": finish,
        }
        return {**head(self.context, "text_completion"), "choices": [choice]}

    async def _score_prompt(self, workers: Mapping[WorkerName, Worker]) -> ScoredSegment:
        """The prompt's tokens, behind whatever any text begins with."""
        (prompt,) = self.context.messages
        nothing = Message("prompt", "", None if prompt.tokens is None else ())
        segment = Segment("policy", prompt.content)
        if prompt.tokens is not None:
            segment = Segment("policy", "", prompt.tokens, tokenizer=self.response.vocabulary)
        (name,) = self.context.policy.called
        before = Transcript((nothing,)).without_thought()
        top = self._body.logprobs or 0
        return await verify(
            self.context, self.response, workers, name, before, segment, top, "echo"
        )

    @property
    def _unwritten(self) -> bool:
        """Whether a token was made that no text shows: the model's own end, or, where there is
        nothing else, half a character. Evaluations that ask for one token count on its row."""
        assert self.response.completed is not None
        transcript = self.response.completed.transcript
        return transcript.ends > 0 or not transcript.answer


def _logprobs(scored: Sequence[ScoredSegment], echo: bool, unwritten: bool) -> Json:
    """As OpenAI lists them: the first token of an echoed text has none.

    `unwritten`: a token that no text shows follows the scored ones, with a row of its own.
    """
    tokens, values, top = list[str](), list[float | None](), list[Json | None]()
    widths = [width for one in scored for width in _widths(one)]
    for one in scored:
        for token, likely in one.tokens():
            tokens.append(token.name)
            values.append(token.logprob)
            top.append(_by_name([*likely, token]))
    if unwritten:
        last = scored[-1].scores
        value = last.logprobs[-1] if last.ending is None else -last.ending
        tokens.append("")
        widths.append(0)
        values.append(value)
        top.append(_by_name([*scored[-1].behind(), TokenScore("", "", value)]))
    if echo and values:
        values[0] = top[0] = None
    offsets = list(accumulate(widths, initial=0))[:-1]
    return {
        "tokens": tokens,
        "token_logprobs": values,
        "top_logprobs": top,
        "text_offset": offsets,
    }


def _by_name(tokens: Sequence[TokenScore]) -> Json:
    """Log-probabilities by name, the likeliest first; the last of the tokens has its own."""
    row: Json = {}
    for one in sorted(tokens, key=lambda one: -one.logprob):
        row.setdefault(one.name, one.logprob)
    return row | {tokens[-1].name: tokens[-1].logprob}


def _widths(scored: ScoredSegment) -> Iterator[int]:
    """How much of the shown text each token is: of an answer, markup is not shown."""
    text, at, is_prompt = scored.segment.text, 0, scored.segment.author == "policy"
    for piece in scored.scores.pieces:
        width = len(piece) if is_prompt or text.startswith(piece, at) else 0
        at += width
        yield width
