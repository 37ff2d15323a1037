"""A worker that answers from the record, after a real engine has done the same work."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from deploy.evaluation.calls import classification_key, generation_key, verification_key
from deploy.lab.bench.calls import generation
from deploy.lab.gpu.models import TEMPLATE_TOKENS, piece
from deploy.lab.reenact.dialogues import Answers, token_ids
from orchestrator.loop.actions import WorkerName
from orchestrator.types import (
    NO_SEGMENTS,
    Classification,
    Generation,
    LabelQuery,
    Message,
    Sampling,
    Segment,
    StopCriteria,
    Transcript,
    Verification,
)
from orchestrator.worker import Call, Delta
from workers.model.cache import common_prefix


@dataclass
class Texts:
    """What the engines wrote for each recorded text of a request: ids (recorded, real)."""

    known: list[tuple[tuple[int, ...], tuple[int, ...]]] = field(default_factory=list)

    def real(self, recorded: tuple[int, ...]) -> tuple[int, ...]:
        """The ids that a recorded text has here, so that it is cached, and can be adopted.

        What others put behind a whole text is taken to be what its writer had next.
        """
        best: tuple[int, ...] = ()
        for theirs, ours in self.known:
            same = common_prefix(theirs, recorded, len(recorded))
            if same == len(theirs):
                same = min(len(ours), len(recorded))
            if same > len(best):
                best = ours[:same]
        return best + recorded[len(best) :]

    def learn(self, before: tuple[int, ...], recorded: Segment, made: tuple[int, ...]) -> None:
        """Note what was written behind a recorded text."""
        self.known.append((before + recorded.tokens, self.real(before) + made))


class PlayedWorker:
    """A `Worker` over recorded answers (by request) and the worker of a real engine.

    It makes as many tokens as are on record, and reads as many; which ones is the random model's
    matter. `texts` (by request) is shared by a pair, and `tag` sets its prompts apart from others.
    """

    def __init__(
        self,
        name: WorkerName,
        worker: Any,
        answers: Mapping[str, Answers],
        texts: dict[str, Texts],
        tag: str,
    ) -> None:
        self._name, self._worker, self._answers = name, worker, answers
        self._texts, self._tag = texts, tag

    async def generate(
        self, call: Call, criteria: StopCriteria, sampling: Sampling, *, stream: bool = True
    ) -> AsyncGenerator[Delta | Generation, None]:
        """Let the engine make the recorded number of tokens; the recorded text comes at its end."""
        answer: Generation = self._take(call, generation_key(call, criteria, sampling))
        made = await generation(self._worker, self._real(call), answer.usage.generated, True)
        if answer.usage.generated:
            texts = self._texts[call.request]
            texts.learn(token_ids(call.transcript), answer.segment, made.segment.tokens)
        yield answer

    async def classify(self, call: Call, query: LabelQuery) -> Classification:
        """Let the engine read the query."""
        answer: Classification = self._take(call, classification_key(call, query))
        await self._worker.classify(self._real(call), query)
        return answer

    async def verify(
        self, call: Call, segment: Segment, sampling: Sampling, top: int = 0
    ) -> Verification:
        """Let the engine read the segment."""
        answer: Verification = self._take(call, verification_key(call, segment, sampling, top))
        before = self._real(call)
        whole = token_ids(
            self._real(replace(call, transcript=call.transcript.extend(segment))).transcript
        )
        part = self._segment(whole[len(token_ids(before.transcript)) :])
        await self._worker.verify(before, part, Sampling(), top)
        return answer

    def _take(self, call: Call, key: str | None) -> Any:
        return self._answers[call.request].take(self._name, key, call.transcript)

    def _real(self, call: Call) -> Call:
        """The call over a prompt as long as the recorded one, and over what was written here."""
        name = f"{self._tag}-{call.request}"
        recorded = self._answers[call.request].prompt_tokens
        message = Message("user", f"{name} {piece(max(1, recorded - len(name) - TEMPLATE_TOKENS))}")
        ids = self._texts.setdefault(call.request, Texts()).real(token_ids(call.transcript))
        answer = NO_SEGMENTS.plus(self._segment(ids)) if ids else NO_SEGMENTS
        transcript = Transcript((message,), answer=answer, thinking=False, closed=True)
        return replace(call, request=name, owner=name, transcript=transcript)

    def _segment(self, ids: tuple[int, ...]) -> Segment:
        author = self._name
        return Segment(author, piece(len(ids)), ids, (0.0,) * len(ids), self._worker.tokenizer.hash)
