"""`baton lab train`: the recipe of the embedded pair and its drafters."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from orchestrator.errors import InvalidRequest

EXAMPLES = """

[bold]Stages[/] (all of them in this order unless some are named)

  tokenizer   learn the merges from training texts
  novice      a first small model, whose mistakes teach error detection
  harvest     its wrong steps and reflections on training problems, marked by the exact checker
  small       the small model, with reflections on such mistakes
  rehearse    the small model's wrong steps and reflections, likewise
  large       the large model, with reflections and the judge's turn on both harvests
  draft       a weak draft model (embedded:draft)
  kangaroo    the adapter by which the large model drafts for itself
  fspad       a feature drafter for the large model
  eagle2      the same without what FSPAD adds
  publish     copy them to the folder that embedded: names

[bold]Examples[/]

  baton lab train                            everything, into runs/ (hours)
  baton lab train large --init runs/large    start from weights and warm up again
  baton lab train kangaroo fspad             two drafters of the published large model
"""


def train(
    stages: Annotated[list[str] | None, typer.Argument(help="Stages to run, in order.")] = None,
    runs: Annotated[Path, typer.Option(help="Folder for the stages' results.")] = Path("runs"),
    tokens: Annotated[
        int | None, typer.Option(min=10_000, help="Length of a training stage.")
    ] = None,
    init: Annotated[
        Path | None, typer.Option(help="Start a model from this checkpoint.", exists=True)
    ] = None,
) -> None:
    """Train the embedded pair and its drafters on generated problems, stage by stage."""
    from deploy.lab.pair import recipe

    if unknown := set(stages or ()) - set(recipe.STAGES):
        raise InvalidRequest(f"no such stage: {', '.join(sorted(unknown))}", param="stages")
    for stage in stages or recipe.STAGES:
        recipe.run(stage, runs, tokens=tokens, init_from=init)


train.__doc__ = f"{train.__doc__}{EXAMPLES}"
