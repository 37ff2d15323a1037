"""`baton lab bench-weights`: types of weights side by side."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console

from deploy.cli.common import Problems, Seed, bar, wide_console, write
from deploy.lab.commands.options import Device, JsonFile, ModelName, Threads

CHOICE = "float32,bfloat16,int8,int4"


def bench_weights(
    model: ModelName = "embedded:large",
    dtypes: Annotated[
        str, typer.Option(help="As a worker's dtype; ratios are to the first.")
    ] = CHOICE,
    problems: Problems = "builtin:strangers",
    limit: Annotated[int, typer.Option(min=1, help="How many problems' questions are read.")] = 40,
    seed: Seed = 0,
    device: Device = "cpu",
    threads: Threads = None,
    as_json: JsonFile = None,
) -> None:
    """Perplexity and time of a pass of one model with its weights in several types.

    [bold]Examples[/]

      baton lab bench-weights --model Qwen/Qwen3-1.7B --dtypes bfloat16,int8
    """
    from transformers.utils.logging import disable_progress_bar

    from deploy.evaluation.problems import load_problems
    from deploy.evaluation.tables import show
    from deploy.lab.bench.weights import COLUMNS, about
    from deploy.lab.bench.weights import bench_weights as measure

    disable_progress_bar()
    texts = [one.question for one in load_problems(problems, limit, seed)]
    names = list(dict.fromkeys(dtypes.split(",")))
    with bar(Console(stderr=True)) as shown:
        rows = measure(model, names, texts, device=device, threads=threads, tell=shown.set_label)
    if as_json is not None:
        write(as_json, json.dumps({"model": model, "rows": rows}, indent=2) + "\n")
    show(rows, COLUMNS, wide_console())
    typer.echo(about(model, rows))
