"""`baton results`: measured evaluations beside the papers' claims, as a page of the docs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from deploy.cli.common import write
from orchestrator.errors import ConfigError


def results(
    measured: Annotated[
        list[Path],
        typer.Argument(help="What `baton eval --json` wrote; the first is the main one."),
    ],
    predicted: Annotated[
        list[Path] | None, typer.Option(help="What `baton predict --json` wrote.")
    ] = None,
    out: Annotated[Path, typer.Option(help="The page; its plot is written beside it.")] = Path(
        "docs/results.md"
    ),
    claims: Annotated[
        Path | None,
        typer.Option(help="The papers' claims, if not deploy/evaluation/paper_baselines.yaml."),
    ] = None,
) -> None:
    """Write the results page from measured JSON: tables, plot, claims, predictions.

    Every policy that Baton has is on it; one that was not measured says so.

    [bold]Examples[/]

      baton eval --problems builtin:heldout --limit 1000 --policies all --json build/heldout.json

      baton results build/heldout.json

      baton results build/heldout.json build/chain.json --predicted build/predicted.json
    """
    from deploy.evaluation.paper_baselines import FILE, load_baselines
    from deploy.evaluation.plots import draw
    from deploy.evaluation.results import page
    from policies import POLICIES

    evaluations = [_load(path, "n", "problems", "transport") for path in measured]
    predictions = [_load(path, "predicted", "costs", "assumptions") for path in predicted or ()]
    plot = out.with_suffix(".png")
    text = page(evaluations, predictions, load_baselines(claims or FILE), POLICIES, plot.name)
    draw(evaluations[0]["rows"], plot)
    write(out, text)
    print(f"{out} and {plot}")


def _load(path: Path, *keys: str) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None
    except ValueError:
        raise ConfigError(f"{path}: not JSON") from None
    wanted: Sequence[str] = ("rows", *keys)
    missing = [key for key in wanted if not isinstance(data, dict) or key not in data]
    if missing:
        raise ConfigError(f"{path}: without {missing[0]}; want what baton itself wrote")
    if not data["rows"]:
        raise ConfigError(f"{path}: no rows in it")
    found: dict[str, Any] = data
    return found
