"""The `Worker` port over any backend: prompts, checks, labels and verifications, written once."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import lru_cache, partial
from math import exp, inf
from time import perf_counter
from typing import Generic, TypeVar

from orchestrator.efforts import TemplateEfforts
from orchestrator.errors import Unsupported, WorkerError
from orchestrator.types import (
    ENDED,
    Classification,
    Generation,
    LabelQuery,
    Provenance,
    Sampling,
    Segment,
    StopCriteria,
    Verification,
)
from orchestrator.worker import Call, Delta, check_method
from workers.backend import Backend, Decoding, LocalBackend, Prompt, Scoring
from workers.reporting import ms_since
from workers.text.checks import check_sampling, label_ids
from workers.text.continuation import Continuation
from workers.text.verification import finish_token_ids, verification

NOTHING = Delta("", ())
AnyBackend = TypeVar("AnyBackend", bound=Backend, covariant=True)
AnyLocal = TypeVar("AnyLocal", bound=LocalBackend, covariant=True)


class ModelWorker(Generic[AnyBackend]):
    """One model over any backend."""

    def __init__(self, backend: AnyBackend) -> None:
        self.backend = backend
        self.prompts, self.tokenizer = backend.prompts, backend.prompts.tokenizer
        self._labels = lru_cache(maxsize=64)(partial(label_ids, self.tokenizer))

    @property
    def context(self) -> int | None:
        return self.backend.context

    @property
    def sampling(self) -> Sampling:
        return self.backend.sampling

    @property
    def efforts(self) -> TemplateEfforts | None:
        return self.prompts.efforts

    async def generate(
        self,
        call: Call,
        criteria: StopCriteria,
        sampling: Sampling,
        *,
        stream: bool = True,
        received: Delta = NOTHING,
    ) -> AsyncGenerator[Delta | Generation, None]:
        """Continue the transcript; see `orchestrator.worker.Worker.generate`.

        `received` is what the caller has of the text from a worker that is lost: only the rest is
        made, and the Generation is the whole.
        """
        began = perf_counter()
        check_sampling(sampling)
        check_method(call.speculation, self.backend.methods)
        ids = await self._read(call)
        text = Continuation(
            call,
            criteria,
            self.prompts,
            ids,
            stop_token_ids=self.backend.ends,
            context=self.context,
        )
        if received.tokens and (finish := text.resume(received)) is not None:
            yield self._whole(Generation(text.segment(finish)), text, received, began)
            return
        prompt = Prompt(text.call, text.ids, len(text.ids))
        wanted = Decoding(text, sampling, stream)
        try:
            async with aclosing(self.backend.decode(prompt, wanted)) as items:
                async for item in items:
                    if isinstance(item, Generation):
                        item = self._whole(item, text, received, began)
                    yield item
        except Unsupported as error:  # such as resuming a constrained answer: no worker can
            if not text.before.tokens:
                raise
            raise WorkerError(f"a stream broke off and cannot resume: {error}") from None

    def _whole(
        self, made: Generation, text: Continuation, received: Delta, began: float
    ) -> Generation:
        """Complete what a backend made of a text that began with what was received."""
        usage, provenance = made.usage, made.provenance
        if received.tokens:  # these are not part of the caller's prompt
            cached, generated = min(usage.cached, text.prompt), len(made.segment.tokens)
            usage = replace(usage, prompt=text.prompt, cached=cached, generated=generated)
            if provenance is not None:
                provenance = Provenance.unknown(text.before) + provenance
        return replace(
            made,
            usage=usage,
            ms=ms_since(began),
            thinks=self.prompts.thinks(text.call.transcript, text.call.owner),
            calls=self.prompts.calls_of(text.call.transcript),
            provenance=provenance,
            closing=self.prompts.closing_words,
        )

    async def classify(self, call: Call, query: LabelQuery) -> Classification:
        """Return the distribution over the query's labels after its side conversation."""
        began = perf_counter()
        labels = self._labels(query.labels)
        last = call.transcript.last if query.nll else None
        size = len(self.prompts.verified(last))
        prefix = await self._read(call)
        length = len(prefix)
        prompt = Prompt(call, prefix + self.prompts.side(query.turns, query.lead_in), length, query)
        part = range(length - size, length) if query.nll else None
        scores = await self.backend.score(prompt, Scoring(part, self._ends(call, last), labels))
        probabilities, outside = distribution(scores.labels)
        ended = last is not None and last.finish in ENDED
        return Classification(
            query.labels,
            probabilities,
            outside,
            scores.usage,
            ms_since(began),
            tuple(scores.nll) if query.nll else None,
            scores.ending if ended else None,
        )

    async def verify(
        self, call: Call, segment: Segment, sampling: Sampling, top: int = 0
    ) -> Verification:
        """Return the negative log-likelihood of a segment's k tokens, and k + 1 choices."""
        began = perf_counter()
        check_sampling(sampling)
        tokens = self.prompts.verified(segment)
        prefix = await self._read(call)
        ids = prefix + list(tokens)
        first = max(1, len(prefix))  # without a prefix, the first token has no likelihood
        wanted = Scoring(
            range(first, len(ids)), self._ends(call, segment), sampling=sampling, top=top
        )
        scores = await self.backend.score(Prompt(call, ids, len(ids)), wanted)
        if not prefix:
            scores.give(tokens[0])
        return verification(scores, call, segment, self.prompts, self.backend.ends, ms_since(began))

    async def end_ahead(self) -> None:
        """End what still runs for texts whose calls have ended, since it takes time from others."""
        await self.backend.end_ahead()

    async def _read(self, call: Call) -> list[int]:
        """Return the ids of the call's transcript, once the backend is ready."""
        await self.backend.ready()
        return await self.prompts.prepare(call.transcript, self.context, call.owner)

    def _ends(self, call: Call, segment: Segment | None) -> frozenset[int]:
        return finish_token_ids(self.prompts, self.backend.ends, call.transcript, segment)


class EngineWorker(ModelWorker[AnyLocal]):
    """A worker over an engine in this process; see `LocalBackend`."""

    @property
    def alive(self) -> bool:
        return self.backend.alive

    def stats(self) -> dict[str, int]:
        return self.backend.stats()

    def close(self) -> None:
        self.backend.close()


def distribution(logprobs: Sequence[float]) -> tuple[tuple[float, ...], float]:
    """Return the labels' probabilities among themselves, and that of all other tokens.

    `logprobs` are the labels' among all tokens. If all of them underflow, they are compared with
    the largest; if all are minus infinity, the labels are equally likely.
    """
    shares = [exp(min(0.0, logprob)) for logprob in logprobs]
    inside = sum(shares)
    if not inside > 0:
        best = max(logprobs)
        shares = [1.0 if best == -inf else exp(logprob - best) for logprob in logprobs]
    whole = sum(shares)
    return tuple(share / whole for share in shares), max(0.0, 1.0 - inside)
