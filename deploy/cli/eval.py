"""`baton eval`: a problem set through several policies, side by side."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, closing
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer
from rich.console import Console

from deploy.cli.common import (
    Config,
    Limit,
    MaxTokens,
    Problems,
    Seed,
    Url,
    bar,
    wide_console,
    write,
)
from deploy.cli.pair import Pair
from deploy.evaluation.candidates import Candidate, lineup
from deploy.evaluation.clients import Client, HttpClient, RequestOptions, ask
from deploy.evaluation.evaluate import Question, RunOptions, Turn, run
from deploy.evaluation.evaluation_log import EvaluationLog, read
from deploy.evaluation.grading import Grader
from deploy.evaluation.plots import draw
from deploy.evaluation.problems import load_problems
from deploy.evaluation.summary import SERVICE
from deploy.evaluation.summary import rows as summarise
from deploy.evaluation.tables import MAIN, WORK, notes, show
from deploy.service.extras import want
from deploy.service.notes import settings_of
from deploy.service.worker_spec import Speculation
from orchestrator.errors import BatonError, InvalidRequest
from orchestrator.worker import SERVER_METHOD
from policies import POLICIES


def evaluate(
    problems: Problems,
    policies: Annotated[
        str,
        typer.Option(help="Comma-separated; parameters as specreason:threshold=5; all: every one."),
    ] = "large-only,small-only,specreason",
    speculation: Annotated[
        str | None,
        typer.Option(
            help="Method in the large worker, for all policies, with parameters as "
            "chain:gamma=16:threshold=0.6 (in-process: vanilla)."
        ),
    ] = None,
    budget: Annotated[
        str | None, typer.Option(help="Cap on thinking tokens; several as 64,128.")
    ] = None,
    limit: Limit = None,
    seed: Seed = 0,
    concurrency: Annotated[
        int, typer.Option(min=1, help="Requests at once; speedups are meant at 1.")
    ] = 1,
    max_tokens: MaxTokens = None,
    temperature: Annotated[
        float, typer.Option(min=0, max=2, help="How tokens are drawn; 0: greedy.")
    ] = 0.0,
    url: Url = None,
    feedback: Annotated[
        bool,
        typer.Option(
            "--feedback", help="Tell the service whether each answer was right (with --url)."
        ),
    ] = False,
    config: Config = None,
    rows: Annotated[
        Path | None,
        typer.Option(help="A JSON line per problem and policy; a second run continues from there."),
    ] = None,
    recordings: Annotated[
        Path | None,
        typer.Option(help="Folder for rows.jsonl and a recording per answer (in-process)."),
    ] = None,
    as_json: Annotated[
        Path | None, typer.Option("--json", help="Write the summary to this file.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw accuracy over time and over large tokens as PNG.")
    ] = None,
) -> None:
    """Accuracy, latency, speedup and tokens of policies on the same problems.

    The policies take turns problem by problem, or run side by side where --concurrency is above 1,
    which measures no times; large-only always runs. Speedup is its summed wall
    time over the policy's.

    [bold]Examples[/]

      baton eval --problems builtin:heldout --limit 100

      baton eval --problems builtin:dev --policies specreason:threshold=5,specreason:threshold=8

      baton eval --problems mine.jsonl --budget 64,128 --json rows.json --plot rows.png

      baton eval --problems builtin:dev --speculation chain:gamma=16:threshold=0.6

      baton eval --problems builtin:heldout --limit 1000 --policies all --rows run.jsonl

      baton eval --problems builtin:heldout --url http://127.0.0.1:8000

      baton eval --problems builtin:dev --policies baton --feedback --url http://127.0.0.1:8000
    """
    if url is not None and speculation is not None:
        raise InvalidRequest("--speculation is the service's own choice; leave it out with --url")
    if feedback and url is None:
        raise InvalidRequest("--feedback is for a service; name it with --url")
    if recordings is not None and (url is not None or rows is not None):
        raise InvalidRequest(
            "--recordings holds its own rows and works in-process: no --url, --rows"
        )
    want("eval", "baton eval", "pebble", "math_verify", *(["matplotlib"] if plot else []))
    chosen = load_problems(problems, limit, seed)
    candidates = lineup(_named(policies), _budgets(budget))
    pair = Pair(url, config, speculation, "vanilla")
    method, served_by = _served_by(pair, candidates, max_tokens)
    transport = "in-process" if url is None else "http"
    about: dict[str, Any] = {
        "problems": problems,
        "seed": seed,
        "concurrency": concurrency,
        "max_tokens": max_tokens,
        "speculation": method,
        "transport": transport,
    }
    if temperature:
        about["temperature"] = temperature
    options = RequestOptions(max_tokens, temperature, seed)
    kept = recordings is not None
    # Where times count, who comes second must not find the prompt in the prefix cache.
    client = pair.client(options, candidates, recording=kept, fresh=concurrency == 1)
    with TemporaryDirectory() as folder:
        path = recordings / "rows.jsonl" if recordings else rows or Path(folder, "rows.jsonl")
        settings = {**about, "served_by": served_by}
        with closing(EvaluationLog(path, settings, candidates, chosen)) as log:
            turns = asyncio.run(_run(client, chosen, candidates, concurrency, log, feedback))
    table = summarise(candidates, turns, speculation=method, transport=transport)
    about["n"] = len(chosen)
    console = wide_console()
    show(table, MAIN, console)
    show(table, WORK, console)
    console.print(notes(concurrency, method), style="dim")
    if not any(problem.known for problem in chosen):
        console.print("The problems have no answers, so accuracy says nothing.", style="dim")
    if recordings is not None:
        _, answers = read(path)
        if lacking := sum("recording" not in row for row in answers):
            said = f"{lacking} of {len(answers)} answers are not recorded"
            console.print(f"{said}, since they or a worker failed", style="dim")
    if as_json is not None:
        write(as_json, json.dumps({"rows": table, **about}, indent=2) + "\n")
    if plot is not None:
        draw(table, plot)
    errors = [result.error for turn in turns for result in turn if result.error is not None]
    if errors:
        raise BatonError(f"{len(errors)} requests failed; the first: {errors[0]}")


async def _run(
    opened: AbstractAsyncContextManager[Client],
    problems: Sequence[Question],
    candidates: Sequence[Candidate],
    concurrency: int,
    log: EvaluationLog,
    feedback: bool,
) -> list[Turn]:
    if len(log.known) == len(problems):  # no model need be loaded
        return [log.known[at] for at in range(len(problems))]
    async with AsyncExitStack() as stack:
        grader = stack.enter_context(closing(Grader()))
        client = await stack.enter_async_context(opened)
        shown = stack.enter_context(bar(Console(stderr=True, highlight=False)))
        shown.set_total(len(problems) * len(candidates))

        async def keep(index: int, turn: Turn) -> None:
            if feedback:
                assert isinstance(client, HttpClient)
                sent = [one for one in turn if one.error is None]
                await asyncio.gather(
                    *(client.send_feedback(one.trace_id, float(one.correct)) for one in sent)
                )
            log.add(index, turn)  # only then, so that a second run rates what was not rated

        def progress(candidate: Candidate) -> None:
            shown.advance(candidate.label)

        options = RunOptions(concurrency, log.known, keep, progress)
        return await run(problems, candidates, partial(ask, client), grader.right, options)


def _served_by(
    pair: Pair, candidates: Sequence[Candidate], max_tokens: int | None
) -> tuple[str, dict[str, Any]]:
    """What the large worker decodes with, and who answers: different pairs share no file.

    A wrong policy or parameter is an error here, before any file is begun.
    """
    if pair.url is not None:
        return SERVICE, {"url": pair.url}
    args, method = pair.read(candidates)
    workers = args.workers
    return SERVER_METHOD if method is None else _written(method, workers.small.model), {
        **settings_of(workers),
        "speculation": workers.small.speculation.model_dump(),  # the large one's is the method
        "policy": args.policy.model_dump(mode="json", include={"default", "params"}),
        "max_tokens": max_tokens or args.limits.max_tokens,
    }


def _written(method: Speculation, small: str | None) -> str:
    """A method as rows name it: with its parameters, but for the small model if that drafts."""
    named = (
        f":{key}={value if isinstance(value, str) else json.dumps(value)}"
        for key, value in sorted(method.params.items())
        if value != small
    )
    return f"{method.method}{''.join(named)}{' (lossy)' * method.lossy}"


def _named(policies: str) -> list[str]:
    """The policies of the option; `all` means every one there is."""
    parts = [part.strip() for part in policies.split(",")]
    return [name for part in parts for name in (POLICIES if part == "all" else (part,))]


def _budgets(text: str | None) -> list[int | None]:
    if text is None:
        return [None]
    try:
        budgets = [int(part) for part in text.split(",")]
    except ValueError:
        budgets = [0]
    if min(budgets) < 1:
        raise InvalidRequest(f"--budget {text}: want whole numbers from 1, such as 64,128")
    return list(budgets)
