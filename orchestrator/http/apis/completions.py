"""`POST /v1/completions`: texts or token ids that one model continues as they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import Annotated

from pydantic import Field, PlainValidator, model_validator

from orchestrator.errors import ContextLengthExceeded, InvalidRequest
from orchestrator.http.api import TEXT_COMPLETION, sse
from orchestrator.http.apis.answer_form import AnswerForm
from orchestrator.http.apis.chunks import ChunkEncoder
from orchestrator.http.apis.parameters import (
    MOST_LIKELY,
    UNSUPPORTED,
    Choices,
    TextRequest,
    allowed,
)
from orchestrator.http.apis.scores import ScoredSegment, Scorer, TokenScore
from orchestrator.http.ask import Ask, Choice, Labels
from orchestrator.http.body import Json, contradiction, parse_request
from orchestrator.http.settings import HttpSettings
from orchestrator.loop.accumulator import ResponseAccumulator
from orchestrator.loop.actions import WorkerName
from orchestrator.loop.events import Event, TextDelta
from orchestrator.types import Message, Segment, Transcript
from orchestrator.worker import Worker


def _prompts(given: object) -> tuple[str | tuple[int, ...], ...]:
    """Read one prompt, or a list of them. Anything else is refused here, since pydantic's error
    would name every branch of the union."""
    listed = given if isinstance(given, list) and given and not _is_id(given[0]) else [given]
    places = [f"prompt[{i}]" for i in range(len(listed))] if len(listed) > 1 else ["prompt"]
    return tuple(map(_prompt, listed, places))


def _prompt(given: object, place: str) -> str | tuple[int, ...]:
    if given in ("", []):
        raise contradiction(place, "must not be empty")
    if isinstance(given, str):
        return given
    if isinstance(given, list) and all(map(_is_id, given)):
        return tuple(given)
    said = "must be a string or an array of token ids"
    raise InvalidRequest(f"{place}: {said}", param=place, code="invalid_type")


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31


class CompletionRequest(AnswerForm, TextRequest):
    """A text completion, by a policy of one model: no chat template, no thought, no steps."""

    unsupported = {  # noqa: RUF012 (a constant)
        "tools": ([],),
        "tool_choice": ("none", "auto"),
        **UNSUPPORTED,
        "add_special_tokens": (True,),
        "suffix": ("",),
        "top_logprobs": (0,),
        "prompt_logprobs": (0,),
    }

    prompt: Annotated[
        tuple[str | tuple[int, ...], ...],
        PlainValidator(
            _prompts, json_schema_input_type=str | list[int] | list[str] | list[list[int]]
        ),
    ] = Field(description="a text, or the ids of its tokens; or several of them")
    max_tokens: Annotated[int, Field(ge=0)] = Field(
        default=16, description="cap on the continuation; 0, with echo: the prompt alone"
    )
    n: Choices = Field(default=1, description="how many answers to give to each prompt")
    echo: bool = Field(default=False, description="show the prompt before its continuation")
    logprobs: Annotated[int, Field(ge=0, le=MOST_LIKELY)] | None = Field(
        default=None,
        description="log-probabilities of the tokens, and of this many of the most likely ones "
        "at each place",
    )

    @model_validator(mode="after")
    def _whole_only(self) -> CompletionRequest:
        for name, given in (("echo", self.echo), ("logprobs", self.logprobs is not None)):
            if given and self.stream:
                raise contradiction(name, "only allowed when stream is false")
        if not (self.max_tokens or self.echo):
            raise contradiction("max_tokens", "must be at least 1, or 0 if echo is true")
        if self.logprobs is not None and self.stop:
            raise contradiction("logprobs", "only allowed without stop")
        return self


def parse(given: bytes, settings: HttpSettings) -> Ask:
    body, warnings = parse_request(given, CompletionRequest, strict=settings.strict)
    prompts = len(body.prompt)
    form = body.form and replace(body.form, exact=True)
    return Ask(
        TEXT_COMPLETION,
        tuple(
            (Message("prompt", one) if isinstance(one, str) else Message("prompt", "", one),)
            for one in body.prompt
        ),
        replace(body.asked_policy(), alone="model"),
        body.sampling,
        body.limits(settings, ("max_tokens", body.max_tokens), body.stop, form, thinks=False),
        partial(CompletionEncoder, body),
        choices=allowed("n" if prompts == 1 else "prompt", body.n * prompts, settings),
        seed=body.seed,
        stream=body.stream,
        labels=Labels(body.user, body.metadata, body.priority, warnings),
    )


class CompletionEncoder(ChunkEncoder):
    """Encodes a text completion: the text as the model wrote it, white space included."""

    kind = chunk_kind = "text_completion"

    def __init__(
        self, body: CompletionRequest, choice: Choice, response: ResponseAccumulator
    ) -> None:
        super().__init__(body, choice, response)
        self._body = body
        self._prompt: ScoredSegment | None = None  # if it is asked for
        self._answer: list[ScoredSegment] | None = None  # if it is asked for and can be scored

    async def before(self, workers: Mapping[WorkerName, Worker]) -> None:
        body, (prompt,) = self._body, self.choice.messages
        if body.echo and (body.logprobs is not None or prompt.tokens is not None):
            self._prompt = await self._score_prompt(workers)
        elif body.logprobs is not None:  # only a call shows whether the worker can score
            await Scorer(self.choice, self.response, workers, body.logprobs).check()

    async def after(self, workers: Mapping[WorkerName, Worker]) -> None:
        if self._body.logprobs is not None and self._body.max_tokens:
            with suppress(ContextLengthExceeded):  # then the answer is sent without scores
                scorer = Scorer(self.choice, self.response, workers, self._body.logprobs)
                self._answer = await scorer.answer()

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
            text = self.choice.messages[0].content + text
        return self.completion(self._choice(text, self.response.finish_reason, logprobs))

    def begin(self) -> bytes:
        return b""

    def more(self, events: Sequence[Event]) -> bytes:
        text = "".join(event.text for event in events if isinstance(event, TextDelta))
        return sse(self.chunk(self._choice(text), self.running_usage)) if text else b""

    def finish(self) -> bytes:
        return self.last_chunk(self._choice("", self.response.finish_reason))

    def _choice(self, text: str, finish: str | None = None, logprobs: Json | None = None) -> Json:
        return {
            "index": self.choice.index,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": finish,
        }

    async def _score_prompt(self, workers: Mapping[WorkerName, Worker]) -> ScoredSegment:
        """Score the prompt's tokens, after the ones that the tokenizer puts before every text."""
        (prompt,) = self.choice.messages
        nothing = Message("prompt", "", None if prompt.tokens is None else ())
        segment = Segment("policy", prompt.content)
        if prompt.tokens is not None:
            segment = Segment("policy", "", prompt.tokens, tokenizer=self.response.vocabulary)
        (name,) = self.choice.plan.policy.called
        before = Transcript((nothing,)).without_thought()
        scorer = Scorer(self.choice, self.response, workers, self._body.logprobs or 0)
        return await scorer.verify(name, before, segment, "echo")

    @property
    def _unwritten(self) -> bool:
        """Whether a token without text ends the answer: the model's end, or a part of a character
        and nothing else. Evaluations that ask for one token expect a row for it."""
        assert self.response.completed is not None
        transcript = self.response.completed.transcript
        return transcript.ends > 0 or not transcript.answer


