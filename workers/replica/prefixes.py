"""Sends a replica only the part of a call's transcript that it lacks.

Most calls continue one that the same replica has just answered. So a call sends the segments since
then (`CallSuffix`) with a digest of all that precede them: a message as long as the step, however
long the thought. A replica that does not have exactly these segments replies `PrefixMissing` and is
sent the whole, so any replica can serve any call. Log-probabilities are never sent, since no worker
reads those of a transcript.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from hashlib import blake2b
from sys import getsizeof
from typing import Any

from cachetools import TTLCache

from orchestrator.errors import BatonError
from orchestrator.types import Message, Segment, Segments, Transcript
from orchestrator.worker import Call
from workers.memo import KEPT_S, remembered

MAX_BYTES = 256 << 20
"""Limit of the transcripts that a replica keeps: over a hundred thoughts of 32,000 tokens."""
ENTRY_BYTES = 512
"""Size of a transcript, message, tool call or segment without its texts and tokens."""
TOKEN_BYTES = 40
"""Size of a token's id in a tuple."""


@dataclass(frozen=True, slots=True)
class CallSuffix:
    """A call whose transcript lacks its messages and its first segments.

    `thought` and `answer` count the missing segments of each; `digest` is that of all that is
    missing.
    """

    call: Call
    thought: int
    answer: int
    digest: bytes


Sent = Call | CallSuffix


@dataclass(frozen=True, slots=True)
class PrefixMissing:
    """A replica's reply to a `CallSuffix` if it lacks the prefix."""


class PrefixSender:
    """The caller's side: notes beside each segment whether the replicas of a pool have seen it."""

    async def send(
        self, call: Call, exchange: Callable[[Sent], AsyncGenerator[Any, None]]
    ) -> AsyncGenerator[Any, None]:
        """Yield a replica's reply to what is new of a call, or if it lacks more, to all of it."""
        for sent in self.forms(call):
            async with aclosing(exchange(sent)) as items:
                async for item in items:
                    if isinstance(item, PrefixMissing):
                        break
                    if not isinstance(item, BatonError):  # a call that is refused is not kept
                        self.delivered(call)
                    yield item
                else:
                    return

    def forms(self, call: Call) -> Iterator[Sent]:
        """Yield the forms in which to send a call: without what was delivered, then whole."""
        transcript = call.transcript
        thought, answer = self._delivered(transcript.thought), self._delivered(transcript.answer)
        if thought or answer:
            rest = replace(
                transcript,
                messages=(),
                thought=_all_bare(transcript.thought[thought:]),
                answer=_all_bare(transcript.answer[answer:]),
            )
            known = replace(
                transcript,
                thought=transcript.thought.first(thought),
                answer=transcript.answer.first(answer),
            )
            said = digest(call.request, known)
            yield CallSuffix(replace(call, transcript=rest), thought, answer, said)
        yield self.whole(call)

    def whole(self, call: Call) -> Call:
        """Return the call with all that a worker reads."""
        thought, answer = map(_all_bare, (call.transcript.thought, call.transcript.answer))
        return replace(call, transcript=replace(call.transcript, thought=thought, answer=answer))

    def delivered(self, call: Call) -> None:
        """Note that a replica has answered this call."""
        for segments in (call.transcript.thought, call.transcript.answer):
            mark = segments.fold(self._mark, None)
            while mark is not None and not mark.delivered:
                mark.delivered, mark = True, mark.before

    def _delivered(self, segments: Segments) -> int:
        """Return how many of the segments a replica has seen."""
        mark = segments.fold(self._mark, None)
        while mark is not None and not mark.delivered:
            mark = mark.before
        return 0 if mark is None else mark.size

    def _mark(self, before: _Mark | None, segment: Segment) -> _Mark | None:
        return _Mark(before)


class _Mark:
    """Whether a replica has seen the segments up to one of them."""

    __slots__ = ("before", "delivered", "size")

    def __init__(self, before: _Mark | None) -> None:
        self.before, self.delivered = before, False
        self.size: int = 1 if before is None else before.size + 1


