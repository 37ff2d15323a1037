"""A worker that answers from memory what it was asked before, and asks a model the rest.

A call whose sampling is greedy (or has a seed) is a pure function of what it carries: the prefix
and the span, turns or segment. So its answer can be given again, whoever asks: the same policy at
another threshold, or another policy that comes by the same prefix. Where a changed decision makes
another prefix, that prefix was never asked for and the model is asked. Every answer is therefore
the one a live run would have got; nothing is approximated but time, which is not measured here.

Equal prefixes mean equal tokens. What a batch does to the last bit of a logit is not part of the
key, as it is no part of a live run's promise either.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Hashable
from dataclasses import replace
from typing import Any

from deploy.evaluation.recording import Recording
from orchestrator.loop.actions import Classify, First, Generate, Job, Start, Verify, Write
from orchestrator.loop.budget import Budget
from orchestrator.loop.events import ActionCompleted
from orchestrator.types import (
    Classification,
    Generation,
    LabelQuery,
    Sampling,
    Segment,
    StopCriteria,
    Transcript,
    Verification,
)
from orchestrator.worker import Call, Delta, Worker


class Memo:
    """A `Worker` with a memory; `worker` makes the model's own when it is first needed.

    `replayed` and `live` count the calls that were answered from memory and by the model.
    """

    def __init__(self, worker: Callable[[], Worker]) -> None:
        self._make = worker
        self._worker: Worker | None = None
        self._spans: dict[Hashable, list[tuple[int, Generation]]] = {}
        self._answers: dict[Hashable, Any] = {}
        self.replayed = self.live = 0

    async def generate(
        self, call: Call, criteria: StopCriteria, sampling: Sampling, *, stream: bool = True
    ) -> AsyncIterator[Delta | Generation]:
        """Continue the transcript; a remembered generation comes in one piece."""
        key = _span_key(call.transcript, criteria, sampling, call.speculation)
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
                    self._keep(key, criteria.max_tokens, item)
                yield item
        finally:
            await items.aclose()  # type: ignore[attr-defined]

    async def classify(self, call: Call, query: LabelQuery) -> Classification:
        key = ("classify", _prefix(call.transcript), query)
        if key not in self._answers:
            self.live += 1
            self._answers[key] = await self._model().classify(call, query)
        else:
            self.replayed += 1
        answer: Classification = self._answers[key]
        return answer

    async def verify(self, call: Call, segment: Segment, sampling: Sampling) -> Verification:
        law = _law(sampling)
        key = ("verify", _prefix(call.transcript), segment, law)
        if law is None or key not in self._answers:
            self.live += 1
            answer = await self._model().verify(call, segment, sampling)
            if law is not None:
                self._answers[key] = answer
            return answer
        self.replayed += 1
        known: Verification = self._answers[key]
        return known

    def learn(self, name: str, recording: Recording) -> int:
        """Remember what a recorded request asked of the worker `name`; how many answers it had.

        Only greedy requests teach: the seeds of drawn ones are no part of a recording.
        """
        asked = recording.request
        if _law(asked.sampling) != ():
            return 0
        budget = Budget.of(asked.limits, asked.parameters.get("budget"))
        jobs: dict[Job, Any] = {}
        learnt = 0
        for event in recording.events:
            match event:
                case ActionCompleted(Start(inner), Job() as job):
                    jobs[job] = inner
                    continue
                case ActionCompleted(First(), (Job() as job, answer)) if job in jobs:
                    learnt += self._learn(name, jobs[job], answer, budget)
                case ActionCompleted(action, answer):
                    learnt += self._learn(name, action, answer, budget)
        return learnt

    def _learn(self, name: str, action: Any, answer: Any, budget: Budget) -> int:
        match action, answer:
            case (
                (Generate(worker, transcript, criteria) | Write(worker, transcript, criteria)),
                Generation(),
            ):
                drawn = isinstance(action, Generate) and action.temperature is not None
                # A stream that broke off is recorded as a short span that read no prompt.
                if worker == name and not drawn and answer.usage.prompt:
                    clipped = budget.clip(transcript, criteria)
                    key = _span_key(transcript, clipped, Sampling())
                    self._keep(key, clipped.max_tokens, answer)
                    return 1
            case Classify(worker, transcript), Classification() if worker == name:
                self._answers["classify", _prefix(transcript), action.query] = answer
                return 1
            case Verify(worker, transcript, segment), Verification() if worker == name:
                key = ("verify", _prefix(transcript), segment, ())
                self._answers[key] = answer
                return 1
        return 0

    def _known(self, key: Hashable, cap: int) -> Generation | None:
        """A generation that ended by itself is the same under every cap that leaves it room."""
        for asked, known in self._spans.get(key, ()):
            ended = known.segment.finish != "length"
            if cap == asked or (ended and cap >= max(known.usage.generated, 1)):
                return known
        return None

    def _keep(self, key: Hashable, cap: int, generation: Generation) -> None:
        if key is not None and self._known(key, cap) is None:
            self._spans.setdefault(key, []).append((cap, generation))

    def _model(self) -> Worker:
        if self._worker is None:
            self._worker = self._make()
        return self._worker


def _law(sampling: Sampling) -> Hashable | None:
    """What of the sampling an answer depends on; None where it depends on chance."""
    if sampling.temperature <= 0:
        return ()
    if sampling.seed is None:
        return None
    return (sampling.temperature, sampling.top_p, sampling.top_k, sampling.seed)


def _prefix(transcript: Transcript) -> Hashable:
    """What a model sees of a transcript: who wrote it, and how surely, is not part of it."""
    seen = [
        tuple((part.text, part.tokens, part.tokenizer) for part in phase)
        for phase in (transcript.thought, transcript.answer)
    ]
    return (transcript.messages, *seen, transcript.closed)


def _span_key(
    transcript: Transcript,
    criteria: StopCriteria,
    sampling: Sampling,
    speculation: str | None = None,
) -> Hashable:
    law = _law(sampling)
    if law is None:
        return None
    return ("generate", _prefix(transcript), replace(criteria, max_tokens=0), law, speculation)
