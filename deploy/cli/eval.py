"""`baton eval`: a problem set through several policies, side by side."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

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
from deploy.cli.pair import Pair, large_speculation
from orchestrator.errors import BatonError, InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deploy.evaluation.candidates import Candidate
    from deploy.evaluation.clients import RequestOptions
    from deploy.evaluation.evaluate import EvaluatedAnswer, EvaluationResult, Problem, Turn
    from deploy.evaluation.evaluation_log import EvaluationLog
    from deploy.service.worker_spec import Speculation


class Unanswered(BatonError):
    """Some requests of an evaluation failed."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What is asked of whom."""

    pair: Pair
    problems: Sequence[Problem]
    candidates: Sequence[Candidate]
    options: RequestOptions
    concurrency: int
    recording: bool = False
    feedback: bool = False


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
        typer.Option(help="A JSON line per problem and policy; a second run goes on from there."),
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
    from deploy.evaluation.candidates import lineup
    from deploy.evaluation.clients import RequestOptions
    from deploy.evaluation.evaluation_log import EvaluationLog
    from deploy.evaluation.problems import load_problems
    from deploy.evaluation.summary import rows as summarise
    from deploy.evaluation.tables import MAIN, WORK, notes, show
    from deploy.service.extras import want

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
    about: dict[str, Any] = {
        "problems": problems,
        "seed": seed,
        "concurrency": concurrency,
        "max_tokens": max_tokens,
        "speculation": method,
        "transport": "in-process" if url is None else "http",
    }
    if temperature:
        about["temperature"] = temperature
    settings = {**about, "pair": served_by}
    file = recordings / "rows.jsonl" if recordings is not None else rows
    evaluation = Evaluation(
        pair,
        chosen,
        candidates,
        RequestOptions(max_tokens, temperature, seed),
        concurrency,
        recording=recordings is not None,
        feedback=feedback,
    )
    with TemporaryDirectory() as folder:
        path = file or Path(folder, "rows.jsonl")
        log = EvaluationLog(path, settings, candidates, recordings=evaluation.recording)
        turns = asyncio.run(_run(evaluation, log))
    table = summarise(candidates, turns, speculation=method, transport=about["transport"])
    about["n"] = len(chosen)
    console = wide_console()
    show(table, MAIN, console)
    show(table, WORK, console)
    console.print(notes(concurrency, method), style="dim")
    if as_json is not None:
        write(as_json, json.dumps({"rows": table, **about}, indent=2) + "\n")
    if plot is not None:
        from deploy.evaluation.plots import draw

        draw(table, plot)
    errors = [result.error for turn in turns for result in turn if result.error is not None]
    if errors:
        raise Unanswered(f"{len(errors)} requests failed; the first: {errors[0]}")


async def _run(evaluation: Evaluation, log: EvaluationLog) -> list[Turn]:
    from deploy.evaluation.clients import HttpClient, ask
    from deploy.evaluation.evaluate import RunOptions, run
    from deploy.evaluation.grading import Grader

    problems, candidates = evaluation.problems, evaluation.candidates
    done = log.resume(problems)
    lots = len(problems) * len(candidates)
    past = min(len(done), len(problems)) * len(candidates)
    async with AsyncExitStack() as stack:
        grader = stack.enter_context(closing(Grader()))
        stack.enter_context(closing(log))
        if len(done) >= len(problems):
            return list(done[: len(problems)])
        opened = evaluation.pair.client(
            evaluation.options, candidates, recording=evaluation.recording
        )
        client = await stack.enter_async_context(opened)
        shown = stack.enter_context(bar(Console(stderr=True, highlight=False)))
        shown.set_total(lots, past)
        unsent: list[EvaluationResult] = []  # whose feedback the service does not have yet

        def keep(index: int, turn: Sequence[EvaluationResult]) -> None:
            log.add(index, problems[index], turn)
            if evaluation.feedback:
                # One that an earlier run has asked for has no trace that is known here.
                unsent.extend(one for one in turn if one.error is None and one.answer.trace_id)

        async def send_feedback() -> None:
            assert isinstance(client, HttpClient)
            sending, unsent[:] = unsent[:], []
            await asyncio.gather(
                *(client.send_feedback(one.answer.trace_id, float(one.correct)) for one in sending)
            )

        async def fairly(question: str, candidate: Candidate) -> EvaluatedAnswer:
            """Where times count, who comes second must not find the prompt in the prefix cache."""
            if unsent:
                await send_feedback()
            if evaluation.concurrency == 1:
                client.reset_prefix_cache()
            return await ask(client, question, candidate)

        turns = await run(
            problems,
            candidates,
            fairly,
            grader.right,
            RunOptions(
                concurrency=evaluation.concurrency,
                done=done,
                known=log.known,
                keep=keep,
                progress=lambda candidate: shown.advance(candidate.label),
            ),
        )
        if unsent:
            await send_feedback()
        return turns


def _served_by(
    pair: Pair, candidates: Sequence[Candidate], max_tokens: int | None
) -> tuple[str, dict[str, Any]]:
    """What the large worker decodes with, and who answers: different pairs share no file.

    A wrong policy or parameter is an error here, before any file is begun.
    """
    from deploy.evaluation.summary import SERVICE
    from orchestrator.worker import SERVER_METHOD

    if pair.url is not None:
        return SERVICE, {"url": pair.url}
    from deploy.evaluation.candidates import policy_of
    from deploy.launch.deployment_file import DEFAULT_FILE, load_args
    from deploy.service.calibration import fingerprint
    from workers.embedded.checkpoints import place_of

    args = load_args(pair.config or DEFAULT_FILE)
    for candidate in candidates:
        policy_of(args, candidate)
    workers = args.workers
    own, large = workers.small, workers.large
    found: dict[str, Any] = {
        "small": fingerprint(place_of(own.source), str(own.model)),
        "large": large.checkpoint(),
        "params": args.policy.params,
    }
    if answering := args.workers.answering():
        found["answering"] = answering
    # What else answers depend on is said only where it is not the default, as earlier versions did
    # not say it.
    if any(candidate.policy == "baton" for candidate in candidates):
        found |= args.policy.model_dump(include={"default"}, exclude_defaults=True)
    if max_tokens is None:
        found |= args.limits.model_dump(include={"max_tokens"}, exclude_defaults=True)
    drafting = own.speculation.model_dump(include={"method", "params"}, exclude_defaults=True)
    if drafting:
        found["small_speculation"] = drafting
    method = large_speculation(workers, pair.speculation, pair.default_speculation)
    return SERVER_METHOD if method is None else _written(method, own.model), found


def _written(method: Speculation, small: str | None) -> str:
    """A method as rows name it: with its parameters, but for the small model where that drafts."""
    named = (
        f":{key}={value if isinstance(value, str) else json.dumps(value)}"
        for key, value in sorted(method.params.items())
        if value != small
    )
    return f"{method.method}{''.join(named)}{' (lossy)' * method.lossy}"


def _named(policies: str) -> list[str]:
    """The policies of the option; `all` stands for every one there is."""
    from policies import POLICIES

    return [
        name
        for part in policies.split(",")
        for name in (POLICIES if part.strip() == "all" else (part,))
    ]


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
