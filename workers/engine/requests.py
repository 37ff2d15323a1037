"""The requests an engine serves, and how each turns the model's output into its answer.

They belong to the engine's thread; only `RequestHandle` is touched from both sides.
"""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor

from orchestrator.types import Finish, Provenance, Sampling, Segment, Usage
from orchestrator.worker import Delta
from workers.backend import Scoring
from workers.model.masking import TokenMatcher, mask_chain
from workers.model.sampling import draw, nan_logits, warp
from workers.model.target import ModelOutput
from workers.model.tree import Accepted
from workers.rng import uniform
from workers.text.continuation import Continuation
from workers.text.origins import Origins
from workers.text.verification import Scores

WAKE_S: Final = 0.004
"""Least time between two wake-ups of a caller for tokens: each costs the engine's thread about 0.1
ms, half a pass of a small model on a CPU. What is held back comes with the next round's tokens."""


class RequestHandle:
    """The caller's end of a request; one that is cancelled gives its row back."""

    def __init__(self, *, stream: bool = False) -> None:
        self.stream, self.cancelled = stream, False
        self._loop = asyncio.get_running_loop()
        self._arrived = asyncio.Event()
        self._notified = False
        self._quiet_until = 0.0
        self._items: list[Any] = []

    def put(self, item: Any) -> None:
        """From the engine's thread: deliver a delta, the answer or an error."""
        self._items.append(item)
        if not isinstance(item, Delta) or time.monotonic() >= self._quiet_until:
            self.flush()

    def flush(self) -> None:
        """From the engine's thread: wake the reader, who may be emptying the list already."""
        if not self._items or self._notified:  # one wake-up for all of it
            return
        self._notified, self._quiet_until = True, time.monotonic() + WAKE_S
        try:
            self._loop.call_soon_threadsafe(self._arrived.set)
        except RuntimeError:  # the caller's loop is closed
            self.cancelled = True

    async def items(self) -> list[Any]:
        """Wait for at least one item, the last maybe an error; cancelled waiting cancels the
        request."""
        try:
            await self._arrived.wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        self._arrived.clear()
        self._notified = False
        # The list stays the same object: the engine's thread may be about to append to it.
        items = self._items[:]
        del self._items[: len(items)]
        return items


@dataclass(eq=False, slots=True)
class EngineRequest:
    """One call in the engine."""

    handle: RequestHandle
    ids: list[int]  # the prompt
    num_logits: int = 1  # of how many of its last tokens the logits are wanted
    kept_length: int | None = None  # of `ids` that stay cached after the request (None: all)
    owner: str = ""  # see `Call.owner`
    slot: int = -1
    prompt: int = 0
    cached: int = 0
    generated: int = 0
    passes: int = 0
    adopted: int = 0

    def __post_init__(self) -> None:
        self.prompt = len(self.ids)

    @property
    def usage(self) -> Usage:
        return Usage(self.prompt, self.cached, self.generated, self.passes, self.adopted)

    def take(self, result: ModelOutput) -> None:
        """Reduce the next logits that are wanted: memory cannot hold those of a long text."""

    def output(self, result: ModelOutput | None) -> Any:
        """The answer of a request that is not decoded; `result` is None if no logits are wanted."""
        return None


