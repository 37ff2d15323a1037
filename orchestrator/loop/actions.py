"""The actions that a policy may yield, each typed by its result.

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
"""A running policy, or a part of one: it yields actions, gets their results, returns an A."""
REST = StopCriteria(1 << 30)
"""No limit except the budget: the driver caps every call at the tokens that are left."""


class Action(Generic[A]):
    """A request to the driver; `yield from action` evaluates to its result, of type A."""

    __slots__ = ()

    def __iter__(self) -> Generator[Action[A], A, A]:
        return (yield self)


@dataclass(frozen=True, slots=True)
class Generate(Action[Generation]):
    """Draft from the end of the transcript. The client sees none of it before `Accept`."""

    worker: WorkerName
    transcript: Transcript
    criteria: StopCriteria


@dataclass(frozen=True, slots=True)
class Write(Action[Transcript]):
    """Generate text that is accepted as it arrives, and streamed token by token."""

    worker: WorkerName
    transcript: Transcript
    criteria: StopCriteria

    @property
    def phase(self) -> Literal["thought", "answer"]:
        """The phase that the text is streamed in."""
        return "answer" if self.transcript.closed else "thought"

    @property
    def read(self) -> Transcript:
        """The transcript that the worker continues."""
        return self.transcript


@dataclass(frozen=True, slots=True)
class Advise(Write):
    """Write a reply to `turns`, as advice to both models, in a transcript that has no thought.

    The client gets it as a thought. The models read it in a separate turn before the answer, so
    the answer must not have begun.
    """

    turns: tuple[Message, ...] = ()

    @property
    def phase(self) -> Literal["thought", "answer"]:
        return "thought"

    @property
    def read(self) -> Transcript:
        return Transcript((*self.transcript.turns, *self.turns), thinking=False)


@dataclass(frozen=True, slots=True)
class Classify(Action[Classification]):
    """Get the distribution over single-token `labels` after a question outside the transcript.

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
    """Get the negative log-likelihood of a segment's k tokens, and the worker's k + 1 choices.

    After an empty segment that is one choice: the worker's next token for one pass.
    """

    worker: WorkerName
    transcript: Transcript
    segment: Segment


@dataclass(frozen=True, slots=True)
class Accept(Action[Transcript]):
    """Add a segment to the transcript, and stream it. `score` is shown beside it."""

    transcript: Transcript
    segment: Segment
    score: float | None = None


@dataclass(frozen=True, slots=True)
class Reject(Action[None]):
    """Record that a draft was discarded."""

    segment: Segment
    score: float | None = None


@dataclass(frozen=True, slots=True)
class Close(Action[Transcript]):
    """End the thought, or without one the answer, as at a cap.

    `forced`: a loop or a budget ended it, not a model. `finish` is "length" if a context is full.
    """

    transcript: Transcript
    forced: bool = False
    finish: Literal["stop", "length"] = "stop"
