"""Workers that answer at once, so that a request's whole cost is Baton's.

They write steps of `STEP` tokens, equal in length and different in text. The large one rejects
every tenth draft, so a thought also grows as it does when drafts are thrown away. The clock is read
when a step is asked for the first time: `marks[n]` is when step n began.
"""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator
from types import SimpleNamespace
from typing import Any, cast

from orchestrator.types import (
    Author,
    Classification,
    Finish,
    Generation,
    LabelQuery,
    Sampling,
    Segment,
    StopCriteria,
    Usage,
    Verification,
)
from orchestrator.worker import Call, Delta
from workers.replica.server import ReplicaServer
from workers.streams import merge_deltas

STEP = 30
VOCABULARY = "instant"


class InstantWorker:
    """A `Worker` whose thought has `steps` steps; it reads `clock` where each begins."""

    tokenizer = SimpleNamespace(hash=VOCABULARY)
    alive = True

    def __init__(self, steps: int, clock: Callable[[], float]) -> None:
        self.steps, self._clock = steps, clock
        self.marks: dict[int, float] = {}

    async def generate(
        self, call: Call, criteria: StopCriteria, sampling: Sampling, *, stream: bool = True
    ) -> AsyncIterator[Delta | Generation]:
        transcript, author = call.transcript, cast("Author", call.author)
        begin = transcript.chain.tokens
        prompt = Usage(prompt=begin + transcript.answer.tokens)
        if criteria.max_tokens == 0:
            yield Generation(Segment(author, "", tokenizer=VOCABULARY, finish="length"), prompt)
            return
        if transcript.closed:
            yield Generation(Segment(author, "42", (2,), (-0.1,), VOCABULARY, "eos"), prompt)
            return
        last = STEP * self.steps
        until = begin - begin % STEP + STEP if criteria.until else last
        end = min(until, last, begin + criteria.max_tokens)
        finish: Finish = "think_end" if end == last else "until" if end == until else "length"
        deltas = []
        for first in (begin, *range(begin - begin % STEP + STEP, end, STEP)):
            self.marks.setdefault(first // STEP, self._clock())
            deltas.append(_delta(range(first, min(end, first - first % STEP + STEP))))
            if stream:
                yield deltas[-1]
        whole = merge_deltas(deltas)
        written = Segment(author, whole.text, whole.tokens, whole.logprobs, VOCABULARY, finish)
        yield Generation(written, Usage(prompt.prompt, 0, end - begin, end - begin))

    async def classify(self, call: Call, query: LabelQuery) -> Classification:
        step = call.transcript.chain.tokens // STEP
        label = query.labels[0 if step % 10 == 0 else -1]
        probabilities = tuple(float(one == label) for one in query.labels)
        return Classification(query.labels, probabilities, usage=Usage(passes=1))

    async def verify(
        self, call: Call, segment: Segment, sampling: Sampling, top: int = 0
    ) -> Verification:
        begin, author = call.transcript.chain.tokens, cast("Author", call.author)
        count = len(segment.tokens)
        places = range(begin, begin + count)
        options = [
            Segment(author, _text(i), (i,), (-0.1,), VOCABULARY) for i in (*places, begin + count)
        ]
        if begin + count >= STEP * self.steps:
            options[-1] = Segment(author, "", tokenizer=VOCABULARY, finish="think_end")
        return Verification(
            (0.1,) * count,
            (*segment.tokens, begin + count),
            Usage(passes=1),
            pieces=tuple(map(_text, places)),
            options=tuple(options),
            ending=0.1,
        )

    def stats(self) -> dict[str, int]:
        return {"live_rows": 0, "queued": 0, "rows": 1, "slots": 1}

    def close(self) -> None: ...


def _delta(places: range) -> Delta:
    return Delta("".join(map(_text, places)), tuple(places), (-0.1,) * len(places))


def _text(place: int) -> str:
    """The token at a place of the thought."""
    step, word = divmod(place, STEP)
    return f"{step} " if word == 0 else ".\n\n" if word == STEP - 1 else "and "


class LoopbackHandle:
    """Serve's handle on a replica of this process; it pickles calls and results, as Serve does."""

    def __init__(self, worker: Any) -> None:
        self._replica = ReplicaServer(lambda: worker)
        self._method = ""

    def options(self, *, method_name: str, **_: Any) -> LoopbackHandle:
        self._method = method_name
        return self

    def remote(self, *args: Any) -> Any:
        data = pickle.dumps(args, protocol=pickle.HIGHEST_PROTOCOL)
        called = getattr(self._replica, self._method)(*pickle.loads(data))  # noqa: S301
        return _Stream(called) if self._method == "stream_call" else _Response(called)


class _Response:
    """What a call of a handle returns."""

    def __init__(self, answer: Awaitable[Any]) -> None:
        self._answer = asyncio.ensure_future(answer)

    def __await__(self) -> Generator[Any, None, Any]:
        return _copied((yield from self._answer.__await__()))

    def cancel(self) -> None:
        self._answer.cancel()


class _Stream:
    """What a streaming call of a handle returns."""

    def __init__(self, items: AsyncGenerator[Any, None]) -> None:
        self._items = items

    def __aiter__(self) -> _Stream:
        return self

    async def __anext__(self) -> Any:
        return _copied(await anext(self._items))

    def cancel(self) -> None:
        self._closing = asyncio.ensure_future(self._items.aclose())


def _copied(item: Any) -> Any:
    return pickle.loads(pickle.dumps(item, protocol=pickle.HIGHEST_PROTOCOL))  # noqa: S301
