"""A worker that answers from the record, after the time that a model would take."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

from deploy.lab.reenact.dialogues import Answers
from deploy.lab.reenact.engine import VirtualEngine
from orchestrator.loop.actions import WorkerName
from orchestrator.types import (
    Classification,
    Generation,
    LabelQuery,
    Sampling,
    Segment,
    StopCriteria,
    Usage,
    Verification,
)
from orchestrator.worker import Call, Delta


class VirtualWorker:
    """A `Worker` over recorded answers (by request) and an engine in virtual time.

    A request's first call reads its whole prompt. Later ones find cached what they found cached
    when they were recorded.
    """

    def __init__(
        self, name: WorkerName, engine: VirtualEngine, answers: Mapping[str, Answers]
    ) -> None:
        self._name, self._engine, self._answers = name, engine, answers
        self._known: set[str] = set()  # requests that have read their prompt

    async def generate(
        self, call: Call, criteria: StopCriteria, sampling: Sampling, *, stream: bool = True
    ) -> AsyncIterator[Delta | Generation]:
        """Continue the transcript; the whole text comes at its end."""
        answer: Generation = self._take(call, criteria)
        made = answer.usage.generated
        await self._spend(call, answer.usage, aborted=0 < made < criteria.max_tokens)
        yield answer

    async def classify(self, call: Call, query: LabelQuery) -> Classification:
        answer: Classification = self._take(call, query)
        await self._spend(call, answer.usage)
        return answer

    async def verify(
        self, call: Call, segment: Segment, sampling: Sampling, top: int = 0
    ) -> Verification:
        answer: Verification = self._take(call, segment)
        await asyncio.sleep(self._engine.costs.verify_ms / 1000)
        await self._spend(call, answer.usage)
        return answer

    def _take(self, call: Call, about: StopCriteria | LabelQuery | Segment) -> Any:
        return self._answers[call.request].take(self._name, call.transcript, about)

    async def _spend(self, call: Call, usage: Usage, aborted: bool = False) -> None:
        """Let the time of a call pass."""
        cached = usage.cached if call.request in self._known else 0
        self._known.add(call.request)
        await asyncio.sleep(self._engine.costs.call_ms / 1000)
        await self._engine.run(max(1, usage.prompt - cached), usage.generated, aborted)
