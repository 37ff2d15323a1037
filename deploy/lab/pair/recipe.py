"""The stages that made the embedded pair and its drafters; `baton lab train` runs them.

Every stage reads from the run folder what earlier ones wrote. The drafters' stages use the
published large model if the run folder has none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from deploy.lab.pair import features, kangaroo
from deploy.lab.pair.chains import written
from deploy.lab.pair.documents import generated_documents, texts
from deploy.lab.pair.harvest import harvest
from deploy.lab.pair.llama import Recipe
from deploy.lab.pair.progress import Schedule
from deploy.lab.pair.publishing import publish_all
from deploy.lab.pair.trainer import train
from deploy.lab.pair.vocabulary import train_tokenizer
from orchestrator.errors import ConfigError
from workers.embedded.checkpoints import MODELS
from workers.speculation.feature_head import VARIANTS

STAGES = (
    "tokenizer", "novice", "harvest", "small", "rehearse", "large", "draft", "kangaroo", "fspad",
    "eagle2", "publish",
)  # fmt: skip
TOKENIZER_PROBLEMS = 40_000
HARVESTED_PROBLEMS = 16_000
HARVESTS = {"harvest": ("novice", 0), "rehearse": ("small", 1)}
"""Stage -> the model that makes the mistakes, and the seed of its problems."""
LEARNS_FROM = {
    "novice": (), "small": ("harvest",), "large": ("harvest", "rehearse"), "draft": ("harvest",),
}  # fmt: skip
RECIPES = {
    "novice": Recipe(layers=2, width=64, tokens=45_000_000),
    "small": Recipe(layers=2, width=64, tokens=55_000_000, seed=1),
    "large": Recipe(layers=12, width=128, tokens=90_000_000, seed=2, flag_layer=9),
    "draft": Recipe(layers=1, width=32, tokens=3_000_000, seed=4),
}
SCHEDULES = {
    "kangaroo": kangaroo.SCHEDULE, "fspad": features.SCHEDULE, "eagle2": features.SCHEDULE,
}  # fmt: skip


def run(
    stage: str,
    runs: Path,
    *,
    tokens: int | None = None,
    log: Callable[[str], None] = print,
) -> None:
    """Run one stage in the folder `runs`.

    Args:
        tokens: length of a training stage; None: the recipe's.

    Raises:
        ConfigError: an earlier stage has not run.
    """
    if stage == "tokenizer":
        train_tokenizer(texts(0, TOKENIZER_PROBLEMS), runs / stage)
    elif stage in HARVESTS:
        author, seed = HARVESTS[stage]
        harvest(runs / author, _harvested(runs, stage), HARVESTED_PROBLEMS, seed, log)
    elif stage in RECIPES:
        recipe = RECIPES[stage]
        _train_model(stage, runs, replace(recipe, tokens=tokens or recipe.tokens), log)
    elif stage in SCHEDULES:
        schedule = SCHEDULES[stage]
        _train_drafter(stage, runs, replace(schedule, tokens=tokens or schedule.tokens), log)
    else:
        publish_all(runs, MODELS)


def _harvested(runs: Path, stage: str) -> Path:
    return runs / f"{stage}.jsonl.gz"


def _train_model(stage: str, runs: Path, recipe: Recipe, log: Callable[[str], None]) -> None:
    mistakes = {name: _harvested(runs, name) for name in LEARNS_FROM[stage]}
    needed = {"tokenizer": runs / "tokenizer"} | mistakes
    if missing := [name for name, path in needed.items() if not path.exists()]:
        raise ConfigError(f"{runs}: run the stage {missing[0]} first")
    tokenizer = needed["tokenizer"]
    documents = generated_documents(
        tokenizer, judge=stage == "large", mistakes=list(mistakes.values()), seed=recipe.seed
    )
    train(recipe, documents, runs / stage, tokenizer_dir=tokenizer, log=log)


def _train_drafter(stage: str, runs: Path, schedule: Schedule, log: Callable[[str], None]) -> None:
    large = runs / "large" if (runs / "large").exists() else MODELS / "large"
    chains = [written(large, runs, kind, log) for kind in ("own-greedy", "own-sampled")]
    if stage == "kangaroo":
        chains.insert(0, written(large, runs, "chains", log))
        kangaroo.train_adapter(large, chains, runs / stage, schedule, log)
    else:
        variant = next(one for one in VARIANTS if one == stage)
        features.train_head(variant, large, chains, runs / stage, schedule, log)
