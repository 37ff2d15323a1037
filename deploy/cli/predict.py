"""`baton predict`: recorded requests at the costs of another pair."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from deploy.cli.common import wide_console, write


def predict(
    recordings: Annotated[Path, typer.Argument(help="What `baton eval --recordings` left.")],
    costs: Annotated[
        str, typer.Option(help="A file of costs, or the name of one in deploy/costs.")
    ] = "qwen2.5-1.5b-32b-a100",
    as_json: Annotated[
        Path | None, typer.Option("--json", help="Write rows, costs and assumptions to this file.")
    ] = None,
    as_markdown: Annotated[
        Path | None, typer.Option("--markdown", help="Write the table to this file.")
    ] = None,
) -> None:
    """Predict latency and speedup on a pair that cannot run here.

    Every recorded call is charged what it would cost there; calls side by side overlap. The table
    is a prediction, its assumptions stand below it.

    [bold]Examples[/]

      baton eval --problems builtin:dev --limit 100 --recordings runs/dev

      baton predict runs/dev --costs qwen2.5-1.5b-32b-a100

      baton predict runs/dev --costs mine.yaml --json predicted.json
    """
    from deploy.evaluation import prediction
    from deploy.evaluation.tables import show

    data = prediction.predicted(recordings, prediction.load_costs(costs))
    if as_json is not None:
        write(as_json, json.dumps(data, indent=2) + "\n")
    if as_markdown is not None:
        write(as_markdown, prediction.report(data))
    console = wide_console()
    show(data["rows"], prediction.COLUMNS, console, prediction.title(data))
    for line in prediction.basis(data):
        console.print(f"- {line}", style="dim", markup=False)