def _logprobs(scored: Sequence[ScoredSegment], echo: bool, unwritten: bool) -> Json:
    """Return OpenAI's lists; the first token of an echoed text has no log-probability.

    `unwritten`: add a row for a token without text after the scored ones.
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
        top.append(_by_name([*scored[-1].likely_after(), TokenScore("", "", value)]))
    if echo and values:
        values[0] = top[0] = None
    offsets = list(accumulate(widths, initial=0))[:-1]
    return {"tokens": tokens, "token_logprobs": values, "top_logprobs": top, "text_offset": offsets}


def _by_name(tokens: Sequence[TokenScore]) -> Json:
    """Map names to log-probabilities, the most likely first; if names are equal the most likely
    counts, but the last token keeps its own."""
    row: Json = {}
    for one in sorted(tokens, key=lambda one: -one.logprob):
        row.setdefault(one.name, one.logprob)
    return row | {tokens[-1].name: tokens[-1].logprob}


def _widths(scored: ScoredSegment) -> Iterator[int]:
    """Yield how many shown characters each token has; markup in an answer has none."""
    text, at, is_prompt = scored.segment.text, 0, scored.segment.author == "policy"
    for piece in scored.scores.pieces:
        width = len(piece) if is_prompt or text.startswith(piece, at) else 0
        at += width
        yield width
