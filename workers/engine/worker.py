"""A `Worker` over an engine in this process."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Iterable
from dataclasses import replace
from typing import cast

from orchestrator.types import (
    Author,
    Classification,
    Generation,
    LabelQuery,
    Sampling,
    Segment,
    StopCriteria,
    Verification,
)
from orchestrator.worker import Call, Delta, check_method
from workers.engine.engine import Engine
from workers.engine.requests import ClassifyRequest, GenerateRequest, RequestHandle, VerifyRequest
from workers.text.boundaries import StepEnd, begun
from workers.text.checks import answer_reserve, check_length, check_sampling, label_ids
from workers.text.detokenizer import Detokenizer, Stop
from workers.text.prompt import PromptRenderer
from workers.text.tokenizer import Tokenizer
from workers.text.verification import ENDED, ScoreOutput, finish_token_ids, verification


class LocalWorker:
    """Renders transcripts as token ids, submits requests to the engine, makes segments of tokens.

    A thought ends by "length" before the context is full: the rest is reserved for the answer.

    Args:
        engine: owns the model.
        tokenizer: the checkpoint's.
        stop_token_ids: end-of-turn ids of the checkpoint.
    """

    def __init__(
        self, engine: Engine, tokenizer: Tokenizer, stop_token_ids: Iterable[int] = ()
    ) -> None:
        self.engine, self.tokenizer = engine, tokenizer
        self.prompts = PromptRenderer(tokenizer)
        self.context = engine.decoder.target.max_len
        self._reserved = answer_reserve(self.context)
        self._stop_token_ids = tokenizer.controls | frozenset(stop_token_ids)

    async def generate(
        self, call: Call, criteria: StopCriteria, sampling: Sampling, *, stream: bool = True
    ) -> AsyncIterator[Delta | Generation]:
        """Continue the transcript; see `orchestrator.worker.Worker.generate`."""
        thinking, tokenizer = not call.transcript.closed, self.tokenizer
        check_sampling(sampling)
        check_method(call.speculation, self.engine.decoder.named)
        ids = self.prompts.transcript(call.transcript)
        check_length(len(ids) + (criteria.max_tokens > 0), self.context)
        stops: list[Stop] = [(stop, "stop") for stop in criteria.stop]
        request = GenerateRequest(
            RequestHandle(self.engine.lease_s, stream=stream),
            ids,
            num_logits=1 if criteria.max_tokens > 0 else 0,
            criteria=criteria,
            sampling=sampling,
            seed=_seed(sampling),
            detokenizer=Detokenizer(
                tokenizer.pieces,
                tokenizer.encode,
                StepEnd(criteria.until, begun(call.transcript, criteria.until)),
                stops + tokenizer.stops(thinking),
                begins_answer=not thinking
                and not any(part.text.strip() for part in call.transcript.answer),
                unfinished_bytes=self.prompts.unfinished(call.transcript),
            ),
            think_end_id=tokenizer.close_id if thinking else None,
            stop_token_ids=self._stop_token_ids,
            max_tokens=min(
                criteria.max_tokens, self.context - len(ids) - thinking * self._reserved
            ),
            method=call.speculation,
        )
        items = self.engine.stream(request)
        try:
            async for item in items:
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
                yield Generation(
                    segment, request.usage, request.ms, request.entropy, tokenizer.thinks
                )
        finally:
            await items.aclose()  # type: ignore[attr-defined]

    async def classify(self, call: Call, query: LabelQuery) -> Classification:
        """The distribution over the query's labels after its side conversation."""
        labels = label_ids(self.tokenizer, query.labels)
        last = call.transcript.last if query.nll else None
        scored = self.prompts.verified(last)
        prefix = self.prompts.transcript(call.transcript)
        side = self.prompts.side(query.turns, query.lead_in)
        ids = prefix + side
        check_length(len(ids), self.context)
        request = ClassifyRequest(
            RequestHandle(self.engine.lease_s),
            ids,
            num_logits=len(scored) + len(side) + 1 if query.nll else 1,
            kept_length=len(prefix),
            labels=labels,
            num_scored=len(scored) if query.nll else None,
            stop_token_ids=finish_token_ids(
                self.tokenizer, self._stop_token_ids, call.transcript, last
            ),
        )
        probabilities, outside, *nlls = await self.engine.answer(request)
        answer = Classification(
            query.labels, tuple(probabilities), outside, request.usage, request.ms
        )
        if not query.nll:
            return answer
        token_nlls, stop_nll = nlls
        ended = last is not None and last.finish in ENDED
        return replace(answer, nll=tuple(token_nlls), ending=stop_nll if ended else None)

    async def verify(self, call: Call, segment: Segment, sampling: Sampling) -> Verification:
        """The negative log-likelihood of a segment's k tokens, and k + 1 choices of this model."""
        check_sampling(sampling)
        tokens = self.prompts.verified(segment)
        prefix = self.prompts.transcript(call.transcript)
        ids = prefix + list(tokens)
        check_length(len(ids), self.context)
        request = VerifyRequest(
            RequestHandle(self.engine.lease_s),
            ids,
            num_logits=len(tokens) + 1,
            sampling=sampling,
            seed=_seed(sampling),
            stop_token_ids=finish_token_ids(
                self.tokenizer, self._stop_token_ids, call.transcript, segment
            ),
        )
        output: ScoreOutput = await self.engine.answer(request)
        return verification(
            output,
            call,
            segment,
            self.prompts,
            self._stop_token_ids,
            request.usage,
            request.ms,
        )

    @property
    def alive(self) -> bool:
        """Whether calls can still be answered."""
        return self.engine.alive

    def stats(self) -> dict[str, int]:
        return self.engine.stats()

    def reset_prefix_cache(self) -> None:
        """Forget the prefixes of all calls that have ended: those that follow prefill their own."""
        self.engine.reset_prefix_cache()

    def close(self) -> None:
        """Stop the engine; calls in progress fail with `WorkerUnavailable`."""
        self.engine.close()


def _seed(sampling: Sampling) -> int:
    return secrets.randbits(63) if sampling.seed is None else sampling.seed
