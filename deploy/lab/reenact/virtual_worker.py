"""A worker that answers from the record, after the time that a model would take."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from deploy.evaluation.calls import classification_key, generation_key, verification_key
from deploy.lab.reenact.dialogues import Answers, token_ids
from deploy.lab.reenact.engine import VirtualEngine, VirtualRow
from orchestrator.loop.actions import WorkerName
from orchestrator.types import (
    Classification,
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

GOES_ON: Final = {"until": 1, "length": 1, "doubt": 3}
"""By how a text ended, the rows that run ahead: after a doubt, one for each likely token."""


@dataclass(frozen=True)
class AheadRow:
    """A row that runs ahead behind a text; of what follows it, it has made `spare` tokens."""

    row: VirtualRow
    text: tuple[int, ...]
    spare: int

    def lacks(self, transcript: Transcript) -> int | None:
        """How many tokens of a transcript it still has to make; None: it is another text.

        Behind its own text others may have put tokens: they are taken to be its own.
        """
        tokens = token_ids(transcript)
        if tokens[: len(self.text)] != self.text:
            return None
        return len(tokens) - len(self.text) - self.spare


class VirtualWorker:
    """A `Worker` over recorded answers (by request) and an engine in virtual time.

    A request's first call reads its whole prompt. Later ones find cached what they found cached
    when they were recorded. With `run_ahead` a text that no model ended continues for that many
    tokens, and the next generation that continues it takes them, without the costs of a call.
    """

    def __init__(
        self,
        name: WorkerName,
        engine: VirtualEngine,
        answers: Mapping[str, Answers],
        run_ahead: int = 0,
    ) -> None:
        self._name, self._engine, self._answers = name, engine, answers
        self._known: set[str] = set()  # requests that have read their prompt
        self._run_ahead = run_ahead
        self._ahead: dict[str, AheadRow] = {}  # by request

    async def generate(
        self, call: Call, criteria: StopCriteria, sampling: Sampling, *, stream: bool = True
    ) -> AsyncGenerator[Delta | Generation, None]:
        """Continue the transcript; the whole text comes at its end."""
        answer: Generation = self._take(call, generation_key(call, criteria, sampling))
        segment, tokens = answer.segment, max(1, answer.usage.generated)
        ahead = self._ahead.pop(call.request, None)
        lacking = None if ahead is None else ahead.lacks(call.transcript)
        if ahead is not None and lacking is not None:
            row, tokens = ahead.row, tokens + lacking
        else:
            if ahead is not None:
                self._engine.end(ahead.row, aborted=ahead.row.runs_ahead)
            row = await self._begin(call, answer.usage)
        await self._engine.write(row, tokens)
        if self._run_ahead and criteria.max_tokens and segment.finish in GOES_ON:
            self._engine.run_ahead(row, self._run_ahead, GOES_ON[segment.finish])
            text = token_ids(call.transcript) + segment.tokens
            spare = answer.usage.generated - len(segment.tokens)
            self._ahead[call.request] = AheadRow(row, text, spare)
        else:
            self._engine.end(row, aborted=0 < answer.usage.generated < criteria.max_tokens)
        yield answer

    async def classify(self, call: Call, query: LabelQuery) -> Classification:
        answer: Classification = self._take(call, classification_key(call, query))
        await self._spend(call, answer.usage)
        return answer

    async def verify(
        self, call: Call, segment: Segment, sampling: Sampling, top: int = 0
    ) -> Verification:
        answer: Verification = self._take(call, verification_key(call, segment, sampling, top))
        await asyncio.sleep(self._engine.costs.verify_ms / 1000)
        await self._spend(call, answer.usage)
        return answer

    def _take(self, call: Call, key: str | None) -> Any:
        return self._answers[call.request].take(self._name, key, call.transcript)

    async def _spend(self, call: Call, usage: Usage) -> None:
        """Let the time of a call pass that only reads."""
        row = await self._begin(call, usage)
        await self._engine.write(row, 1)
        self._engine.end(row)

    async def _begin(self, call: Call, usage: Usage) -> VirtualRow:
        cached = usage.cached if call.request in self._known else 0
        self._known.add(call.request)
        await asyncio.sleep(self._engine.costs.call_ms / 1000)
        return self._engine.begin(max(1, usage.prompt - cached))
