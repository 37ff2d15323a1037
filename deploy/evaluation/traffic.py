"""Questions with known answers for a running service: each answer is judged, and its arm noted."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from deploy.evaluation.askers import HttpAsker, Told
from deploy.evaluation.evaluate import Contender, Grade, Problem
from orchestrator.errors import BatonError
from orchestrator.http.service import DEFAULT_MODEL

NOBODY = "no experiment"


@dataclass(frozen=True, slots=True)
class Answered:
    """One question's answer; `arm` is EXPERIMENT/ARM, or `NOBODY`. `error` where it failed."""

    arm: str
    correct: bool = False
    error: str | None = None


async def drive(
    asker: HttpAsker,
    problems: Sequence[Problem],
    same: Grade,
    *,
    concurrency: int,
    heard: Callable[[Answered], None],
) -> None:
    """Ask every problem of the model `baton`, so many at once, and tell the service who was right.

    The next question is asked as soon as any answer has come; `heard` is given each in that order.
    """
    waiting = iter(problems)

    async def ask() -> None:
        for problem in waiting:
            heard(await _ask(asker, problem, same))

    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(ask())


async def _ask(asker: HttpAsker, problem: Problem, same: Grade) -> Answered:
    told: Told | None = None
    judge: Callable[[str, float], Awaitable[None]] = asker.judge
    try:
        async with aclosing(
            asker.stream(problem.question, Contender(DEFAULT_MODEL, DEFAULT_MODEL))
        ) as items:
            async for item in items:
                told = item if isinstance(item, Told) else told
        assert told is not None  # the asker says so, or raises
        correct = await same(told.answered.text, problem.answer)
        await judge(told.answered.trace_id, float(correct))
    except BatonError as error:
        return Answered(NOBODY, error=str(error))
    experiment = told.summary["experiment"]
    arm = NOBODY if experiment is None else f"{experiment}/{told.summary['arm']}"
    return Answered(arm, correct)


def lots(answers: Sequence[Answered], size: int) -> list[dict[str, Any]]:
    """For every `size` answers, in the order they came: how many each arm gave, and how many of
    them were right."""
    told = []
    for start in range(0, len(answers), size):
        lot = [one for one in answers[start : start + size] if one.error is None]
        arms: dict[str, dict[str, int]] = defaultdict(lambda: {"requests": 0, "right": 0})
        for one in lot:
            arms[one.arm]["requests"] += 1
            arms[one.arm]["right"] += one.correct
        told.append({"until": start + len(answers[start : start + size]), "arms": dict(arms)})
    return told
