"""A problem set through several policies: accuracy, time, and the work of each model.

The policies take turns problem by problem, and the order of the turns rotates, so that a machine
that warms up or slows down treats all alike. `large-only` always runs, for everything is measured
against it (`deploy.evaluation.summary`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Protocol

from deploy.evaluation.candidates import Candidate
from deploy.evaluation.recording import Recording
from orchestrator.errors import BatonError, InvalidRequest
from orchestrator.loop.events import Metrics
from orchestrator.types import Step, chain_steps


class Problem(Protocol):
    """A question whose answer is one value."""

    @property
    def question(self) -> str: ...
    @property
    def answer(self) -> str: ...
    @property
    def level(self) -> int | str | None: ...


@dataclass(frozen=True, slots=True)
class Question:
    """A problem from a file; `level` is its difficulty, where the file tells one."""

    question: str
    answer: str
    level: int | str | None = None


@dataclass(frozen=True, slots=True)
class EvaluatedAnswer:
    """The answer to one request; `output_tokens` are those OpenAI would bill.

    `recording`: of the request, where its client keeps one. `trace_id`: of the request, where a
    service answered.
    """

    text: str
    output_tokens: int = 0
    metrics: Metrics = field(default_factory=Metrics)
    steps: tuple[Step, ...] = ()
    recording: Recording | None = None
    trace_id: str = ""

    def kept(self, author: str | None = None) -> int:
        """Steps of the chain that stayed, of one author or of all."""
        return sum(
            step.accepted and author in (None, step.author) for step in chain_steps(self.steps)
        )


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """One problem answered by one candidate, graded; `ms` is wall time."""

    correct: bool
    ms: float
    answer: EvaluatedAnswer
    error: str | None = None


Ask = Callable[[str, Candidate], Awaitable[EvaluatedAnswer]]
Grade = Callable[[str, Problem], Awaitable[bool]]
"""Whether a text answers a problem."""
Turn = Sequence[EvaluationResult]
"""The results of one problem, one for each candidate."""


async def run(
    problems: Sequence[Problem],
    candidates: Sequence[Candidate],
    ask: Ask,
    grade: Grade,
    *,
    concurrency: int = 1,
    done: Sequence[Turn] = (),
    keep: Callable[[int, Turn], None] = lambda _, __: None,
    progress: Callable[[Candidate], None] = lambda _: None,
) -> list[Turn]:
    """The results of each problem, in order.

    Each candidate first answers one problem unmeasured: whatever is slow only once is over then.
    With `concurrency` above 1 the turns are of that many problems at once. Grading and `keep`,
    which is handed each finished problem with its number, happen outside all measured time.
    `done` are the first problems' results from an earlier run that was broken off.
    """
    turns = list(done[: len(problems)])
    if len(turns) == len(problems):
        return turns
    for candidate in candidates:
        await _ask(problems[len(turns)], candidate, ask)
    for start in range(len(turns), len(problems), concurrency):
        batch = problems[start : start + concurrency]
        results: list[list[EvaluationResult]] = [[] for _ in candidates]
        for place in range(len(candidates)):
            index = (place + start // concurrency) % len(candidates)
            results[index] = await asyncio.gather(
                *(_ask(problem, candidates[index], ask) for problem in batch)
            )
            progress(candidates[index])
        for at, problem in enumerate(batch):
            turns.append([await _graded(own[at], problem, grade) for own in results])
            keep(start + at, turns[-1])
    return turns


async def _ask(problem: Problem, candidate: Candidate, ask: Ask) -> EvaluationResult:
    """A request that fails is a wrong answer with a reason; a policy that is wrong is ours."""
    began = perf_counter()
    try:
        answer = await ask(problem.question, candidate)
    except InvalidRequest as error:
        if error.code != "context_length_exceeded":
            raise
        return EvaluationResult(
            False, (perf_counter() - began) * 1000, EvaluatedAnswer(""), error.message
        )
    except BatonError as error:
        return EvaluationResult(
            False, (perf_counter() - began) * 1000, EvaluatedAnswer(""), str(error)
        )
    return EvaluationResult(False, (perf_counter() - began) * 1000, answer)


async def _graded(result: EvaluationResult, problem: Problem, grade: Grade) -> EvaluationResult:
    if result.error is not None:
        return result
    return replace(result, correct=await grade(result.answer.text, problem))
