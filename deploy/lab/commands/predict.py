"""`baton lab predict`: recorded requests at the costs of another pair."""

from __future__ import annotations

import json
from math import inf
from pathlib import Path
from typing import Annotated

import typer

from deploy.cli.common import wide_console, write
from deploy.lab.commands.options import JsonFile, counts
from orchestrator.errors import InvalidRequest


def predict(
    recordings: Annotated[Path, typer.Argument(help="What `baton eval --recordings` left.")],
    costs: Annotated[
        str, typer.Option(help="A file of costs, or the name of one in deploy/lab/costs.")
    ] = "qwen2.5-1.5b-32b-a100",
    streams: Annotated[
        str | None, typer.Option(help="Requests at once, several as 1,8,32; by default the fewest.")
    ] = None,
    gpu_hour: Annotated[
        float | None, typer.Option(help="Price of a GPU for an hour, for money per 1,000 requests.")
    ] = None,
    as_json: JsonFile = None,
) -> None:
    """Predict latency, GPU-hours and money on a pair that cannot run here.

    Every recorded call is charged what it would cost there; calls side by side overlap. The table
    is a prediction; its assumptions follow it.

    [bold]Examples[/]

      baton eval --problems builtin:dev --limit 100 --recordings runs/dev

      baton lab predict runs/dev --costs qwen2.5-1.5b-32b-a100

      baton lab predict runs/dev --costs qwen3-8b-32b-h100 --streams 1,8,32 --gpu-hour 2.5

      baton lab predict runs/dev --costs mine.yaml --json predicted.json
    """
    from deploy.lab import prediction

    if gpu_hour is not None and not 0 < gpu_hour < inf:
        raise InvalidRequest(f"--gpu-hour {gpu_hour:g}: want a price above 0")
    at_once = counts("--streams", streams) if streams else []
    pair = prediction.load_costs(costs)
    if gpu_hour is not None:
        pair = pair.model_copy(update={"gpu_hour": gpu_hour})
    data = prediction.predicted(recordings, pair, at_once)
    if as_json is not None:
        write(as_json, json.dumps(data, indent=2) + "\n")
    prediction.show_prediction(data, wide_console())
