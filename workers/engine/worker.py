"""A `Worker` over an engine in this process."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Iterable
from dataclasses import replace
from typing import cast

from orchestrator.types import (
    Author,
    Classification,
    Finish,
    Generation,
    LabelQuery,
    Sampling,
    Segment,
    StopCriteria,
    Verification,
)
from orchestrator.worker import Call, Delta, check_method
from workers.engine.engine import Engine
from workers.engine.requests import ClassifyJob, GenerateJob, Ticket, VerifyJob
from workers.text.checks import answer_room, check_length, check_sampling, label_ids
from workers.text.detokenizer import Writer
from workers.text.prompt import Prompts
from workers.text.tokenizer import CLOSE, Tokenizer
from workers.text.verification import ENDED, Verdict, endings, verification


class LocalWorker:
    """Tokens in, tokens out: renders transcripts, asks the engine, signs segments.

    A thought ends by "length" before the context is full, so that there is room for an answer.

    Args:
        engine: owns the model.
        tokenizer: the checkpoint's.
        ends: end-of-turn ids of the checkpoint.
    """

    def __init__(self, engine: Engine, tokenizer: Tokenizer, ends: Iterable[int] = ()) -> None:
        self.engine, self.tokenizer = engine, tokenizer
        self.prompts = Prompts(tokenizer)
        self.context = engine.decoder.target.max_len
        self._reserve = answer_room(self.context)
        self._ends = tokenizer.controls | frozenset(ends)

    async def generate(
        self, call: Call, criteria: StopCriteria, sampling: Sampling, *, stream: bool = True
    ) -> AsyncIterator[Delta | Generation]:
        """Continue the transcript; see `orchestrator.worker.Worker.generate`."""
        thinking, tokenizer = not call.transcript.closed, self.tokenizer
        check_sampling(sampling)
        check_method(call.speculation, self.engine.decoder.named)
        ids = self.prompts.transcript(call.transcript)
        check_length(len(ids) + (criteria.max_tokens > 0), self.context)
        stops: list[tuple[str, Finish]] = [(stop, "stop") for stop in criteria.stop]
        if thinking and tokenizer.close_id is None:
            stops.append((CLOSE, "think_end"))
        job = GenerateJob(
            Ticket(self.engine.lease, stream=stream),
            ids,
            last=1 if criteria.max_tokens > 0 else 0,
            criteria=criteria,
            sampling=sampling,
            seed=_seed(sampling),
            writer=Writer(
                tokenizer.pieces,
                tokenizer.encode,
                criteria.until,
                stops,
                fresh=not thinking
                and not any(part.text.strip() for part in call.transcript.answer),
                begun=self.prompts.unfinished(call.transcript),
            ),
            think_end=tokenizer.close_id if thinking else None,
            ends=self._ends,
            room=min(criteria.max_tokens, self.context - len(ids) - thinking * self._reserve),
            method=call.speculation,
        )
        answers = self.engine.stream(job)
        try:
            async for item in answers:
                if isinstance(item, Delta):
                    yield item
                    continue
                text, tokens, logprobs, finish = item
                segment = Segment(
                    cast("Author", call.author),
                    text,
                    tuple(tokens),
                    tuple(logprobs),
                    tokenizer.hash,
                    finish,
                )
                yield Generation(segment, job.usage, job.ms, job.entropy)
        finally:
            await answers.aclose()  # type: ignore[attr-defined]

    async def classify(self, call: Call, query: LabelQuery) -> Classification:
        """The distribution over the query's labels after its side conversation."""
        chosen = label_ids(self.tokenizer, query.labels)
        judged = call.transcript.last if query.nll else None
        verified = self.prompts.verified(judged)
        prefix = self.prompts.transcript(call.transcript)
        side = self.prompts.side(query.turns, query.lead_in)
        ids = prefix + side
        check_length(len(ids), self.context)
        job = ClassifyJob(
            Ticket(self.engine.lease),
            ids,
            last=len(verified) + len(side) + 1 if query.nll else 1,
            keep=len(prefix),
            labels=chosen,
            verified=len(verified) if query.nll else None,
            ends=endings(self.tokenizer, self._ends, call.transcript, judged),
        )
        probabilities, outside, *told = await self.engine.answer(job)
        law = Classification(query.labels, tuple(probabilities), outside, job.usage, job.ms)
        if not query.nll:
            return law
        surprises, ending = told
        ended = judged is not None and judged.finish in ENDED
        return replace(law, nll=tuple(surprises), ending=ending if ended else None)

    async def verify(self, call: Call, segment: Segment, sampling: Sampling) -> Verification:
        """The surprise at each token of a segment, and k + 1 choices of this model's own."""
        check_sampling(sampling)
        tokens = self.prompts.verified(segment)
        prefix = self.prompts.transcript(call.transcript)
        ids = prefix + list(tokens)
        check_length(len(ids), self.context)
        job = VerifyJob(
            Ticket(self.engine.lease),
            ids,
            last=len(tokens) + 1,
            sampling=sampling,
            seed=_seed(sampling),
            ends=endings(self.tokenizer, self._ends, call.transcript, segment),
        )
        verdict: Verdict = await self.engine.answer(job)
        return verification(verdict, call, segment, self.prompts, self._ends, job.usage, job.ms)

    @property
    def alive(self) -> bool:
        """Whether calls can still be answered."""
        return self.engine.alive

    def stats(self) -> dict[str, int]:
        return self.engine.stats()

    def forget(self) -> None:
        """Forget the prefixes of all calls that have ended: what comes next reads its own."""
        self.engine.forget()

    def close(self) -> None:
        """Stop the engine; calls in progress fail with `WorkerUnavailable`."""
        self.engine.close()


def _seed(sampling: Sampling) -> int:
    return secrets.randbits(63) if sampling.seed is None else sampling.seed
