"""`baton eval`: a problem set through several policies, side by side."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from deploy.commands.shared import Config, Url, asking, wide_console
from orchestrator.errors import BatonError, ConfigError, InvalidRequest
from orchestrator.evaluate import Contender, Outcome, Problem, Question, Row, lineup, rows, run

if TYPE_CHECKING:
    from deploy.askers import Asker

DEFAULT_LIMIT = 50  # problems of a builtin set, where nobody says how many
BUILTIN = ("heldout", "dev", "train")


class Unanswered(BatonError):
    """Some requests of an evaluation failed."""


def evaluate(
    problems: Annotated[
        str,
        typer.Option(help="FILE.jsonl with question and answer a line, or builtin:heldout|dev."),
    ],
    policies: Annotated[
        str, typer.Option(help="Comma-separated; parameters as specreason:threshold=5.")
    ] = "large-only,small-only,specreason",
    speculation: Annotated[
        str | None,
        typer.Option(help="Method in the large worker, for all policies (in-process: vanilla)."),
    ] = None,
    budget: Annotated[
        str | None, typer.Option(help="Cap on thinking tokens; several as 64,128.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="How many problems.")] = None,
    seed: Annotated[int, typer.Option(help="Which problems a builtin set draws.")] = 0,
    concurrency: Annotated[
        int, typer.Option(min=1, help="Requests at once; speedups are meant at 1.")
    ] = 1,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Cap on thought and answer together.")
    ] = None,
    url: Url = None,
    config: Config = None,
    as_json: Annotated[
        Path | None, typer.Option("--json", help="Write the rows to this file.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw accuracy over time as PNG.")] = None,
) -> None:
    """Accuracy, latency, speedup and tokens of policies on the same problems.

    The policies take turns problem by problem; large-only always runs. Speedup is its summed wall
    time over the policy's.

    [bold]Examples[/]

      baton eval --problems builtin:heldout --limit 100

      baton eval --problems builtin:dev --policies specreason:threshold=5,specreason:threshold=8

      baton eval --problems mine.jsonl --budget 64,128 --json rows.json --plot rows.png

      baton eval --problems builtin:heldout --url http://127.0.0.1:8000
    """
    from deploy.askers import Options

    if url is not None and speculation is not None:
        raise InvalidRequest("--speculation is the service's own choice; leave it out with --url")
    chosen = load_problems(problems, limit, seed)
    contenders = lineup(policies.split(","), _budgets(budget))
    console = Console(stderr=True, highlight=False)

    async def work() -> tuple[list[list[Outcome]], Asker]:
        from deploy.askers import ask

        async with asking(
            url, config, Options(max_tokens), contenders, speculation, "vanilla"
        ) as asker:
            with _progress(console) as progress:
                task = progress.add_task("", total=len(chosen) * len(contenders))

                def tell(contender: Contender, _: Outcome) -> None:
                    progress.update(task, advance=1, description=contender.label)

                outcomes = await run(
                    chosen,
                    contenders,
                    lambda question, contender: ask(asker, question, contender),
                    concurrency=concurrency,
                    progress=tell,
                )
            return outcomes, asker

    outcomes, asker = asyncio.run(work())
    told = {"speculation": asker.speculation, "transport": asker.transport}
    table = rows(contenders, outcomes, **told)
    about = {"problems": problems, "seed": seed, "concurrency": concurrency}
    if as_json is not None:
        _write(as_json, json.dumps({"rows": table, **about}, indent=2) + "\n")
    if plot is not None:
        draw(table, plot)
    show(table, wide_console(), concurrency)
    errors = [outcome.error for own in outcomes for outcome in own if outcome.error is not None]
    if errors:
        raise Unanswered(f"{len(errors)} requests failed; the first: {errors[0]}")


def load_problems(source: str, limit: int | None, seed: int) -> Sequence[Problem]:
    """The problems that `--problems` names.

    Raises:
        ConfigError: names the file and line that cannot be used.
    """
    kind, _, name = source.partition(":")
    if kind == "builtin":
        if name not in BUILTIN:
            raise ConfigError(f"no builtin problems {name!r}; there are {', '.join(BUILTIN)}")
        from workers.models import problems

        part = cast("Literal['train', 'dev', 'heldout']", name)
        return problems.draw(part, seed, limit or DEFAULT_LIMIT)
    try:
        lines = Path(source).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{source}: {getattr(error, 'strerror', None) or error}") from None
    found = [_question(source, at, line) for at, line in enumerate(lines, 1) if line.strip()]
    if not found:
        raise ConfigError(f"{source}: no problems in it")
    return found[:limit]


def _question(source: str, at: int, line: str) -> Question:
    try:
        data = json.loads(line)
        question, answer = data["question"], data["answer"]
    except (ValueError, TypeError, KeyError):
        raise ConfigError(f"{source}:{at}: want an object with question and answer") from None
    if not isinstance(question, str) or not isinstance(answer, str | int | float):
        raise ConfigError(f"{source}:{at}: question must be text, answer text or a number")
    return Question(question, str(answer))


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


def _progress(console: Console) -> Progress:
    return Progress(
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}", style="dim"),
        console=console,
        transient=True,
    )


def show(table: Sequence[Row], console: Console, concurrency: int = 1) -> None:
    """The rows as people read them; intervals are of 95 %."""
    budgets = any(row["budget"] is not None for row in table)
    made = Table(box=SIMPLE_HEAD, caption_justify="left")
    made.caption = "speedup: summed wall time of large-only over the policy's" + (
        f"; measured at concurrency {concurrency}, it is meant at 1" if concurrency > 1 else ""
    )
    for head in ("policy", *(("budget",) if budgets else ())):
        made.add_column(head, no_wrap=True)
    for head in (
        "accuracy\n% [95 %]",
        "difference\nto large-only",
        "ms\np50/p95",
        "speedup\n",
        "tokens\nsmall+large",
        "accepted\nsteps",
    ):
        made.add_column(head, justify="right", no_wrap=True)
    for row in table:
        low, high = row["accuracy_low"], row["accuracy_high"]
        made.add_row(
            row["policy"],
            *((str(row["budget"] or ""),) if budgets else ()),
            f"{100 * row['accuracy']:.1f} [{100 * low:.0f}, {100 * high:.0f}]",
            f"{100 * row['difference']:+.1f} "
            f"[{100 * row['difference_low']:+.0f}, {100 * row['difference_high']:+.0f}]",
            f"{row['p50_ms']:.0f}/{row['p95_ms']:.0f}",
            f"{row['speedup']:.2f}x",
            f"{row['small_tokens']:.0f}+{row['large_tokens']:.0f}",
            f"{row['accepted_steps']:.1f} of {row['steps']:.1f}",
        )
    console.print(made)


def draw(table: Sequence[Row], path: Path) -> None:
    """Accuracy over mean latency, a point per row.

    Raises:
        ConfigError: matplotlib is missing, or the file cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError("--plot needs matplotlib: pip install 'baton[plot]'") from None
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes: Any = figure.subplots()
    for row in table:
        x, y = row["total_ms"] / max(1, row["n"]), row["accuracy"]
        spread = [[max(0, y - row["accuracy_low"])], [max(0, row["accuracy_high"] - y)]]
        axes.errorbar([x], [y], yerr=spread, fmt="o", capsize=3)
        label = row["policy"] + (f" @{row['budget']}" if row["budget"] is not None else "")
        axes.annotate(label, (x, y), xytext=(6, 4), textcoords="offset points", fontsize=8)
    axes.set(xlabel="mean wall time per problem (ms)", ylabel="accuracy", ylim=(-0.03, 1.03))
    axes.grid(alpha=0.3)
    try:
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: {error}") from None


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None
