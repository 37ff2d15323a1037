"""What a policy may yield. Each action is typed by its result.

`draft = yield from Generate("small", transcript, criteria)` hands the action to the driver of the
policy and evaluates to the result. The driver does the I/O, so one policy file runs in a test
without an event loop, in one process, on Ray, over HTTP, and from a recording. `Policy.solve`
explains the protocol.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from orchestrator.types import (
    Classification,
    Generation,
    LabelQuery,
    Message,
    Segment,
    StopCriteria,
    Transcript,
    Verification,
)

A = TypeVar("A")
WorkerName = Literal["small", "large"]
Script = Generator["Action[Any]", Any, A]
"""A running policy, or a part of one: it yields actions, is sent their answers, returns an A."""
REST = StopCriteria(1 << 30)
"""No limit but the budget: the driver caps every call at the tokens that are left."""


class Action(Generic[A]):
    """A request to the driver; `yield from action` evaluates to its result, of type A."""

    __slots__ = ()

    def __iter__(self) -> Generator[Action[A], A, A]:
        return (yield self)


@dataclass(frozen=True, slots=True)
class Generate(Action[Generation]):
    """Draft from the end of the transcript. Nothing of it is streamed before `Accept`."""

    worker: WorkerName
    transcript: Transcript
    criteria: StopCriteria


@dataclass(frozen=True, slots=True)
class Write(Action[Transcript]):
    """Generate, accepted as it arrives: streamed to the client token by token."""

    worker: WorkerName
    transcript: Transcript
    criteria: StopCriteria


@dataclass(frozen=True, slots=True)
class Classify(Action[Classification]):
    """The distribution over single-token `labels` after a side conversation that leaves no trace.

    The fields after `transcript` are those of `LabelQuery`, which explains them.
    """

    worker: WorkerName
    transcript: Transcript
    turns: tuple[Message, ...]
    lead_in: str
    labels: tuple[str, ...]
    likeliest: bool = False
    nll: bool = False

    @property
    def query(self) -> LabelQuery:
        return LabelQuery(self.turns, self.lead_in, self.labels, self.likeliest, self.nll)


@dataclass(frozen=True, slots=True)
class Verify(Action[Verification]):
    """The negative log-likelihood of a segment's tokens, and k + 1 choices of the worker's own.

    After an empty segment that is one choice: the worker's next token for the price of a pass.
    """

    worker: WorkerName
    transcript: Transcript
    segment: Segment


@dataclass(frozen=True, slots=True)
class Accept(Action[Transcript]):
    """Commit a segment: it joins the transcript and is streamed. `score` is shown beside it."""

    transcript: Transcript
    segment: Segment
    score: float | None = None


@dataclass(frozen=True, slots=True)
class Reject(Action[None]):
    """Report that a draft was thrown away, for the record only."""

    segment: Segment
    score: float | None = None


@dataclass(frozen=True, slots=True)
class Close(Action[Transcript]):
    """End the thought, or without one the answer, as at a cap.

    `forced`: no model ended it, but a loop or a budget did. `finish` is "length" if a context is
    full.
    """

    transcript: Transcript
    forced: bool = False
    finish: Literal["stop", "length"] = "stop"
