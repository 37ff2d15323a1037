"""A problem set through several policies: accuracy, time, and the work of each model.

One at a time, the policies take turns problem by problem, and the order of the turns rotates, so
that a machine that warms up or slows down treats all alike. Many at once measure accuracy and
tokens alone. `large-only` always runs, for everything is measured
against it (`deploy.evaluation.summary`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from time import perf_counter
from types import MappingProxyType
from typing import Protocol

from deploy.evaluation.candidates import Candidate
from deploy.evaluation.concurrency import map_concurrently
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
    """One problem answered by one candidate, graded; `ms` is wall time.

    `passing`: whether the error may be gone when it is asked again.
    """

    correct: bool
    ms: float
    answer: EvaluatedAnswer
    error: str | None = None
    passing: bool = False


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
    known: Mapping[tuple[int, Candidate], EvaluationResult] = MappingProxyType({}),
    keep: Callable[[int, Turn], None] = lambda _, __: None,
    progress: Callable[[Candidate], None] = lambda _: None,
) -> list[Turn]:
    """The results of each problem, in order.

    At `concurrency` 1 the candidates take turns, problem by problem, after each has answered one
    unmeasured: whatever is slow only once is over then. Above that so many requests are always
    under way, all candidates' of a problem before the next one's, and times are not compared.
    Grading and `keep`, which is handed each problem with its number as soon as all candidates have
    answered it, happen outside all measured time. `done` are the first problems' results from an
    earlier run that was broken off; `known`, by the problem's number, are other runs', and are not
    asked for. At a concurrency of 1 answers to a problem are measured side by side: all are asked
    for again unless all are known.
    """
    turns = list(done[: len(problems)])
    if len(turns) == len(problems):
        return turns
    if concurrency > 1:
        return await _many(
            problems, candidates, ask, grade, concurrency, turns, known, keep, progress
        )
    warm = False
    for at, problem in enumerate(problems[len(turns) :], len(turns)):
        before = [known[at, one] for one in candidates if (at, one) in known]
        if len(before) == len(candidates):
            turns.append(before)
            for candidate in candidates:
                progress(candidate)
            keep(at, before)
            continue
        if not warm:
            for candidate in candidates:
                await _ask(problem, candidate, ask)
            warm = True
        results: dict[int, EvaluationResult] = {}
        for place in range(len(candidates)):
            index = (place + at) % len(candidates)
            results[index] = await _ask(problem, candidates[index], ask)
            progress(candidates[index])
        turns.append([await _graded(results[i], problem, grade) for i in sorted(results)])
        keep(at, turns[-1])
    return turns


async def _many(
    problems: Sequence[Problem],
    candidates: Sequence[Candidate],
    ask: Ask,
    grade: Grade,
    concurrency: int,
    turns: list[Turn],
    known: Mapping[tuple[int, Candidate], EvaluationResult],
    keep: Callable[[int, Turn], None],
    progress: Callable[[Candidate], None],
) -> list[Turn]:
    begun: dict[int, dict[int, EvaluationResult]] = {}
    whole: dict[int, Turn] = {}

    async def one(item: tuple[int, int]) -> None:
        at, index = item
        result = known.get((at, candidates[index]))
        if result is None:
            asked = await _ask(problems[at], candidates[index], ask)
            result = await _graded(asked, problems[at], grade)
        ready = begun.setdefault(at, {})
        ready[index] = result
        progress(candidates[index])
        if len(ready) == len(candidates):
            whole[at] = [ready[i] for i in range(len(candidates))]
            keep(at, whole[at])

    rest = range(len(turns), len(problems))
    await map_concurrently(one, product(rest, range(len(candidates))), concurrency)
    return turns + [whole[at] for at in rest]


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
        ms = (perf_counter() - began) * 1000
        return EvaluationResult(False, ms, EvaluatedAnswer(""), str(error), passing=True)
    return EvaluationResult(False, (perf_counter() - began) * 1000, answer)


async def _graded(result: EvaluationResult, problem: Problem, grade: Grade) -> EvaluationResult:
    if result.error is not None:
        return result
    return replace(result, correct=await grade(result.answer.text, problem))
