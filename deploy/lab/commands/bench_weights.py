"""`baton lab bench-weights`: types of weights side by side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from deploy.cli.common import Problems, Seed, bar, wide_console, write

CHOICE = "float32,bfloat16,int8"


def bench_weights(
    model: Annotated[
        str, typer.Option(help="A folder, a Hugging Face id, or embedded:NAME.")
    ] = "embedded:large",
    dtypes: Annotated[
        str, typer.Option(help="As a worker's dtype; ratios are to the first.")
    ] = CHOICE,
    problems: Problems = "builtin:strangers",
    limit: Annotated[int, typer.Option(min=1, help="How many problems' questions are read.")] = 40,
    seed: Seed = 0,
    device: Annotated[str, typer.Option(help="A torch device.")] = "cpu",
    threads: Annotated[
        int | None, typer.Option(min=1, help="CPU threads; None: all cores.")
    ] = None,
    as_json: Annotated[
        Path | None, typer.Option("--json", help="Write the rows to this file.")
    ] = None,
    as_markdown: Annotated[
        Path | None, typer.Option("--markdown", help="Write the table to this file.")
    ] = None,
) -> None:
    """Perplexity and time of a pass of one model with its weights in several types.

    [bold]Examples[/]

      baton lab bench-weights --model Qwen/Qwen3-1.7B --dtypes bfloat16,int8
    """
    from transformers.utils.logging import disable_progress_bar

    from deploy.evaluation.problems import load_problems
    from deploy.evaluation.tables import markdown, show
    from deploy.lab.bench.weights import COLUMNS, about
    from deploy.lab.bench.weights import bench_weights as measure

    disable_progress_bar()
    texts = [one.question for one in load_problems(problems, limit, seed)]
    names = list(dict.fromkeys(dtypes.split(",")))
    with bar(Console(stderr=True)) as shown:
        rows = measure(model, names, texts, device=device, threads=threads, tell=shown.tell)
    if as_json is not None:
        write(as_json, json.dumps({"model": model, "rows": rows}, indent=2) + "\n")
    if as_markdown is not None:
        write(
            as_markdown,
            f"# Weights side by side\n\n{markdown(rows, COLUMNS)}\n{about(model, rows)}\n",
        )
    show(rows, COLUMNS, wide_console())
    typer.echo(about(model, rows))
