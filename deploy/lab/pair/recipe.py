"""The stages that made the embedded pair and its drafters; `baton lab train` runs them.

Every stage reads from the run folder what earlier ones wrote. The drafters' stages use the
published large model if the run folder has none.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from deploy.lab.pair import features, kangaroo
from deploy.lab.pair.chains import written
from deploy.lab.pair.documents import generated_documents, texts
from deploy.lab.pair.harvest import harvest
from deploy.lab.pair.training import Recipe, Schedule, train
from deploy.lab.pair.vocabulary import train_tokenizer
from orchestrator.errors import ConfigError
from workers.embedded.checkpoints import MODELS
from workers.model.early_exit import CONFIG, WEIGHTS
from workers.speculation import fspad
from workers.speculation.kangaroo import FOLDER

STAGES = (
    "tokenizer", "novice", "harvest", "small", "rehearse", "large", "draft", "kangaroo", "fspad",
    "publish",
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
SCHEDULES = {"kangaroo": kangaroo.SCHEDULE, "fspad": features.SCHEDULE}
FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
PLACES: dict[str, str] = {
    "small": "small", "large": "large", "draft": "draft", "kangaroo": f"large/{FOLDER}",
    "fspad": f"large/{fspad.FOLDER}",
}  # fmt: skip
"""Stage -> folder of what it trained, below the published models."""


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
        publish(runs, MODELS)


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
    train(recipe, documents, runs / stage, tokenizer, log)


def _train_drafter(stage: str, runs: Path, schedule: Schedule, log: Callable[[str], None]) -> None:
    large = runs / "large" if (runs / "large").exists() else MODELS / "large"
    chains = [written(large, runs, kind, log) for kind in ("own-greedy", "own-sampled")]
    if stage == "kangaroo":
        chains.insert(0, written(large, runs, "chains", log))
        kangaroo.train_adapter(large, chains, runs / stage, schedule, log)
    else:
        features.train_head(large, chains, runs / stage, schedule, log)


def publish(runs: Path, models: Path) -> None:
    """Copy every checkpoint, head and adapter of the run folder to `models`.

    Raises:
        ConfigError: there is none, or the adapter was trained on another large model.
    """
    found = [stage for stage in PLACES if (runs / stage).is_dir()]
    if not found:
        raise ConfigError(f"{runs}: expected one of {', '.join(PLACES)} to publish, found none")
    for stage in found:
        place = models / PLACES[stage]
        place.mkdir(parents=True, exist_ok=True)
        for name in (*FILES, CONFIG, WEIGHTS):
            if (runs / stage / name).exists():
                shutil.copyfile(runs / stage / name, place / name)
    adapter = models / PLACES["kangaroo"]
    if adapter.exists() and not kangaroo.belongs(adapter, models / "large"):
        raise ConfigError(f"{adapter} was trained on other weights: run the stage kangaroo")