@dataclass(eq=False, slots=True)
class ScoreRequest(EngineRequest):
    """Answers with the scores that are wanted of its last `num_logits` places."""

    wanted: Scoring = field(kw_only=True)
    seed: int = 0
    matcher: TokenMatcher | None = None  # of what the scored ids must match
    scores: Scores = field(default_factory=Scores)
    place: int = -1  # of the token that the next of the logits are for

    def __post_init__(self) -> None:
        self.prompt = len(self.ids)
        self.place = self.prompt + 1 - self.num_logits

    def take(self, result: ModelOutput) -> None:
        logits, first, part = result.logits[0], self.place, self.wanted.part
        self.place += len(logits)
        if part is not None and first <= part.stop:
            self._score(logits[: part.stop + 1 - first].float(), first, part)

    def _score(self, logits: Tensor, first: int, part: range) -> None:
        """Score the places of `part` and the one after it, of which these are the next logits."""
        scores, sampling = self.scores, self.wanted.sampling
        given = self.ids[first : min(first + len(logits), part.stop)]
        if self.matcher is not None and not mask_chain(self.matcher, given, logits):
            self.matcher = None  # what follows is free
        log_probs = logits.log_softmax(-1)
        if not bool(log_probs.amax(-1).isfinite().all()):  # NaN if the logits have one
            raise nan_logits()
        if given:
            scores.nll += (-log_probs[range(len(given)), given]).tolist()
        if sampling is not None:
            choices, own = self._choose(logits, log_probs, sampling, first)
            scores.choices += choices.tolist()
            scores.logprobs += own.gather(1, choices[:, None]).squeeze(1).tolist()
            if count := min(self.wanted.top, log_probs.shape[-1]):
                values, ids = (one.tolist() for one in log_probs.topk(count))
                places = zip(ids, values, strict=True)
                scores.top += [list(zip(*place, strict=True)) for place in places]
        if first + len(logits) > part.stop:
            ends = [token for token in self.wanted.ends if token < log_probs.shape[-1]]
            scores.ending = -float(log_probs[-1, ends].logsumexp(0)) if ends else math.inf

    def _choose(
        self, logits: Tensor, log_probs: Tensor, sampling: Sampling, first: int
    ) -> tuple[Tensor, Tensor]:
        """The choice at each place, and the log-probabilities it was drawn by."""
        if sampling.is_greedy:
            return logits.argmax(-1), log_probs
        numbers = [uniform(self.seed, first + i) for i in range(len(logits))]
        probs = warp(logits[None], [sampling])[0]
        drawn = draw(probs, torch.tensor(numbers, dtype=torch.float64, device=probs.device))
        return drawn, probs.log()

    def output(self, result: ModelOutput | None) -> Scores:
        assert result is not None
        self.take(result)
        if self.wanted.labels:
            log_probs = result.logits[0, -1].double().log_softmax(-1)[list(self.wanted.labels)]
            if bool(log_probs.isnan().any()):
                raise nan_logits()
            self.scores.labels = log_probs.tolist()
        self.scores.usage = self.usage
        return self.scores


@dataclass(eq=False, slots=True)
class GenerateRequest(EngineRequest):
    """Answers a Segment; before that deltas, if its handle streams."""

    continuation: Continuation = field(kw_only=True)
    sampling: Sampling = field(default_factory=Sampling)
    seed: int = 0
    method: str | None = None  # by which it is decoded; None: the decoder's default
    name: str = ""  # of the user's request (`Call.request`)
    matcher: TokenMatcher | None = None  # of the grammar that the text must match
    origins: Origins | None = None  # of its tokens, once something was drafted for it

    @property
    def max_tokens(self) -> int:
        return self.continuation.max_tokens

    def output(self, result: ModelOutput | None) -> Segment:
        return self.continuation.segment("length")  # no tokens were wanted

    def append(self, accepted: Accepted) -> Finish | None:
        """Take a round's tokens one by one; why the generation ends among them, if it does."""
        if accepted.depth and self.origins is None:
            self.origins = Origins(self.generated)
        if self.origins is not None:
            self.origins.add(accepted.depth, len(accepted.path) - 1, accepted.rejected)
        for token, logprob, confidence in zip(
            accepted.tokens, accepted.logprobs, accepted.confidences, strict=True
        ):
            self.generated += 1
            if confidence != confidence or logprob != logprob:
                raise nan_logits()
            if finish := self.continuation.push(token, logprob, confidence):
                return finish
        return None

    @property
    def provenance(self) -> Provenance | None:
        """Where its tokens came from, once it has ended; None if nothing was drafted."""
        return None if self.origins is None else self.continuation.provenance(self.origins)

    def delta(self, *, ended: bool) -> Delta | None:
        """The text that has become final, for a caller that wants it as it is made."""
        return self.continuation.delta(ended=ended) if self.handle.stream else None
