"""A call's transcript on its way to a replica: what the replica has of it stays at home.

Every call means its whole transcript, and any replica can serve it. But most calls continue one
that the same replica has just answered. So only the segments since then travel (`CallSuffix`), with
a digest of all that precede them. A replica that does not have exactly these says so
(`PrefixMissing`) and is sent the whole. What a step sends is then as long as the step, however long
the thought. Log-probabilities stay at home, for no worker reads those of a transcript.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from hashlib import blake2b
from sys import getsizeof
from typing import Any

from cachetools import TTLCache

from orchestrator.types import Message, Segment, Segments, Transcript
from orchestrator.worker import Call
from workers.memo import KEPT_S, remembered

MAX_BYTES = 256 << 20
"""For the transcripts that a replica keeps: more than a hundred thoughts of 32,000 tokens."""
ENTRY_BYTES = 512
"""What a transcript, a message, a call of a tool or a segment takes beside its texts and tokens."""
TOKEN_BYTES = 40
"""What a token's id takes, with its place among the others."""


@dataclass(frozen=True, slots=True)
class CallSuffix:
    """A call whose transcript lacks its messages and its first segments.

    `thought` and `answer` say how many segments of each are missing; `digest` is theirs and that of
    the messages.
    """

    call: Call
    thought: int
    answer: int
    digest: bytes


Sent = Call | CallSuffix


@dataclass(frozen=True, slots=True)
class PrefixMissing:
    """A replica's reply to a `CallSuffix` that continues what it does not have."""


class PrefixSender:
    """The caller's side: what the replicas of one pool have seen, noted beside the segments."""

    async def send(
        self, call: Call, exchange: Callable[[Sent], AsyncGenerator[Any, None]]
    ) -> AsyncGenerator[Any, None]:
        """What a replica replies to a call: it is sent what it lacks, or all if it lacks more."""
        for sent in self.forms(call):
            async with aclosing(exchange(sent)) as items:
                async for item in items:
                    if isinstance(item, PrefixMissing):
                        break
                    self.delivered(call)
                    yield item
                else:
                    return

    def forms(self, call: Call) -> Iterator[Sent]:
        """How to send a call: what it adds to those that were delivered; if that fails, all."""
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
        """The call with all that a worker reads."""
        thought, answer = map(_all_bare, (call.transcript.thought, call.transcript.answer))
        return replace(call, transcript=replace(call.transcript, thought=thought, answer=answer))

    def delivered(self, call: Call) -> None:
        """Note that a replica has answered this call."""
        for segments in (call.transcript.thought, call.transcript.answer):
            mark = segments.fold(self._mark, None)
            while mark is not None and not mark.delivered:
                mark.delivered, mark = True, mark.before

    def _delivered(self, segments: Segments) -> int:
        """How many of the segments a replica has seen."""
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
    """The replica's side: the last transcript of each request that called in the last minutes.

    Args:
        max_bytes: how much they may take together, about. A longer one is not kept.
        kept_s: for how long a request that calls no more is remembered.
    """

    def __init__(self, max_bytes: int = MAX_BYTES, kept_s: float = KEPT_S) -> None:
        self._known: TTLCache[str, Transcript] = TTLCache(
            max_bytes, kept_s, getsizeof=_transcript_bytes
        )

    def restore(self, suffix: Sent) -> Call | None:
        """The whole call; None where its beginning is not here."""
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
        """Keep the transcript of a call that the worker took, or the one that extends it.

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
    """Equal for equal messages and segments; log-probabilities do not count.

    The messages' part is remembered for their request alone: how soon an answer came could tell
    whether somebody else had sent the same messages.
    """
    parts = (transcript.thought.fold(_chained, b""), transcript.answer.fold(_chained, b""))
    return blake2b(b"%s|%s|%s" % (_digest_of(request, transcript.messages)[0], *parts)).digest()


def _messages_digest(request: str, messages: tuple[Message, ...]) -> tuple[bytes, int]:
    """The digest, and how many bytes the messages take."""
    said = blake2b(repr(messages).encode(), digest_size=16).digest()
    return said, sum(map(_message_bytes, messages))


_digest_of = remembered(_messages_digest, 16 << 20, lambda made: made[1])


def _chained(before: bytes, segment: Segment) -> bytes:
    said = (segment.author, segment.text, segment.tokens, segment.tokenizer, segment.finish)
    return blake2b(before + repr(said).encode(), digest_size=16).digest()


def bare(segment: Segment) -> Segment:
    """A segment as a worker reads it: without log-probabilities."""
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
    """About how many bytes a transcript takes, its messages included."""
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
