"""A worker with a cache of whole answers: it answers equal calls, a model the others.

The answer to a call with greedy sampling (or a seed) depends only on its prefix and its stop
criteria, turns or segment. So it serves every equal call, such as the same policy's at another
threshold. Every answer is therefore that of a live run; only times differ, which are not measured
here.

The key ignores that a batch may change the last bit of a logit, as a live run may too.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Hashable
from contextlib import ExitStack, aclosing, asynccontextmanager, closing
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeVar

from deploy.evaluation.call_log import CallLog
from deploy.launch.workers import close, load_pair
from deploy.service.notes import settings_of
from deploy.service.worker_spec import Workers
from orchestrator.loop.actions import WorkerName
from orchestrator.types import (
    ENDED,
    Classification,
    Constraint,
    Generation,
    LabelQuery,
    Sampling,
    Segment,
    StopCriteria,
    Transcript,
    Verification,
)
from orchestrator.worker import Call, Delta, Worker

AnyAnswer = TypeVar("AnyAnswer", Generation, Classification, Verification)


class CachedWorker:
    """A `Worker` with a cache in front of a model's `worker`.

    `replayed` and `live` count the calls that were answered from the cache and by the model. A
    `log` keeps answers, under `name`.
    """

    def __init__(self, worker: Worker, log: CallLog | None = None, name: str = "") -> None:
        self._model, self._log, self._name = worker, log, name
        self._known: dict[str | None, list[tuple[int, Any]]] = {}
        self.replayed = self.live = 0
        for key, cap, answer in log.known(name) if log is not None else ():
            self._known.setdefault(key, []).append((cap, answer))

    async def generate(
        self, call: Call, criteria: StopCriteria, sampling: Sampling, *, stream: bool = True
    ) -> AsyncGenerator[Delta | Generation, None]:
        """Continue the transcript; a cached generation comes in one piece."""
        cap, draws = criteria.max_tokens, _sampling_key(sampling)
        seen = _prefix(call.transcript, call.constraint)
        about = (seen, replace(criteria, max_tokens=0), draws, call.speculation)
        key = None if draws is None else _digest("generate", *about)
        known: Generation | None = self._answered(key, cap)
        if known is not None:
            if stream and known.segment.text:
                yield Delta(known.segment.text, known.segment.tokens, known.segment.logprobs)
            yield known
            return
        made = self._model.generate(call, criteria, sampling, stream=stream)
        async with aclosing(made) as items:
            async for item in items:
                if isinstance(item, Generation):
                    self._keep(key, cap, item)
                yield item

    async def classify(self, call: Call, query: LabelQuery) -> Classification:
        transcript = call.transcript
        # How likely the last segment is includes an end of the chain that the model wrote.
        finish = transcript.last.finish if query.nll and transcript.last is not None else None
        ending = (finish,) if finish in ENDED else ()
        key = _digest("classify", _prefix(transcript), query, *ending)
        known: Classification | None = self._answered(key)
        return known or self._keep(key, 0, await self._model.classify(call, query))

    async def verify(
        self, call: Call, segment: Segment, sampling: Sampling, top: int = 0
    ) -> Verification:
        draws, seen = _sampling_key(sampling), _prefix(call.transcript, call.constraint)
        key = None if draws is None else _digest("verify", seen, segment, draws, top)
        known: Verification | None = self._answered(key)
        return known or self._keep(key, 0, await self._model.verify(call, segment, sampling, top))

    def _answered(self, key: str | None, cap: int = 0) -> Any:
        """Count a call; return its cached answer, or None."""
        answer = self._find(key, cap)
        self.replayed += answer is not None
        self.live += answer is None
        return answer

    def _find(self, key: str | None, cap: int) -> Any:
        """Return a cached answer; a generation that ended before its cap serves other caps too."""
        for own_cap, answer in self._known.get(key, ()):
            ended = isinstance(answer, Generation) and answer.segment.finish != "length"
            if cap == own_cap or (ended and cap >= max(answer.usage.generated, 1)):
                return answer
        return None

    def _keep(self, key: str | None, cap: int, answer: AnyAnswer) -> AnyAnswer:
        if key is not None and self._find(key, cap) is None:
            self._known.setdefault(key, []).append((cap, answer))
            if self._log is not None:
                self._log.add(self._name, key, cap, answer)
        return answer


@asynccontextmanager
async def opened_pair(
    workers: Workers, log: Path | None = None
) -> AsyncIterator[dict[WorkerName, CachedWorker]]:
    """Open both workers of a deployment with a cache, and close them at the end.

    `log` is a file that keeps answers, made if it is missing; it must be of the same pair and
    settings.

    Raises:
        ConfigError: the log is of another pair or other settings, or cannot be written.
    """
    with ExitStack() as stack:
        calls = None
        if log is not None:
            calls = stack.enter_context(closing(CallLog(log, settings_of(workers))))
        pair = load_pair(workers)
        try:
            yield {name: CachedWorker(worker, calls, name) for name, worker in pair.items()}
        finally:
            await close(pair.values())


def _sampling_key(sampling: Sampling) -> Hashable | None:
    """Return the part of the sampling that decides an answer; None if chance does."""
    if sampling.temperature <= 0:
        return ()
    if sampling.seed is None:
        return None
    return (sampling.temperature, sampling.top_p, sampling.top_k, sampling.seed)


def _digest(*parts: Hashable) -> str:
    """Return the key of a call: a digest, since prefixes are long."""
    return blake2b(repr(parts).encode(), digest_size=16).hexdigest()


def _prefix(transcript: Transcript, constraint: Constraint | None = None) -> Hashable:
    """Return the part of a transcript that a model sees (no authors, no log-probabilities), and the
    constraint of an answer."""
    seen = [
        tuple((part.text, part.tokens, part.tokenizer) for part in phase)
        for phase in (transcript.thought, transcript.answer)
    ]
    held = (constraint,) if constraint is not None and transcript.closed else ()
    asked = (transcript.effort,) if transcript.effort else ()
    return (transcript.messages, *seen, transcript.thinking, transcript.closed, *held, *asked)
