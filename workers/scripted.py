"""A worker that says what it is told: for tests, and for examples in the documentation.

    Scripted(["First, 2+2=4.\\n\\n", Say("So it is four.", "think_end"), "4"], scores=[9])
    Scripted(story=("First, 2+2=4.\\n\\nSo it is four.", "4"))

Tokens are words with the space behind them, so a token's text can be seen in the text. Every call
is noted in `calls`; `live` counts those in progress.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal
from zlib import crc32

from orchestrator.errors import ContextLengthExceeded, WorkerUnavailable
from orchestrator.types import (
    Classification,
    Finish,
    Generation,
    LabelQuery,
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
    """A continuation that ends in a certain way, and how surely each token was drawn.

    `entropy` is that of the law of its first token, in nats.
    """

    text: str
    finish: Finish | None = None  # None: as the span says; else the model ends its phase
    logprob: float = -0.1
    entropy: float = 0.0


Line = str | Say | BaseException
Verdict = float | Classification | Verification | BaseException


@dataclass(frozen=True, slots=True)
class Heard:
    """One call that the worker got; `asked` holds the rest of its arguments."""

    verb: Literal["generate", "classify", "verify"]
    call: Call
    asked: tuple[Any, ...]


def words(text: str) -> list[str]:
    """The fake tokens of a text; together they are the text."""
    return re.findall(r"\s+|\S+\s*", text)


def segment(author: Any, text: str, finish: Finish = "until", logprob: float = -0.1) -> Segment:
    """A segment as a scripted worker would have written it."""
    tokens = tuple(crc32(word.encode()) for word in words(text))
    return Segment(author, text, tokens, (logprob,) * len(tokens), "words", finish)


@dataclass
class Scripted:
    """A `Worker` that reads its part.

    lines: continuations, one a call, in order; or a function of the transcript and the span.
    story: a whole thought and answer instead; a call goes on where the transcript stands, or at the
        step of the same number where the transcript tells another story.
    scores: answers of `classify` (a digit's score: that digit is certain) and of `verify` (the
        surprise at every token), one a call, the last for ever; or a function of the transcript.
        Its own choices are the story's words, or else the verified ones and then its next line's.
    delay: seconds per token and per judgement.
    failures: call number (from 0, preflight not counted) -> the error it raises.
    deaths: call number -> tokens after which a generation's stream dies.
    """

    lines: Sequence[Line] | Callable[[Transcript, StopCriteria], Line] = ()
    story: tuple[str, str] | None = None
    scores: Sequence[Verdict] | Callable[[Transcript], Verdict] = (9.0,)
    delay: float = 0.0
    failures: Mapping[int, BaseException] = field(default_factory=dict)
    deaths: Mapping[int, int] = field(default_factory=dict)
    context: int | None = None
    down: BaseException | None = None  # raised by every call, preflight included
    calls: list[Heard] = field(default_factory=list)
    prompts: int = 0  # preflights
    live: int = 0
    _said: int = 0
    _scored: int = 0

    async def generate(
        self, call: Call, criteria: StopCriteria, sampling: Sampling, *, stream: bool = True
    ) -> AsyncIterator[Delta | Generation]:
        with self._at_work():
            prompt = self._read(call.transcript)
            if criteria.max_tokens == 0:
                self.prompts += 1
                yield Generation(Segment(call.author, "", finish="length"), Usage(prompt))  # type: ignore[arg-type]
                return
            number = self._hear("generate", call, criteria, sampling)
            said = self._next_line(call.transcript, criteria)
            spoken = self._speak(call, said, criteria)
            for count, (word, token) in enumerate(
                zip(words(spoken.text), spoken.tokens, strict=True)
            ):
                if self.deaths.get(number) == count:
                    raise WorkerUnavailable("died in mid-stream")
                await asyncio.sleep(self.delay)
                if stream:
                    yield Delta(word, (token,), (said.logprob,))
            size = len(spoken.tokens)
            if self.deaths.get(number, -1) >= size:
                raise WorkerUnavailable("died in mid-stream")
            entropy = said.entropy if criteria.max_entropy is not None else None
            usage = Usage(prompt, 0, size, size)
            yield Generation(spoken, usage, size * self.delay * 1000, entropy)

    async def classify(self, call: Call, query: LabelQuery) -> Classification:
        with self._at_work():
            self._hear("classify", call, query)
            verdict = await self._next_score(call.transcript)
            if isinstance(verdict, Classification):
                return verdict
            law = tuple(float(label == str(int(verdict))) for label in query.labels)
            answer = Classification(
                query.labels, law, 0.0, Usage(self._read(call.transcript), passes=1)
            )
            last = call.transcript.last
            if not query.nll or last is None:
                return replace(answer, nll=() if query.nll else None)
            # Nothing that is scored by a number has a low likelihood.
            ended = last.finish in ("think_end", "eos")
            return replace(
                answer, nll=(0.0,) * len(words(last.text)), ending=0.0 if ended else None
            )

    async def verify(self, call: Call, segment: Segment, sampling: Sampling) -> Verification:
        with self._at_work():
            self._hear("verify", call, segment, sampling)
            verdict = await self._next_score(call.transcript)
            if isinstance(verdict, Verification):
                return verdict
            return self._verdict(call, segment, verdict)

    def _verdict(self, call: Call, draft: Segment, nll: float) -> Verification:
        """The same surprise everywhere; choices are the story's, else the draft's own words."""
        said = words(draft.text)
        options = []
        for place in range(len(said) + 1):
            if self.story is None and place < len(said):
                own = said[place]
            else:
                before = segment(call.author, "".join(said[:place]))
                own = next(iter(words(self._rest(call.transcript.extend(before)))), "")
            ending: Finish = "eos" if call.transcript.closed else "think_end"
            options.append(segment(call.author, own, "until" if own else ending))
        return Verification(
            (nll,) * len(said),
            tuple(option.tokens[0] if option.tokens else 0 for option in options),
            Usage(self._read(call.transcript), passes=1),
            len(said) * self.delay * 1000,
            tuple(said),
            tuple(options),
            nll if draft.finish in ("think_end", "eos") else None,
        )

    def _rest(self, transcript: Transcript) -> str:
        """What it would say next if asked, without saying it; nothing where it is asked in vain."""
        if self.story is not None:
            return _rest(self.story, transcript)
        line: Any = None
        if callable(self.lines):
            line = self.lines(transcript, StopCriteria(1))
        elif self._said < len(self.lines):
            line = self.lines[self._said]
        return line.text if isinstance(line, Say) else line if isinstance(line, str) else ""

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        self.live += 1
        try:
            if self.down is not None:
                raise self.down
            yield
        finally:
            self.live -= 1

    def _hear(
        self, verb: Literal["generate", "classify", "verify"], call: Call, *asked: Any
    ) -> int:
        number = len(self.calls)
        self.calls.append(Heard(verb, call, asked))
        if error := self.failures.get(number):
            raise error
        return number

    def _read(self, transcript: Transcript) -> int:
        prompt = sum(len(words(message.content)) for message in transcript.messages)
        length = prompt + transcript.thought_tokens + transcript.answer_tokens
        if self.context is not None and length >= self.context:
            raise ContextLengthExceeded(
                f"{length} tokens do not fit a context of {self.context}",
                param="messages",
                code="context_length_exceeded",
            )
        return length

    def _next_line(self, transcript: Transcript, criteria: StopCriteria) -> Say:
        if self.story is not None:
            line: Line = _rest(self.story, transcript)
        elif callable(self.lines):
            line = self.lines(transcript, criteria)
        elif self._said < len(self.lines):
            line = self.lines[self._said]
            self._said += 1
        else:
            raise AssertionError(f"nothing left to say after {transcript.text!r}")
        if isinstance(line, BaseException):
            raise line
        return line if isinstance(line, Say) else Say(line)

    def _speak(self, call: Call, said: Say, criteria: StopCriteria) -> Segment:
        """As much of the line as the span lets through."""
        if criteria.max_entropy is not None and said.entropy > criteria.max_entropy:
            return segment(call.author, "", "doubt")
        closing: Finish = "eos" if call.transcript.closed else "think_end"
        text, finish = said.text, said.finish or closing
        if cuts := [at for stop in criteria.stop if (at := text.find(stop)) >= 0]:
            text, finish = text[: min(cuts)], "stop"
        kept = ""
        for count, word in enumerate(words(text)):
            if count == criteria.max_tokens:
                return segment(call.author, kept, "length", said.logprob)
            kept += word
            if any(delimiter in kept for delimiter in criteria.until):
                ends_so = said.finish is not None and kept == said.text
                return segment(call.author, kept, finish if ends_so else "until", said.logprob)
        return segment(call.author, kept, finish, said.logprob)

    async def _next_score(self, transcript: Transcript) -> Any:
        if callable(self.scores):
            verdict: Verdict = self.scores(transcript)
        else:
            verdict = self.scores[min(self._scored, len(self.scores) - 1)]
            self._scored += 1
        await asyncio.sleep(self.delay)
        if isinstance(verdict, BaseException):
            raise verdict
        return verdict


def _rest(story: tuple[str, str], transcript: Transcript) -> str:
    thought, answer = story
    if transcript.closed:
        return answer.removeprefix("".join(segment.text for segment in transcript.answer))
    if thought.startswith(transcript.text):
        return thought[len(transcript.text) :]
    return DELIMITER.join(thought.split(DELIMITER)[transcript.text.count(DELIMITER) :])
