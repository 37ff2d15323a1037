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
from typing import Any

from deploy.evaluation.candidates import Candidate
from deploy.evaluation.concurrency import map_concurrently
from deploy.evaluation.recording import Recording
from orchestrator.errors import BatonError, InvalidRequest
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
    """The answer to one request; `output_tokens` are those OpenAI would bill.

    It has the request's `recording` if the client keeps one, its `trace_id` if a service answered,
    and from a client the `summary` that users see.
    """

    text: str
    output_tokens: int = 0
    metrics: Metrics = field(default_factory=Metrics)
    steps: tuple[Step, ...] = ()
    recording: Recording | None = None
    trace_id: str = ""
    summary: Mapping[str, Any] = field(default_factory=dict, compare=False)

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
Grade = Callable[[str, Question], Awaitable[bool]]
"""Returns whether a text answers a problem."""
Turn = Sequence[EvaluationResult]
"""The results of one problem, one for each candidate."""


async def _forget(at: int, turn: Turn) -> None: ...


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Options of a run.

    `known` has results of earlier runs, by the problem's number. `keep` gets a problem's number and
    results after all candidates have answered it, `progress` the candidate after each answer.
    """

    concurrency: int = 1
    known: Mapping[tuple[int, Candidate], EvaluationResult] = field(default_factory=dict)
    keep: Callable[[int, Turn], Awaitable[None]] = _forget
    progress: Callable[[Candidate], None] = lambda _: None


async def run(
    problems: Sequence[Question],
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
    if options.concurrency > 1:
        return await _many(problems, candidates, ask, grade, options)
    turns: list[Turn] = []
    warm = False
    for at, problem in enumerate(problems):
        turn = [options.known[at, one] for one in candidates if (at, one) in options.known]
        if len(turn) == len(candidates):
            for candidate in candidates:
                options.progress(candidate)
        else:
            for candidate in () if warm else candidates:
                await _ask(problem, candidate, ask)
            warm = True
            results: dict[Candidate, EvaluationResult] = {}
            first = at % len(candidates)
            for candidate in (*candidates[first:], *candidates[:first]):
                results[candidate] = await _ask(problem, candidate, ask)
                options.progress(candidate)
            turn = [await _graded(results[one], problem, grade) for one in candidates]
        turns.append(turn)
        await options.keep(at, turn)
    return turns


async def _many(
    problems: Sequence[Question],
    candidates: Sequence[Candidate],
    ask: Ask,
    grade: Grade,
    options: RunOptions,
) -> list[Turn]:
    found: list[dict[Candidate, EvaluationResult]] = [{} for _ in problems]

    def turn(at: int) -> Turn:
        return [found[at][candidate] for candidate in candidates]

    async def one(item: tuple[int, Candidate]) -> None:
        at, candidate = item
        result = options.known.get(item)
        if result is None:
            asked = await _ask(problems[at], candidate, ask)
            result = await _graded(asked, problems[at], grade)
        found[at][candidate] = result
        options.progress(candidate)
        if len(found[at]) == len(candidates):
            await options.keep(at, turn(at))

    await map_concurrently(one, product(range(len(problems)), candidates), options.concurrency)
    return [turn(at) for at in range(len(problems))]


async def _ask(problem: Question, candidate: Candidate, ask: Ask) -> EvaluationResult:
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


async def _graded(result: EvaluationResult, problem: Question, grade: Grade) -> EvaluationResult:
    if result.error is not None:
        return result
    return replace(result, correct=await grade(result.answer.text, problem))
