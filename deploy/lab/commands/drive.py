"""`baton lab drive`: problems for a running experiment."""

from __future__ import annotations

from contextlib import closing
from typing import Annotated

import typer
from rich.console import Console

from deploy.cli.administration import Reply, show_reply
from deploy.cli.common import (
    DEFAULT_URL,
    AsJson,
    Limit,
    Problems,
    Seed,
    ServiceUrl,
    bar,
    print_json,
    print_table,
)
from orchestrator.errors import WorkerUnavailable


def drive(
    problems: Problems,
    limit: Limit = None,
    seed: Seed = 0,
    concurrency: Annotated[int, typer.Option(min=1, help="Requests at once.")] = 4,
    every: Annotated[int, typer.Option(min=1, help="Answers in a line of the table.")] = 250,
    url: ServiceUrl = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Send problems to the model baton, grade each answer, and count the arms that answered.

    The service is sent a reward for every answer (1 where it is right), as it would be by users.
    `baton eval` compares policies side by side; this feeds an experiment, which does so itself.

    [bold]Examples[/]

      baton lab drive --problems builtin:dev --limit 500

      baton lab drive --problems mine.jsonl --concurrency 8 --json
    """
    import asyncio

    from deploy.evaluation.clients import HttpClient
    from deploy.evaluation.grading import Grader
    from deploy.evaluation.problems import load_problems
    from deploy.lab.traffic import NOBODY, TrafficAnswer, by_batch
    from deploy.lab.traffic import drive as send

    chosen = load_problems(problems, limit, seed)
    answers: list[TrafficAnswer] = []

    async def run() -> None:
        client = HttpClient(url)
        with closing(Grader()) as grader, bar(Console(stderr=True, highlight=False)) as shown:
            shown.set_total(len(chosen))

            def on_answer(answer: TrafficAnswer) -> None:
                answers.append(answer)
                shown.advance(answer.arm)

            try:
                await send(
                    client, chosen, grader.right, concurrency=concurrency, on_answer=on_answer
                )
            finally:
                await client.aclose()

    asyncio.run(run())
    batches = by_batch(answers, every)
    if as_json:
        print_json({"lots": batches})
    else:
        names = sorted({name for batch in batches for name in batch["arms"]})
        rows = []
        for batch in batches:
            count = sum(arm["requests"] for arm in batch["arms"].values())
            shares = (
                batch["arms"].get(name, {}).get("requests", 0) / max(1, count) for name in names
            )
            rows.append((batch["until"], *(f"{share:.0%}" for share in shares)))
        print_table(("answers until", *names), rows)
        if all(answer.arm == NOBODY and answer.error is None for answer in answers):
            show_reply(url, "/v1/experiments", False, lambda reply: print(_why_nobody(reply)))
    if failed := [answer.error for answer in answers if answer.error is not None]:
        raise WorkerUnavailable(f"{len(failed)} requests failed; the first: {failed[0]}")


def _why_nobody(listed: Reply) -> str:
    """Why no experiment of a service took any of the requests that `drive` sends."""
    running = [run for run in listed["data"] if run["status"] == "running"]
    if not running:
        return "Nobody took part: no experiment runs (baton experiment start FILE)."
    reasons = []
    for run in running:
        unit = run["experiment"]["unit"]
        if run["trouble"]:
            reasons.append(f"{run['id']} is not in effect: {run['trouble']}")
        elif unit != "request":
            reasons.append(f"{run['id']} assigns by {unit}, and these requests name no {unit}")
        else:
            reasons.append(f"{run['id']} takes {run['coverage']:.0%} of the requests")
    return f"Nobody took part: {'; '.join(reasons)}."
