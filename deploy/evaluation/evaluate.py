"""Runs several policies on a problem set: accuracy, time, and the work of each model.

With one request at a time, the policies take turns problem by problem, and the order of the turns
rotates, so that a machine that warms up or slows down treats all alike. With several at once, only
accuracy and tokens are measured. `large-only` always runs, as the baseline
(`deploy.evaluation.summary`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from time import perf_counter
from typing import Any

from deploy.evaluation.candidates import Candidate
from deploy.evaluation.concurrency import map_concurrently
from deploy.evaluation.recording import Recording
from orchestrator.errors import BatonError, InvalidRequest, Unsupported
from orchestrator.loop.events import Metrics
from orchestrator.types import Step, chain_steps


@dataclass(frozen=True, slots=True)
class Question:
    """A problem: one value is its answer, or `accepts` says whether a text (without box) is."""

    question: str
    answer: str
    accepts: Callable[[str], bool] | None = field(default=None, compare=False)

    @property
    def known(self) -> bool:
        """Whether answers can be graded."""
        return bool(self.answer) or self.accepts is not None


@dataclass(frozen=True, slots=True)
class EvaluatedAnswer:
    """A candidate's answer to a problem; `output_tokens` are those OpenAI would bill.

    `recording` makes the request's recording if the client keeps one; a service's answer has a
    `trace_id`. `summary` is what users see of it. `run` adds whether it is `correct`, its wall
    time, and the `error` of a request that failed; `transient` if a retry may succeed.
    """

    text: str
    output_tokens: int = 0
    metrics: Metrics = field(default_factory=Metrics)
    steps: tuple[Step, ...] = ()
    correct: bool = False
    ms: float = 0.0
    error: str | None = None
    transient: bool = False
    recording: Callable[[], Recording] | None = None
    trace_id: str = ""
    summary: Mapping[str, Any] = field(default_factory=dict, compare=False)

    def kept(self, author: str | None = None) -> int:
        """Return the number of accepted steps of the chain, of one author or of all."""
        return sum(
            step.accepted and author in (None, step.author) for step in chain_steps(self.steps)
        )


Ask = Callable[[str, Candidate], Awaitable[EvaluatedAnswer]]
Grade = Callable[[str, Question], Awaitable[bool]]
"""Returns whether a text answers a problem."""
Turn = Sequence[EvaluatedAnswer]
"""The answers to one problem, one of each candidate."""


async def _forget(at: int, turn: Turn) -> None: ...


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Options of a run.

    `known` has earlier runs' answers by the problem's number. `keep` gets a problem's number and
    answers after all candidates have answered it, `progress` the candidate after each answer.
    """

    concurrency: int = 1
    known: Mapping[int, Turn] = field(default_factory=dict)
    keep: Callable[[int, Turn], Awaitable[None]] = _forget
    progress: Callable[[Candidate], None] = lambda _: None


async def run(
    problems: Sequence[Question],
    candidates: Sequence[Candidate],
    ask: Ask,
    grade: Grade,
    options: RunOptions | None = None,
) -> list[Turn]:
    """Ask each problem of each candidate; return the answers in the order of the problems.

    At most `concurrency` requests run at once. At 1 the candidates take turns, problem by problem;
    first each answers a problem unmeasured, so that one-time costs are not measured. Above 1 times
    are not compared. Grading and `keep` happen outside all measured time. `keep` alone gets
    recordings.
    """
    options = options or RunOptions()
    slots = asyncio.Semaphore(options.concurrency)

    async def turn(numbered: tuple[int, Question]) -> Turn:
        at, problem = numbered
        if (known := options.known.get(at)) is not None:
            for candidate in candidates:
                options.progress(candidate)
            return known

        async def one(candidate: Candidate) -> EvaluatedAnswer:
            async with slots:
                answer = await _ask(problem, candidate, ask)
            options.progress(candidate)
            right = answer.error is None and await grade(answer.text, problem)
            return replace(answer, correct=right)

        first = at % len(candidates)
        order = (*candidates[first:], *candidates[:first])
        answers = await map_concurrently(one, order, options.concurrency)
        answered = dict(zip(order, answers, strict=True))
        found = [answered[candidate] for candidate in candidates]
        await options.keep(at, found)
        return [replace(one, recording=None) for one in found]  # thousands would fill memory

    if options.concurrency == 1:
        fresh = (problem for at, problem in enumerate(problems) if at not in options.known)
        for problem in islice(fresh, 1):
            for candidate in candidates:
                await _ask(problem, candidate, ask)
    return await map_concurrently(turn, enumerate(problems), options.concurrency)


async def _ask(problem: Question, candidate: Candidate, ask: Ask) -> EvaluatedAnswer:
    """Ask once; a failed request is a wrong answer with a reason.

    Raises:
        InvalidRequest: the policy or its parameters are wrong.
    """
    began = perf_counter()
    try:
        answer = await ask(problem.question, candidate)
    except InvalidRequest as refusal:
        if refusal.code != "context_length_exceeded":
            raise
        answer = EvaluatedAnswer("", error=refusal.message)
    except BatonError as failure:
        passes = not isinstance(failure, Unsupported)  # such a pair never serves the policy
        answer = EvaluatedAnswer("", error=str(failure), transient=passes)
    return replace(answer, ms=(perf_counter() - began) * 1000)
