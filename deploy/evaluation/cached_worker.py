"""A worker with a cache of whole answers: it answers equal calls, a model the others.

The answer to a call serves every equal call (`deploy.evaluation.calls`), such as the same policy's
at another threshold. Every answer is therefore that of a live run; only times differ, which are not
measured here.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import ExitStack, aclosing, asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from deploy.evaluation.call_log import CallLog
from deploy.evaluation.calls import (
    AnsweredCall,
    Refusal,
    classification_key,
    generation_key,
    verification_key,
)
from deploy.launch.workers import close, load_pair
from deploy.service.notes import settings_of
from deploy.service.worker_spec import Workers
from orchestrator.loop.actions import WorkerName
from orchestrator.types import (
    Classification,
    Generation,
    LabelQuery,
    Sampling,
    Segment,
    StopCriteria,
    Verification,
)
from orchestrator.worker import Call, Delta, Worker

AnyAnswer = TypeVar("AnyAnswer", Generation, Classification, Verification)


class CachedWorker:
    """A `Worker` with a cache in front of a model's `worker`.

    `replayed` and `live` count the calls that were answered from the cache and by the model.
    `known` has earlier answers, of which those of `name` count; `keep` gets every new one.
    """

    def __init__(
        self,
        worker: Worker,
        name: str = "",
        known: Iterable[AnsweredCall] = (),
        keep: Callable[[AnsweredCall], None] = lambda _: None,
    ) -> None:
        self._model, self._name, self._keep = worker, name, keep
        self._known: dict[str | None, list[AnsweredCall]] = {}
        self.replayed = self.live = 0
        for one in known:
            if one.worker == name:
                self._known.setdefault(one.key, []).append(one)

    async def generate(
        self, call: Call, criteria: StopCriteria, sampling: Sampling, *, stream: bool = True
    ) -> AsyncGenerator[Delta | Generation, None]:
        """Continue the transcript; a cached generation comes in one piece."""
        key, cap = generation_key(call, criteria, sampling), criteria.max_tokens
        known: Delta | Generation | None = self._answered(key, cap)
        while known is not None:
            yield known
            if isinstance(known, Generation):
                return
            # A recorded reader stopped here, and this one reads on.
            known = _unless_refused(self._find(key, cap))
        made = self._model.generate(call, criteria, sampling, stream=stream)
        async with aclosing(made) as items:
            async for item in items:
                if isinstance(item, Generation):
                    self._learn(key, cap, item)
                yield item

    async def classify(self, call: Call, query: LabelQuery) -> Classification:
        key = classification_key(call, query)
        known: Classification | None = self._answered(key)
        return known or self._learn(key, 0, await self._model.classify(call, query))

    async def verify(
        self, call: Call, segment: Segment, sampling: Sampling, top: int = 0
    ) -> Verification:
        key = verification_key(call, segment, sampling, top)
        known: Verification | None = self._answered(key)
        return known or self._learn(key, 0, await self._model.verify(call, segment, sampling, top))

    def _answered(self, key: str | None, cap: int = 0) -> Any:
        """Count a call; return its cached answer, or None.

        Raises:
            ContextLengthExceeded, Unsupported: that was the answer.
        """
        answer = self._find(key, cap)
        self.replayed += answer is not None
        self.live += answer is None
        return _unless_refused(answer)

    def _find(self, key: str | None, cap: int) -> Any:
        """Return the first answer that serves; a text that a reader broke off does so once."""
        known = self._known.get(key, [])
        found = next((one for one in known if one.serves(cap)), None)
        if found is None:
            return None
        if isinstance(found.answer, Delta):
            known.remove(found)
        return found.answer

    def _learn(self, key: str | None, cap: int, answer: AnyAnswer) -> AnyAnswer:
        if key is not None and self._find(key, cap) is None:
            answered = AnsweredCall(self._name, key, cap, answer)
            self._known.setdefault(key, []).append(answered)
            self._keep(answered)
        return answer


def _unless_refused(answer: Any) -> Any:
    if isinstance(answer, Refusal):
        raise answer.error()
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
    kept: tuple[Any, ...] = ()
    with ExitStack() as stack:
        if log is not None:
            calls = CallLog(log, settings_of(workers))
            stack.callback(calls.close)
            kept = calls.known, calls.add
        pair = load_pair(workers)
        try:
            yield {name: CachedWorker(worker, name, *kept) for name, worker in pair.items()}
        finally:
            await close(pair.values())
