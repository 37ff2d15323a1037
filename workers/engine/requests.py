"""The calls an engine serves, and how each turns model output into its answer.

A call is first *read* (its prompt goes through the target), then either answered at once
(classify, verify, reading only) or made a live row that is decoded. These objects belong to the
engine's thread; only `Ticket` is touched from both sides.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import torch

from orchestrator.errors import WorkerError, WorkerUnavailable
from orchestrator.types import Finish, Sampling, StopCriteria, Usage
from orchestrator.worker import Delta
from workers.model.sampling import draw, uniform, warp
from workers.model.target import Result
from workers.model.tree import Accepted, Row, is_greedy
from workers.text.detokenizer import Writer
from workers.text.verification import Verdict


class Ticket:
    """A caller's end of a call: items come in, and its lease is renewed while it waits.

    A lease that runs out frees the row even when a cancellation was lost on its way within this
    process; over Ray it is the replica itself that waits (`workers.streams.gathered`).
    """

    def __init__(self, lease: float, *, stream: bool = False) -> None:
        self.stream, self.cancelled = stream, False
        self.submitted = time.perf_counter()
        self._lease, self.expires = lease, time.monotonic() + lease
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()
        self._signalled = False
        self._beat: asyncio.TimerHandle
        self._items: list[Any] = []

    def put(self, item: Any) -> None:
        """From the engine's thread: deliver a delta, the answer or an error."""
        self._items.append(item)
        if not self._signalled:  # one wake-up for all that the caller has not fetched yet
            self._signalled = True
            try:
                self._loop.call_soon_threadsafe(self._event.set)
            except RuntimeError:  # the caller's loop is closed
                self.cancelled = True

    def dropped(self, now: float) -> bool:
        """Whether nobody waits for this call any more."""
        return self.cancelled or now > self.expires

    async def items(self) -> list[Any]:
        """Wait for at least one item; cancelled waiting cancels the call."""
        self._renew()
        try:
            await self._event.wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        finally:
            self._beat.cancel()
        self._event.clear()
        self._signalled = False
        # The list stays the same object: the engine's thread may be about to append to it.
        items = self._items[:]
        del self._items[: len(items)]
        for item in items:
            if isinstance(item, BaseException):
                raise item
        return items

    def _renew(self) -> None:
        """Extend the lease now, and again for as long as somebody waits."""
        self.expires = time.monotonic() + self._lease
        self._beat = self._loop.call_later(self._lease / 3, self._renew)


@dataclass(eq=False, slots=True)
class Job:
    """One call in the engine.

    ids: all that must be read; last: of how many last tokens the logits are wanted; keep: how
    much of `ids` the slot keeps when the call is over (None: all).
    """

    ticket: Ticket
    ids: list[int]
    last: int = 1
    keep: int | None = None
    slot: int = -1
    prompt: int = 0
    cached: int = 0
    generated: int = 0
    passes: int = 0

    def __post_init__(self) -> None:
        self.prompt = len(self.ids)

    @property
    def usage(self) -> Usage:
        return Usage(self.prompt, self.cached, self.generated, self.passes)

    @property
    def ms(self) -> float:
        return (time.perf_counter() - self.ticket.submitted) * 1e3

    def answer(self, result: Result | None) -> Any:
        """The answer of a call that is not decoded, from the logits of its last tokens."""
        return None


@dataclass(eq=False, slots=True)
class ClassifyJob(Job):
    """Answers ([probability of each label], mass outside).

    With `verified`, how many of the last ids before the side conversation are to be judged too
    (their logits come first), also the surprise at each of them and at any of `ends` behind them.
    """

    labels: tuple[int, ...] = ()
    verified: int | None = None
    ends: Collection[int] = ()

    def answer(self, result: Result | None) -> tuple[Any, ...]:
        assert result is not None
        if self.verified is None:
            return self._law(result)
        assert self.keep is not None
        laws = result.logits[0, : self.verified + 1].float().log_softmax(-1)
        known = self.ids[self.keep - self.verified : self.keep]
        return *self._law(result), surprises(laws[:-1], known), ending(laws[-1], self.ends)

    def _law(self, result: Result) -> tuple[list[float], float]:
        law = result.logits[0, -1].double().softmax(-1)
        picked = law[list(self.labels)]
        inside = float(picked.sum())
        if not inside >= 0:
            raise WorkerError("the model produced no numbers (NaN logits)")
        if inside == 0:  # all labels underflow: compare them among themselves
            picked = result.logits[0, -1, list(self.labels)].double().softmax(-1)
            return picked.tolist(), 1.0
        return (picked / inside).tolist(), max(0.0, 1.0 - inside)


