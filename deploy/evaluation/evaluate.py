"""A problem set through several policies: who answers right, how fast, and at whose expense.

The policies take turns problem by problem, and the order of the turns rotates, so that a machine
that warms up or slows down treats all alike. `large-only` always runs, for everything is measured
against it (`deploy.evaluation.summary`).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any, Final, Protocol

from deploy.evaluation.recording import Recording
from orchestrator.errors import BatonError, InvalidRequest
from orchestrator.loop.events import Metrics
from orchestrator.types import Step

BASELINE: Final = "large-only"


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
class Contender:
    """A policy with parameters that runs under its label, such as `specreason:threshold=5`."""

    label: str
    policy: str
    params: dict[str, Any] = field(default_factory=dict, hash=False)

    @classmethod
    def parse(cls, text: str) -> Contender:
        """From `NAME` or `NAME:KEY=VALUE:KEY=VALUE`; values are JSON, or else strings.

        Raises:
            InvalidRequest: a parameter without `=`.
        """
        name, *pairs = text.strip().split(":")
        params: dict[str, Any] = {}
        for pair in pairs:
            key, equals, value = pair.partition("=")
            if not key or not equals:
                raise InvalidRequest(f"{text}: write parameters as NAME:KEY=VALUE", param="policy")
            try:
                params[key] = json.loads(value)
            except ValueError:
                params[key] = value
        return cls(text.strip(), name, params)

    @property
    def budget(self) -> int | None:
        budget: int | None = self.params.get("budget")
        return budget

    def within(self, budget: int | None) -> Contender:
        """The same with a cap on thinking tokens, unless it has one of its own."""
        if budget is None or "budget" in self.params:
            return self
        return replace(self, params={**self.params, "budget": budget})


@dataclass(frozen=True, slots=True)
class Answered:
    """What one request came to; `output_tokens` are those OpenAI would bill.

    `recording` is the request on paper, where its asker keeps one; `trace_id` is its name where a
    service answered.
    """

    text: str
    output_tokens: int = 0
    metrics: Metrics = field(default_factory=Metrics)
    steps: tuple[Step, ...] = ()
    recording: Recording | None = None
    trace_id: str = ""

    def kept(self, author: str | None = None) -> int:
        """Thinking steps that stayed, of one author or of all."""
        return sum(
            step.accepted and step.phase == "thought" and author in (None, step.author)
            for step in self.steps
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """One problem answered by one contender; `ms` is wall time."""

    correct: bool
    ms: float
    answered: Answered
    error: str | None = None


Ask = Callable[[str, Contender], Awaitable[Answered]]
Grade = Callable[[str, str], Awaitable[bool]]
"""Whether a text gives an answer."""
Turn = Sequence[Outcome]
"""What became of one problem: an outcome per contender."""


def lineup(policies: Iterable[str], budgets: Sequence[int | None]) -> list[Contender]:
    """Every policy at every budget, the baseline among them, none twice."""
    parsed = [Contender.parse(text) for text in policies if text.strip()]
    if not any(contender == Contender(BASELINE, BASELINE) for contender in parsed):
        parsed.insert(0, Contender(BASELINE, BASELINE))
    found: list[Contender] = []
    for contender in (one.within(budget) for budget in budgets for one in parsed):
        if contender not in found:
            found.append(contender)
    return found


async def run(
    problems: Sequence[Problem],
    contenders: Sequence[Contender],
    ask: Ask,
    grade: Grade,
    *,
    concurrency: int = 1,
    done: Sequence[Turn] = (),
    keep: Callable[[int, Turn], None] = lambda _, __: None,
    progress: Callable[[Contender], None] = lambda _: None,
) -> list[Turn]:
    """What became of each problem, in order.

    Each contender first answers one problem unmeasured: whatever is slow only once is over then.
    With `concurrency` above 1 the turns are of that many problems at once. Grading and `keep`,
    which is handed each finished problem with its number, happen outside all measured time.
    `done` are the first problems' outcomes from an earlier run that was broken off.
    """
    turns = list(done[: len(problems)])
    if len(turns) == len(problems):
        return turns
    for contender in contenders:
        await _ask(problems[len(turns)], contender, ask)
    for start in range(len(turns), len(problems), concurrency):
        lot = problems[start : start + concurrency]
        found: list[list[Outcome]] = [[] for _ in contenders]
        for place in range(len(contenders)):
            index = (place + start // concurrency) % len(contenders)
            found[index] = await asyncio.gather(
                *(_ask(problem, contenders[index], ask) for problem in lot)
            )
            progress(contenders[index])
        for at, problem in enumerate(lot):
            turns.append([await _graded(own[at], problem, grade) for own in found])
            keep(start + at, turns[-1])
    return turns


async def _ask(problem: Problem, contender: Contender, ask: Ask) -> Outcome:
    """A request that fails is a wrong answer with a reason; a policy that is wrong is ours."""
    began = perf_counter()
    try:
        answered = await ask(problem.question, contender)
    except InvalidRequest as error:
        if error.code != "context_length_exceeded":
            raise
        return Outcome(False, (perf_counter() - began) * 1000, Answered(""), error.message)
    except BatonError as error:
        return Outcome(False, (perf_counter() - began) * 1000, Answered(""), str(error))
    return Outcome(False, (perf_counter() - began) * 1000, answered)


async def _graded(outcome: Outcome, problem: Problem, grade: Grade) -> Outcome:
    if outcome.error is not None:
        return outcome
    return replace(outcome, correct=await grade(outcome.answered.text, problem.answer))
