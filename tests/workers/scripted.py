"""A worker that plays back given answers: for tests, and for examples in the documentation.

    Scripted(["First, 2+2=4.\\n\\n", Say("So it is four.", "think_end"), "4"], scores=[9])
    Scripted(story=("First, 2+2=4.\\n\\nSo it is four.", "4"))

Tokens are words with the white space behind them, so that a test can read them off the text. Every
call is recorded in `calls`; `live` counts those in progress.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal
from zlib import crc32

from orchestrator.errors import ContextLengthExceeded, InvalidRequest, WorkerUnavailable
from orchestrator.types import (
    ENDED,
    GREEDY,
    CallFormat,
    Classification,
    Finish,
    Generation,
    LabelQuery,
    LikelyToken,
    Sampling,
    Segment,
    StopCriteria,
    Transcript,
    Usage,
    Verification,
)
from orchestrator.worker import Call, Delta

DELIMITER = "\n\n"


@dataclass(frozen=True, slots=True)
class Say:
    """A continuation with its end, and each token's log-probability."""

    text: str
    finish: Finish | None = None  # None: as the stop criteria say, or else the model ends its phase
    logprob: float = -0.1


Operation = Literal["generate", "classify", "verify"]
Line = str | Say | BaseException
Score = float | Classification | Verification | BaseException


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """One call that the worker got; `args` are the arguments after `call`."""

    operation: Operation
    call: Call
    args: tuple[Any, ...]


def words(text: str) -> list[str]:
    """The fake tokens of a text; together they are the text."""
    return re.findall(r"\s+|\S+\s*", text)


def segment(author: Any, text: str, finish: Finish = "until", logprob: float = -0.1) -> Segment:
    """A segment as a scripted worker would have written it."""
    tokens = tuple(crc32(word.encode()) for word in words(text))
    return Segment(author, text, tokens, (logprob,) * len(tokens), "words", finish)


