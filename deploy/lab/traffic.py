"""Traffic for a running experiment: problems with known answers; each answer's reward is sent."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from deploy.evaluation.candidates import Candidate
from deploy.evaluation.clients import CompletedAnswer, HttpClient
from deploy.evaluation.concurrency import map_concurrently
from deploy.evaluation.evaluate import Grade, Problem
from orchestrator.errors import BatonError
from orchestrator.http.planning import DEFAULT_MODEL

NOBODY = "no experiment"


@dataclass(frozen=True, slots=True)
class TrafficAnswer:
    """One question's answer; `arm` is EXPERIMENT/ARM, or `NOBODY`. `error` where it failed."""

    arm: str
    correct: bool = False
    error: str | None = None


async def drive(
    client: HttpClient,
    problems: Sequence[Problem],
    grade: Grade,
    *,
    concurrency: int,
    on_answer: Callable[[TrafficAnswer], None],
) -> None:
    """Ask the model `baton` every problem, so many at once, and send a reward for each answer.

    `on_answer` is given the answers in the order in which they come.
    """

    async def ask(problem: Problem) -> None:
        on_answer(await _ask(client, problem, grade))

    await map_concurrently(ask, problems, concurrency)


async def _ask(client: HttpClient, problem: Problem, grade: Grade) -> TrafficAnswer:
    completed: CompletedAnswer | None = None
    try:
        async with aclosing(
            client.stream(problem.question, Candidate(DEFAULT_MODEL, DEFAULT_MODEL))
        ) as items:
            async for item in items:
                completed = item if isinstance(item, CompletedAnswer) else completed
        assert completed is not None  # it is the last item, or the client raises
        correct = await grade(completed.answer.text, problem)
        await client.send_feedback(completed.answer.trace_id, float(correct))
    except BatonError as error:
        return TrafficAnswer(NOBODY, error=str(error))
    experiment = completed.summary["experiment"]
    arm = NOBODY if experiment is None else f"{experiment}/{completed.summary['arm']}"
    return TrafficAnswer(arm, correct)


def by_batch(answers: Sequence[TrafficAnswer], size: int) -> list[dict[str, Any]]:
    """For every `size` answers, in the order they came: how many each arm gave, and how many of
    them were right."""
    batches = []
    for start in range(0, len(answers), size):
        batch = [one for one in answers[start : start + size] if one.error is None]
        arms: dict[str, dict[str, int]] = defaultdict(lambda: {"requests": 0, "right": 0})
        for one in batch:
            arms[one.arm]["requests"] += 1
            arms[one.arm]["right"] += one.correct
        batches.append({"until": start + len(answers[start : start + size]), "arms": dict(arms)})
    return batches