class PrefixReceiver:
    """The replica's side: keeps the last transcript of each recent request.

    Args:
        max_bytes: of all transcripts, estimated; a single larger one is not kept.
        kept_s: how long to keep a transcript after the request's last call.
    """

    def __init__(self, max_bytes: int = MAX_BYTES, kept_s: float = KEPT_S) -> None:
        self._known: TTLCache[str, Transcript] = TTLCache(
            max_bytes, kept_s, getsizeof=_transcript_bytes
        )

    def restore(self, suffix: Sent) -> Call | None:
        """Return the whole call; None if its prefix is not here."""
        if isinstance(suffix, Call):
            return suffix
        rest = suffix.call.transcript
        try:
            known = self._known[suffix.call.request]
        except KeyError:
            return None
        prefix = replace(
            known,
            thought=known.thought.first(suffix.thought),
            answer=known.answer.first(suffix.answer),
        )
        if digest(suffix.call.request, prefix) != suffix.digest:
            return None
        whole = replace(
            rest,
            messages=known.messages,
            thought=_joined(prefix.thought, rest.thought),
            answer=_joined(prefix.answer, rest.answer),
        )
        return replace(suffix.call, transcript=whole)

    def keep(self, call: Call) -> None:
        """Keep the transcript of a call that the worker accepted, or the known longer one.

        Refused transcripts are not kept: any client could fill the memory with them.
        """
        request, transcript = call.request, call.transcript
        with suppress(KeyError):
            known = self._known[request]
            if _continues(known, transcript):
                transcript = known
        with suppress(ValueError):  # too long to be kept
            self._known[request] = transcript


def digest(request: str, transcript: Transcript) -> bytes:
    """Digest the messages and segments, without log-probabilities.

    The messages' digest is cached by request: else the time of an answer could show whether
    another client had sent the same messages.
    """
    parts = (transcript.thought.fold(_chained, b""), transcript.answer.fold(_chained, b""))
    return blake2b(b"%s|%s|%s" % (_digest_of(request, transcript.messages)[0], *parts)).digest()


def _messages_digest(request: str, messages: tuple[Message, ...]) -> tuple[bytes, int]:
    """Return the messages' digest and size in bytes."""
    said = blake2b(repr(messages).encode(), digest_size=16).digest()
    return said, sum(map(_message_bytes, messages))


_digest_of = remembered(_messages_digest, 16 << 20, lambda made: made[1])


def _chained(before: bytes, segment: Segment) -> bytes:
    said = (segment.author, segment.text, segment.tokens, segment.tokenizer, segment.finish)
    return blake2b(before + repr(said).encode(), digest_size=16).digest()


def bare(segment: Segment) -> Segment:
    """Return a segment without log-probabilities, which no worker reads."""
    return replace(segment, logprobs=()) if segment.logprobs else segment


def _all_bare(segments: Iterable[Segment]) -> Segments:
    return Segments(map(bare, segments))


def _joined(segments: Segments, others: Iterable[Segment]) -> Segments:
    for segment in others:
        segments = segments.plus(segment)
    return segments


def _continues(longer: Transcript, shorter: Transcript) -> bool:
    return (
        longer.messages == shorter.messages
        and longer.thought.shared(shorter.thought) == len(shorter.thought)
        and longer.answer.shared(shorter.answer) == len(shorter.answer)
    )


def _transcript_bytes(transcript: Transcript) -> int:
    """Estimate the size of a transcript, its messages included."""
    segments = (transcript.thought, transcript.answer)
    taken = sum(each.fold(_with_segment_bytes, 0) for each in segments)
    return ENTRY_BYTES + taken + sum(map(_message_bytes, transcript.messages))


def _message_bytes(message: Message) -> int:
    texts = [message.content, message.reasoning, message.call_id, message.name]
    for call in message.calls:
        texts += [call.id, call.name, call.arguments]
    entries, tokens = ENTRY_BYTES * (1 + len(message.calls)), len(message.tokens or ())
    return entries + sum(map(getsizeof, texts)) + TOKEN_BYTES * tokens


def _with_segment_bytes(before: int, segment: Segment) -> int:
    numbers = len(segment.tokens) + len(segment.logprobs)
    return before + ENTRY_BYTES + getsizeof(segment.text) + TOKEN_BYTES * numbers