@dataclass(eq=False, slots=True)
class VerifyJob(Job):
    """Answers a Verdict on the `last - 1` last ids."""

    sampling: Sampling = field(default_factory=Sampling)
    seed: int = 0
    ends: Collection[int] = ()

    def answer(self, result: Result | None) -> Verdict:
        assert result is not None
        logits = result.logits[0].float()
        laws = own = logits.log_softmax(-1)
        known = self.ids[len(self.ids) - self.last + 1 :]
        if is_greedy(self.sampling):
            choices = logits.argmax(-1)
        else:
            first = len(self.ids) - self.last + 1  # position of the first choice
            numbers = [uniform(self.seed, first + i) for i in range(self.last)]
            warped = warp(logits[None], [self.sampling])[0]
            own = warped.log()
            choices = draw(warped, torch.tensor(numbers, dtype=torch.float64, device=laws.device))
        verdict = Verdict(
            surprises(laws[:-1], known),
            choices.tolist(),
            own.gather(1, choices[:, None]).squeeze(1).tolist(),
            ending(laws[-1], self.ends),
        )
        if not bool(laws.isfinite().any(-1).all()):
            raise WorkerError("the model produced no numbers (NaN logits)")
        return verdict


@dataclass(eq=False, slots=True)
class GenerateJob(Job):
    """Answers (text, tokens, logprobs, finish); streams deltas before that if asked."""

    criteria: StopCriteria = field(default_factory=lambda: StopCriteria(0))
    sampling: Sampling = field(default_factory=Sampling)
    seed: int = 0
    writer: Writer = field(default_factory=lambda: Writer((), lambda _: ()))
    think_end: int | None = None  # the id that ends the thought, while in it
    ends: Collection[int] = ()  # all ids that end the text
    room: int = 0  # tokens that fit both the span and the context; none if not above 0
    method: str | None = None  # by which it is decoded; None: the decoder's default
    row: Row | None = None
    entropy: float | None = None  # of the first token's law, in nats, where the span asks

    def doubts(self, result: Result) -> bool:
        """Whether the first token's law is too uncertain to go on; `result` read the prompt."""
        if self.criteria.max_entropy is None:
            return False
        law = result.logits[0, -1].double().softmax(-1)
        self.entropy = float(torch.special.entr(law).sum())
        if math.isnan(self.entropy):
            raise WorkerError("the model produced no numbers (NaN logits)")
        return self.entropy > self.criteria.max_entropy

    def answer(self, result: Result | None) -> tuple[str, list[int], list[float], Finish]:
        # A span of no tokens, for which only the prompt was read, or one that ends in doubt.
        return self.finish("length" if self.entropy is None else "doubt")

    def take(self, accepted: Accepted) -> Finish | None:
        """Take a round's tokens one by one; says why the span ends inside it, if it does."""
        for token, logprob, confidence in zip(
            accepted.tokens, accepted.logprobs, accepted.confidences, strict=True
        ):
            self.generated += 1
            if confidence != confidence or logprob != logprob:
                raise WorkerError("the model produced no numbers (NaN logits)")
            if confidence < self.criteria.min_confidence:
                return "doubt"
            if token in self.ends:
                return "think_end" if token == self.think_end else "eos"
            if ended := self.writer.push(token, logprob):
                return ended
            if self.generated >= self.room:
                return "length"
        return None

    def delta(self, *, ended: bool) -> Delta | None:
        """What has become final, for a caller that wants it as it is made."""
        if not self.ticket.stream:
            return None
        return self.writer.end() if ended else self.writer.take()

    def finish(self, finish: Finish) -> tuple[str, list[int], list[float], Finish]:
        writer = self.writer
        writer.end()
        return writer.text, writer.tokens, writer.logprobs, finish


def surprises(laws: torch.Tensor, ids: list[int]) -> list[float]:
    """Minus the log-probability of each id under its law, [k] of [k, vocabulary], in nats.

    Raises:
        WorkerError: the laws hold no numbers.
    """
    told: list[float] = []
    if ids:
        told = (-laws[range(len(ids)), ids]).tolist()
    if any(map(math.isnan, told)):
        raise WorkerError("the model produced no numbers (NaN logits)")
    return told


def ending(law: torch.Tensor, ends: Collection[int]) -> float:
    """The surprise at any of `ends` under a law [vocabulary] of log-probabilities, in nats."""
    known = [token for token in ends if token < len(law)]
    return -float(law[known].logsumexp(0)) if known else math.inf


def expired() -> WorkerError:
    return WorkerUnavailable("the call's lease ran out: nobody was waiting for it")
