"""Runs several policies on a problem set: accuracy, time, and the work of each model.

With one request at a time, the policies take turns problem by problem, and the order of the turns
rotates, so that a machine that warms up or slows down treats all alike. With several at once, only
accuracy and tokens are measured. `large-only` always runs, as the baseline
(`deploy.evaluation.summary`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from time import perf_counter
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


@dataclass(frozen=True, slots=True)
class Question:
    """A problem from a file."""

    question: str
    answer: str


@dataclass(frozen=True, slots=True)
class EvaluatedAnswer:
    """The answer to one request; `output_tokens` are those OpenAI would bill.

    It has the request's `recording` if the client keeps one, its `trace_id` if a service answered.
    """

    text: str
    output_tokens: int = 0
    metrics: Metrics = field(default_factory=Metrics)
    steps: tuple[Step, ...] = ()
    recording: Recording | None = None
    trace_id: str = ""

    def kept(self, author: str | None = None) -> int:
        """Return the number of accepted steps of the chain, of one author or of all."""
        return sum(
            step.accepted and author in (None, step.author) for step in chain_steps(self.steps)
        )


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """One problem answered by one candidate, graded; `ms` is wall time.

    `transient`: whether a retry may succeed.
    """

    correct: bool
    ms: float
    answer: EvaluatedAnswer
    error: str | None = None
    transient: bool = False


Ask = Callable[[str, Candidate], Awaitable[EvaluatedAnswer]]
Grade = Callable[[str, Problem], Awaitable[bool]]
"""Returns whether a text answers a problem."""
Turn = Sequence[EvaluationResult]
"""The results of one problem, one for each candidate."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Options of a run.

    `done` has the first problems' results, from an earlier run that was interrupted. `known` has
    results of other runs, by the problem's number, which are not asked for again. `keep` is called
    with a problem's number and results after all candidates have answered it, `progress` with the
    candidate after each answer.
    """

    concurrency: int = 1
    done: Sequence[Turn] = ()
    known: Mapping[tuple[int, Candidate], EvaluationResult] = field(default_factory=dict)
    keep: Callable[[int, Turn], None] = lambda _, __: None
    progress: Callable[[Candidate], None] = lambda _: None


async def run(
    problems: Sequence[Problem],
    candidates: Sequence[Candidate],
    ask: Ask,
    grade: Grade,
    options: RunOptions | None = None,
) -> list[Turn]:
    """Ask each problem of each candidate; return the results in the order of the problems.

    At a concurrency of 1 the candidates take turns, problem by problem. First each answers a
    problem unmeasured, so that one-time costs are not measured. Unless all answers to a problem are
    known, all are asked for again, so that their times are comparable. Above 1 times are not
    compared; that many requests always run, all candidates' of a problem before the next one's.
    Grading and `keep` happen outside all measured time.
    """
    options = options or RunOptions()
    known, keep, progress = options.known, options.keep, options.progress
    turns = list(options.done[: len(problems)])
    if len(turns) == len(problems):
        return turns
    if options.concurrency > 1:
        return await _many(problems, candidates, ask, grade, options)
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
    options: RunOptions,
) -> list[Turn]:
    begun: dict[int, dict[int, EvaluationResult]] = {}
    whole: dict[int, Turn] = {}

    async def one(item: tuple[int, int]) -> None:
        at, index = item
        result = options.known.get((at, candidates[index]))
        if result is None:
            asked = await _ask(problems[at], candidates[index], ask)
            result = await _graded(asked, problems[at], grade)
        ready = begun.setdefault(at, {})
        ready[index] = result
        options.progress(candidates[index])
        if len(ready) == len(candidates):
            whole[at] = [ready[i] for i in range(len(candidates))]
            options.keep(at, whole[at])

    rest = range(len(options.done), len(problems))
    await map_concurrently(one, product(rest, range(len(candidates))), options.concurrency)
    return [*options.done, *(whole[at] for at in rest)]


async def _ask(problem: Problem, candidate: Candidate, ask: Ask) -> EvaluationResult:
    """Ask once; a failed request is a wrong answer with a reason.

    Raises:
        InvalidRequest: the policy or its parameters are wrong.
    """
    began, answer, transient = perf_counter(), EvaluatedAnswer(""), False
    error: str | None = None
    try:
        answer = await ask(problem.question, candidate)
    except InvalidRequest as refusal:
        if refusal.code != "context_length_exceeded":
            raise
        error = refusal.message
    except BatonError as failure:
        error, transient = str(failure), True
    return EvaluationResult(False, (perf_counter() - began) * 1000, answer, error, transient)


async def _graded(result: EvaluationResult, problem: Problem, grade: Grade) -> EvaluationResult:
    if result.error is not None:
        return result
    return replace(result, correct=await grade(result.answer.text, problem))
