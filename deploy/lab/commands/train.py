"""`baton lab train`: the recipe of the embedded pair."""

from __future__ import annotations

from enum import Enum
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
  rehearse    the small model's own wrong steps and reflections, likewise
  large       the large model, with reflections and the judge's turn on both harvests
  calibrate   the judge's likelihood curve, fitted on the development part
  publish     copy both checkpoints to where embedded:small and embedded:large are found
  measure     accuracy, judge, hesitation and repair on problems never seen (JSON)

and only where it is named:

  align       a small model that learnt to write like the large one, for the policy bild
  kangaroo    the adapter by which the large model drafts for itself (speculation: kangaroo)
  draft       a weak draft model (embedded:draft), to measure speculation where drafts miss
  fspad       a feature drafter for the large model, for the speculation method fspad
  eagle2      the same without what FSPAD adds, for its variant eagle2

[bold]Examples[/]

  baton lab train                            everything, into runs/ (about 3 hours on two cores)
  baton lab train large --minutes 90         one stage, its schedule fitted to 90 minutes
  baton lab train large --resume             go on from the last checkpoint
  baton lab train large --init runs/large    start from weights and warm up again
  baton lab train measure --part heldout     the figures of the shipped pair
  baton lab train draft publish              the weak draft model, beside the pair
  baton lab train align --minutes 20         into runs/aligned (baton eval --small runs/aligned)
  baton lab train kangaroo --exit-layer 3    into runs/kangaroo; publish ships it
  baton lab train fspad eagle2 --minutes 30  into runs/fspad and runs/eagle2; publish ships them
"""


class Part(Enum):
    """Problems that training never saw."""

    dev = "dev"
    heldout = "heldout"


def train(
    stages: Annotated[list[str] | None, typer.Argument(help="Stages to run, in order.")] = None,
    runs: Annotated[Path, typer.Option(help="Folder for what the stages leave.")] = Path("runs"),
    minutes: Annotated[
        float | None, typer.Option(min=0.1, help="Wall time of a training stage.")
    ] = None,
    tokens: Annotated[
        int | None, typer.Option(min=10_000, help="Length of a training stage.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the checkpoint.")] = False,
    init: Annotated[
        Path | None, typer.Option(help="Start from this checkpoint's weights.", exists=True)
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Another seed for a drafter, into runs/STAGE-SEED.")
    ] = None,
    part: Annotated[Part, typer.Option(help="For measure: which problems.")] = Part.dev,
    count: Annotated[int, typer.Option(min=10, help="For measure: how many problems.")] = 1000,
    exit_layer: Annotated[
        int | None, typer.Option(min=1, help="For kangaroo: the layer its adapter reads.")
    ] = None,
) -> None:
    """Train the embedded pair on generated problems, stage by stage."""
    from deploy.lab.pair import recipe

    unknown = set(stages or ()) - {*recipe.STAGES, *recipe.EXTRA_STAGES}
    if unknown:
        raise InvalidRequest(f"no such stage: {', '.join(sorted(unknown))}", param="stages")
    if seed is not None and not set(stages or recipe.STAGES) <= set(recipe.SEEDED):
        names = ", ".join(recipe.SEEDED)
        raise InvalidRequest(f"--seed is for the stages {names} only", param="seed")
    for stage in stages or recipe.STAGES:
        recipe.run(
            stage, runs, minutes=minutes, tokens=tokens, resume=resume, init_from=init,
            seed=seed, part=part.value, count=count, exit_layer=exit_layer,
        )  # fmt: skip


train.__doc__ = f"{train.__doc__}{EXAMPLES}"
