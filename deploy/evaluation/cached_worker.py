"""A worker with a cache of whole answers: it answers equal calls, a model the others.

The answer to a call with greedy sampling (or a seed) depends only on its prefix and its stop
criteria, turns or segment. So it serves every equal call, such as the same policy's at another
threshold. Every answer is therefore that of a live run; only times differ, which are not measured
here.

The key ignores that a batch may change the last bit of a logit, as a live run may too.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Hashable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

from deploy.evaluation.call_log import CallLog
from deploy.launch.workers import close, open_worker
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

PAIR: Final[tuple[WorkerName, ...]] = ("small", "large")


class CachedWorker:
    """A `Worker` with a cache; `worker` makes the model's worker when it is first needed.

    `replayed` and `live` count the calls that were answered from the cache and by the model. A
    `log` keeps answers, under `name`.
    """

    def __init__(
        self, worker: Callable[[], Worker], log: CallLog | None = None, name: str = ""
    ) -> None:
        self._make, self._log, self._name = worker, log, name
        self._worker: Worker | None = None
        self._generations: dict[str, list[tuple[int, Generation]]] = {}
        self._answers: dict[str, Any] = {}
        self.replayed = self.live = 0
        for key, cap, answer in log.known(name) if log is not None else ():
            if isinstance(answer, Generation):
                self._generations.setdefault(key, []).append((cap, answer))
            else:
                self._answers[key] = answer

    async def generate(
        self, call: Call, criteria: StopCriteria, sampling: Sampling, *, stream: bool = True
    ) -> AsyncIterator[Delta | Generation]:
        """Continue the transcript; a cached generation comes in one piece."""
        seen = _prefix(call.transcript, call.constraint)
        key = _generation_key(seen, criteria, sampling, call.speculation)
        known = self._known(key, criteria.max_tokens)
        if known is not None:
            self.replayed += 1
            if stream and known.segment.text:
                yield Delta(known.segment.text, known.segment.tokens, known.segment.logprobs)
            yield known
            return
        self.live += 1
        items = self._model().generate(call, criteria, sampling, stream=stream)
        try:
            async for item in items:
                if isinstance(item, Generation):
                    self._store(key, criteria.max_tokens, item)
                yield item
        finally:
            await items.aclose()  # type: ignore[attr-defined]

    async def classify(self, call: Call, query: LabelQuery) -> Classification:
        key = _query_key(call.transcript, query)
        if key not in self._answers:
            self.live += 1
            self._keep(key, await self._model().classify(call, query))
        else:
            self.replayed += 1
        answer: Classification = self._answers[key]
        return answer

    async def verify(
        self, call: Call, segment: Segment, sampling: Sampling, top: int = 0
    ) -> Verification:
        if top:  # not cached: no policy asks for the likeliest tokens
            return await self._model().verify(call, segment, sampling, top)
        sampling_key = _sampling_key(sampling)
        seen = _prefix(call.transcript, call.constraint)
        key = _digest("verify", seen, segment, sampling_key)
        if sampling_key is None or key not in self._answers:
            self.live += 1
            answer = await self._model().verify(call, segment, sampling)
            if sampling_key is not None:
                self._keep(key, answer)
            return answer
        self.replayed += 1
        known: Verification = self._answers[key]
        return known

    def _keep(self, key: str, answer: Classification | Verification) -> None:
        if self._log is not None and key not in self._answers:
            self._log.add(self._name, key, 0, answer)
        self._answers[key] = answer

    def _known(self, key: str | None, cap: int) -> Generation | None:
        """Return a cached generation; one that ended before its cap serves other caps too."""
        for recorded_cap, known in self._generations.get(key or "", ()):
            ended = known.segment.finish != "length"
            if cap == recorded_cap or (ended and cap >= max(known.usage.generated, 1)):
                return known
        return None

    def _store(self, key: str | None, cap: int, generation: Generation) -> None:
        if key is not None and self._known(key, cap) is None:
            self._generations.setdefault(key, []).append((cap, generation))
            if self._log is not None:
                self._log.add(self._name, key, cap, generation)

    def _model(self) -> Worker:
        if self._worker is None:
            self._worker = self._make()
        return self._worker


@asynccontextmanager
async def opened_pair(
    workers: Workers, pair: Mapping[str, str], log: Path | None = None
) -> AsyncIterator[dict[WorkerName, CachedWorker]]:
    """Open both workers of a deployment with a cache, and close at the end those that were loaded.

    `log` is a file that keeps answers, made if it is missing; it must be of the same `pair`
    (`deploy.service.notes.pair_of`) and settings.

    Raises:
        ConfigError: the log is of another pair or other settings, or cannot be written.
    """
    async with AsyncExitStack() as stack:

        def opened(name: WorkerName) -> Worker:
            worker = open_worker(getattr(workers, name))
            stack.push_async_callback(close, [worker])
            return worker

        calls = None
        if log is not None:
            methods = [
                one for spec in (workers.small, workers.large) for one in spec.speculation.offered
            ]
            settings = {
                "pair": dict(pair),
                "speculation": workers.speculation(),
                "lossy": [one.model_dump() for one in methods if one.lossy],
                "answering": workers.answering(),
            }
            # Logs of earlier versions lack settings that are empty.
            settings = {name: given for name, given in settings.items() if given}
            calls = stack.enter_context(closing(CallLog(log, settings)))
        yield cached_pair(opened, calls)


def cached_pair(
    opened: Callable[[WorkerName], Worker], log: CallLog | None = None
) -> dict[WorkerName, CachedWorker]:
    """Return both workers; `opened` makes both at the first call that a model must answer.

    While a model loads, the event loop does not run, and leases of calls to another would expire.
    And transformers cannot load two models at once.
    """
    loaded: dict[WorkerName, Worker] = {}

    def made(name: WorkerName) -> Worker:
        for one in PAIR:
            if one not in loaded:
                loaded[one] = opened(one)
        return loaded[name]

    return {name: CachedWorker(partial(made, name), log, name) for name in PAIR}


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


def _query_key(transcript: Transcript, query: LabelQuery) -> str:
    """Return the key of a judge's question. If it asks how likely the last segment is, that
    includes an end of the chain that the model wrote."""
    finish = transcript.last.finish if query.nll and transcript.last is not None else None
    ending = (finish,) if finish in ENDED else ()
    return _digest("classify", _prefix(transcript), query, *ending)


def _generation_key(
    prefix: Hashable,
    criteria: StopCriteria,
    sampling: Sampling,
    speculation: str | None = None,
) -> str | None:
    sampling_key = _sampling_key(sampling)
    if sampling_key is None:
        return None
    return _digest(
        "generate",
        prefix,
        replace(criteria, max_tokens=0),
        sampling_key,
        speculation,
    )
