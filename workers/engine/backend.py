"""The built-in engine as a `Backend`: calls as requests to its thread."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Collection, Iterable

from orchestrator.types import GREEDY, Generation, Sampling
from orchestrator.worker import Call, Delta
from workers.backend import Decoding, Prompt, Scoring
from workers.engine.engine import Engine
from workers.engine.requests import GenerateRequest, RequestHandle, ScoreRequest
from workers.model.masking import MinTokens
from workers.text.checks import check_length
from workers.text.grammar import GrammarCompiler, Matcher
from workers.text.prompt import PromptRenderer
from workers.text.tokenizer import Tokenizer
from workers.text.verification import Scores


class BuiltinBackend:
    """Submits requests to the engine; end-of-turn ids and sampling are the checkpoint's own."""

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        stop_token_ids: Iterable[int] = (),
        sampling: Sampling = GREEDY,
    ) -> None:
        self.engine, self.sampling = engine, sampling
        self._vocabulary = engine.decoder.target.vocabulary
        self.prompts = PromptRenderer(tokenizer, self._vocabulary)
        self.ends = tokenizer.ends | frozenset(stop_token_ids)
        self._grammars = GrammarCompiler(self.prompts, self.ends, self._vocabulary)

    @property
    def context(self) -> int:
        return self.engine.decoder.target.max_len

    @property
    def methods(self) -> Collection[str]:
        return self.engine.decoder.methods

    async def ready(self) -> None:
        """Return at once."""

    async def decode(
        self, prompt: Prompt, wanted: Decoding
    ) -> AsyncGenerator[Delta | Generation, None]:
        call, criteria = prompt.call, wanted.text.criteria
        request = GenerateRequest(
            RequestHandle(stream=wanted.stream),
            prompt.ids,
            owner=call.owner,
            num_logits=1 if criteria.max_tokens > 0 else 0,
            continuation=wanted.text,
            sampling=wanted.sampling,
            seed=_seed(wanted.sampling),
            method=call.speculation,
            name=call.request,
            matcher=await self._matcher(call) or self._min_tokens(wanted),
        )
        self.engine.submit(request)
        try:
            while True:
                for item in await request.handle.items():
                    if isinstance(item, BaseException):
                        raise item
                    if not isinstance(item, Delta):
                        yield Generation(item, request.usage, provenance=request.provenance)
                        return
                    yield item
        finally:
            request.handle.cancelled = True

    async def score(self, prompt: Prompt, wanted: Scoring) -> Scores:
        ids, call, part = prompt.ids, prompt.call, wanted.part
        check_length(len(ids), self.context)
        draws = wanted.sampling is not None
        request = ScoreRequest(
            RequestHandle(),
            ids,
            owner=call.owner,
            num_logits=1 if part is None else len(ids) + 1 - part.start,
            kept_length=prompt.kept,
            wanted=wanted,
            seed=0 if wanted.sampling is None else _seed(wanted.sampling),
            matcher=await self._matcher(call) if draws else None,
        )
        scores: Scores = await self.engine.answer(request)
        return scores

    async def _matcher(self, call: Call) -> Matcher | None:
        """Which tokens may come next if the call holds its text to a grammar."""
        if call.constraint is None:
            return None
        return await asyncio.to_thread(self._grammars.matcher, call.constraint, call.transcript)

    def _min_tokens(self, wanted: Decoding) -> MinTokens | None:
        if not wanted.text.late_ends:
            return None
        return MinTokens(wanted.text.criteria.min_tokens, wanted.text.late_ends, self._vocabulary)

    async def end_ahead(self) -> None:
        self.engine.end_ahead()

    @property
    def alive(self) -> bool:
        return self.engine.alive

    def stats(self) -> dict[str, int]:
        return self.engine.stats()

    def close(self) -> None:
        self.engine.close()


def _seed(sampling: Sampling) -> int:
    return secrets.randbits(63) if sampling.seed is None else sampling.seed