@dataclass
class Scripted:
    """A `Worker` that plays back a script.

    lines: continuations, one a call, in order; or a function of the transcript and the
        stop criteria.
    story: a whole thought and answer instead; a call continues it where the transcript ends, or, if
        the transcript is not a part of it, with the step of the same number.
    scores: answers of `classify` (a number: the whole probability is on that digit) and of `verify`
        (every token's negative log-likelihood), one a call, the last one repeated; or a function of
        the transcript. Its choices in `verify` are the story's words, or else those of the draft,
        followed by its next line.
    delay: seconds per token, and per call of `classify` and `verify`.
    failures: call number (from 0, preflight not counted) -> the error it raises.
    deaths: call number -> tokens after which a generation's stream dies.
    """

    lines: Sequence[Line] | Callable[[Transcript, StopCriteria], Line] = ()
    story: tuple[str, str] | None = None
    scores: Sequence[Score] | Callable[[Transcript], Score] = (9.0,)
    delay: float = 0.0
    failures: Mapping[int, BaseException] = field(default_factory=dict)
    deaths: Mapping[int, int] = field(default_factory=dict)
    context: int | None = None
    sampling: Sampling = GREEDY  # its checkpoint's own
    thinks: bool = True  # whether its model marks a thought
    closing: str = ""  # the words by which its family ends a thought early
    call_format: CallFormat | None = None  # how it writes calls of tools, where there are some
    down: BaseException | None = None  # raised by every call, preflight included
    calls: list[RecordedCall] = field(default_factory=list)
    prompts: int = 0  # preflights: generations of no tokens
    live: int = 0
    _lines_used: int = 0
    _scores_used: int = 0

    async def generate(
        self, call: Call, criteria: StopCriteria, sampling: Sampling, *, stream: bool = True
    ) -> AsyncIterator[Delta | Generation]:
        with self._counted():
            prompt = self._prompt_length(call.transcript)
            if criteria.max_tokens == 0:
                self.prompts += 1
                empty = segment(call.author, "", "length")
                has_tools = call.transcript.messages[0].role == "tools"
                if has_tools and self.call_format is None:
                    raise InvalidRequest("tools: this model has no place for tools", param="tools")
                calls = self.call_format if has_tools else None
                yield Generation(
                    empty, Usage(prompt), thinks=self.thinks, calls=calls, closing=self.closing
                )
                return
            number = self._record("generate", call, criteria, sampling)
            line = self._next_line(call.transcript, criteria)
            written = self._cut(call, line, criteria)
            for count, (word, token) in enumerate(
                zip(words(written.text), written.tokens, strict=True)
            ):
                if self.deaths.get(number) == count:
                    raise WorkerUnavailable("died in mid-stream")
                await asyncio.sleep(self.delay)
                if stream:
                    yield Delta(word, (token,), (line.logprob,))
            size = len(written.tokens)
            if self.deaths.get(number, -1) >= size:
                raise WorkerUnavailable("died in mid-stream")
            usage = Usage(prompt, 0, size, size)
            yield Generation(written, usage, size * self.delay * 1000)

    async def classify(self, call: Call, query: LabelQuery) -> Classification:
        with self._counted():
            self._record("classify", call, query)
            score = await self._next_score(call.transcript)
            if isinstance(score, Classification):
                return score
            probabilities = tuple(float(label == str(int(score))) for label in query.labels)
            answer = Classification(
                query.labels,
                probabilities,
                0.0,
                Usage(self._prompt_length(call.transcript), passes=1),
            )
            last = call.transcript.last
            if not query.nll or last is None:
                return replace(answer, nll=() if query.nll else None)
            # Nothing that is scored by a number has a low likelihood.
            ended = last.finish in ENDED
            return replace(
                answer, nll=(0.0,) * len(words(last.text)), ending=0.0 if ended else None
            )

    async def verify(
        self, call: Call, segment: Segment, sampling: Sampling, top: int = 0
    ) -> Verification:
        with self._counted():
            self._record("verify", call, segment, sampling)
            score = await self._next_score(call.transcript)
            if isinstance(score, Verification):
                return score
            made = self._verification(call, segment, score)
            one = zip(made.choices, made.options, made.logprobs, strict=True)
            shown = tuple((LikelyToken(i, option.text, value),) for i, option, value in one)
            return replace(made, top=shown) if top else made

    def _verification(self, call: Call, draft: Segment, nll: float) -> Verification:
        """The same likelihood everywhere; choices are the story's words, else the draft's."""
        drafted = words(draft.text)
        options = []
        for index in range(len(drafted) + 1):
            if self.story is None and index < len(drafted):
                choice = drafted[index]
            else:
                before = segment(call.author, "".join(drafted[:index]))
                choice = next(iter(words(self._continuation(call.transcript.extend(before)))), "")
            ending: Finish = "eos" if call.transcript.closed else "think_end"
            options.append(segment(call.author, choice, "until" if choice else ending))
        return Verification(
            (nll,) * len(drafted),
            tuple(option.tokens[0] if option.tokens else 0 for option in options),
            Usage(self._prompt_length(call.transcript), passes=1),
            len(drafted) * self.delay * 1000,
            tuple(drafted),
            tuple(options),
            nll if draft.finish in ENDED else None,
            (-nll,) * len(options),
        )

    def _continuation(self, transcript: Transcript) -> str:
        """The text of its next line, which stays the next; empty where there is none."""
        line = self._peek(transcript, StopCriteria(1))
        return line.text if isinstance(line, Say) else line if isinstance(line, str) else ""

    def _peek(self, transcript: Transcript, criteria: StopCriteria) -> Line | None:
        if self.story is not None:
            return _rest_of(self.story, transcript)
        if callable(self.lines):
            return self.lines(transcript, criteria)
        return self.lines[self._lines_used] if self._lines_used < len(self.lines) else None

    @contextmanager
    def _counted(self) -> Iterator[None]:
        self.live += 1
        try:
            if self.down is not None:
                raise self.down
            yield
        finally:
            self.live -= 1

    def _record(self, operation: Operation, call: Call, *args: Any) -> int:
        number = len(self.calls)
        self.calls.append(RecordedCall(operation, call, args))
        if error := self.failures.get(number):
            raise error
        return number

    def _prompt_length(self, transcript: Transcript) -> int:
        prompt = sum(len(words(message.content)) for message in transcript.messages)
        length = prompt + transcript.thought.tokens + transcript.answer.tokens
        if self.context is not None and length >= self.context:
            raise ContextLengthExceeded(
                f"this model's maximum context length is {self.context} tokens, not {length}",
                param="messages",
                code="context_length_exceeded",
            )
        return length

    def _next_line(self, transcript: Transcript, criteria: StopCriteria) -> Say:
        line = self._peek(transcript, criteria)
        if line is None:
            raise AssertionError(f"no line is left after {transcript.text!r}")
        self._lines_used += 1
        if isinstance(line, BaseException):
            raise line
        return line if isinstance(line, Say) else Say(line)

    def _cut(self, call: Call, line: Say, criteria: StopCriteria) -> Segment:
        """As much of the line as the stop criteria let through."""
        closing: Finish = "eos" if call.transcript.closed else "think_end"
        text, finish = line.text, line.finish or closing
        if cuts := [at for stop in criteria.stop if (at := text.find(stop)) >= 0]:
            text, finish = text[: min(cuts)], "stop"
        kept = ""
        pieces = words(text)
        for count, word in enumerate(pieces):
            if count == criteria.max_tokens:
                return segment(call.author, kept, "length", line.logprob)
            kept += word
            if any(delimiter in kept for delimiter in criteria.until):
                ends_so = line.finish is not None and kept == line.text
                return segment(call.author, kept, finish if ends_so else "until", line.logprob)
        if finish in ("eos", "think_end") and len(pieces) == criteria.max_tokens:
            finish = "length"  # the end is a token too
        return segment(call.author, kept, finish, line.logprob)

    async def _next_score(self, transcript: Transcript) -> Any:
        if callable(self.scores):
            score: Score = self.scores(transcript)
        else:
            score = self.scores[min(self._scores_used, len(self.scores) - 1)]
            self._scores_used += 1
        await asyncio.sleep(self.delay)
        if isinstance(score, BaseException):
            raise score
        return score


def _rest_of(story: tuple[str, str], transcript: Transcript) -> str:
    thought, answer = story
    if transcript.closed and transcript.thinking:
        return answer.removeprefix(transcript.answer.text())
    chain, written = thought if transcript.thinking else answer, transcript.text
    if chain.startswith(written):
        return chain[len(written) :]
    return DELIMITER.join(chain.split(DELIMITER)[written.count(DELIMITER) :])
