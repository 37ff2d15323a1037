"""`baton lab train`: the recipe of the embedded pair and its drafters."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from orchestrator.errors import InvalidRequest


def train(
    stages: Annotated[list[str] | None, typer.Argument(help="Stages to run, in order.")] = None,
    runs: Annotated[Path, typer.Option(help="Folder for the stages' results.")] = Path("runs"),
    tokens: Annotated[
        int | None, typer.Option(min=10_000, help="Length of a training stage.")
    ] = None,
) -> None:
    """Train the embedded pair and its drafters on generated problems, stage by stage.

    The stages: tokenizer; novice, a first small model whose mistakes (harvest) teach error
    detection; small, and its own mistakes (rehearse); large, with the judge's turn; draft, a weak
    draft model; the drafters kangaroo and fspad of the large model; publish, which copies all to
    the folder that embedded: names.

    [bold]Examples[/]

      baton lab train                            everything, into runs/ (hours)

      baton lab train kangaroo fspad             two drafters of the published large model
    """
    from deploy.lab.pair import recipe

    if unknown := set(stages or ()) - set(recipe.STAGES):
        raise InvalidRequest(f"no such stage: {', '.join(sorted(unknown))}", param="stages")
    for stage in stages or recipe.STAGES:
        recipe.run(stage, runs, tokens=tokens)
