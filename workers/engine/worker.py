"""A `Worker` over an engine in this process."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterable
from dataclasses import replace

from orchestrator.types import (
    ENDED,
    GREEDY,
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
from workers.model.masking import MinTokens
from workers.text.checks import check_length, check_sampling, label_ids
from workers.text.continuation import Continuation
from workers.text.grammar import GrammarCompiler, Matcher
from workers.text.prompt import PromptRenderer
from workers.text.tokenizer import Tokenizer
from workers.text.verification import ScoreOutput, finish_token_ids, verification


class LocalWorker:
    """Renders transcripts as token ids, submits requests to the engine, makes segments of tokens.

    Args:
        engine: owns the model.
        tokenizer: the checkpoint's.
        stop_token_ids: end-of-turn ids of the checkpoint.
        sampling: the checkpoint's own, for requests that say nothing of it.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        stop_token_ids: Iterable[int] = (),
        sampling: Sampling = GREEDY,
    ) -> None:
        self.engine, self.tokenizer, self.sampling = engine, tokenizer, sampling
        self.prompts = PromptRenderer(tokenizer, engine.decoder.target.vocabulary)
        self.context = engine.decoder.target.max_len
        self._stop_token_ids = tokenizer.ends | frozenset(stop_token_ids)
        self._grammars = GrammarCompiler(
            self.prompts, self._stop_token_ids, engine.decoder.target.vocabulary
        )

    async def generate(
        self, call: Call, criteria: StopCriteria, sampling: Sampling, *, stream: bool = True
    ) -> AsyncIterator[Delta | Generation]:
        """Continue the transcript; see `orchestrator.worker.Worker.generate`."""
        check_sampling(sampling)
        check_method(call.speculation, self.engine.decoder.named)
        ids = await self.prompts.prepare(call.transcript, self.context, call.owner)
        continuation = Continuation(
            call,
            criteria,
            self.prompts,
            len(ids),
            stop_token_ids=self._stop_token_ids,
            context=self.context,
        )
        request = GenerateRequest(
            RequestHandle(self.engine.lease_s, stream=stream),
            ids,
            owner=call.owner,
            num_logits=1 if criteria.max_tokens > 0 else 0,
            continuation=continuation,
            sampling=sampling,
            seed=_seed(sampling),
            method=call.speculation,
            matcher=await self._matcher(call) or self._min_tokens(criteria, continuation),
            answering=call.transcript.closed,
        )
        items = self.engine.stream(request)
        try:
            async for item in items:
                if isinstance(item, Delta):
                    yield item
                    continue
                yield Generation(
                    item,
                    request.usage,
                    request.ms,
                    self.prompts.thinks(call.transcript, call.owner),
                    self.prompts.calls_of(call.transcript),
                    request.provenance,
                )
        finally:
            await items.aclose()  # type: ignore[attr-defined]

    async def classify(self, call: Call, query: LabelQuery) -> Classification:
        """The distribution over the query's labels after its side conversation."""
        labels = label_ids(self.tokenizer, query.labels)
        last = call.transcript.last if query.nll else None
        scored = self.prompts.verified(last)
        prefix = await self.prompts.prepare(call.transcript, self.context, call.owner)
        side = self.prompts.side(query.turns, query.lead_in)
        ids = prefix + side
        check_length(len(ids), self.context)
        request = ClassifyRequest(
            RequestHandle(self.engine.lease_s),
            ids,
            owner=call.owner,
            num_logits=len(scored) + len(side) + 1 if query.nll else 1,
            kept_length=len(prefix),
            labels=labels,
            num_scored=len(scored) if query.nll else None,
            stop_token_ids=finish_token_ids(
                self.prompts, self._stop_token_ids, call.transcript, last
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

    async def verify(
        self, call: Call, segment: Segment, sampling: Sampling, top: int = 0
    ) -> Verification:
        """The negative log-likelihood of a segment's k tokens, and k + 1 choices of this model."""
        check_sampling(sampling)
        tokens = self.prompts.verified(segment)
        prefix = await self.prompts.prepare(call.transcript, self.context, call.owner)
        ids = prefix + list(tokens)
        check_length(len(ids), self.context)
        request = VerifyRequest(
            RequestHandle(self.engine.lease_s),
            ids,
            owner=call.owner,
            num_logits=min(len(tokens) + 1, len(ids)),
            sampling=sampling,
            seed=_seed(sampling),
            stop_token_ids=finish_token_ids(
                self.prompts, self._stop_token_ids, call.transcript, segment
            ),
            matcher=await self._matcher(call),
            top=top,
        )
        output: ScoreOutput = await self.engine.answer(request)
        if not prefix:  # nothing precedes the first token, so it is given
            output.nll, output.choices = [0.0, *output.nll], [tokens[0], *output.choices]
            output.logprobs = [0.0, *output.logprobs]
            output.top = output.top and [[(tokens[0], 0.0)], *output.top]
        return verification(
            output,
            call,
            segment,
            self.prompts,
            self._stop_token_ids,
            request.usage,
            request.ms,
        )

    async def _matcher(self, call: Call) -> Matcher | None:
        """Which tokens may come next where the call holds its text to a grammar."""
        if call.constraint is None:
            return None
        return await asyncio.to_thread(self._grammars.matcher, call.constraint, call.transcript)

    def _min_tokens(self, criteria: StopCriteria, continuation: Continuation) -> MinTokens | None:
        if not continuation.late_ends:
            return None
        size = self.engine.decoder.target.vocabulary
        return MinTokens(criteria.min_tokens, continuation.late_ends, size)

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
