"""The recipe of the embedded pair and its drafters, stage by stage; `baton lab train` runs it.

`baton lab train --help` says what each stage makes. Every stage reads what earlier ones left in the
run folder, so each can be repeated alone. The extra stages take the published pair where the run
folder has none, and the draft model does without a harvest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from deploy.evaluation.builtin.problems import Part
from deploy.lab.pair.calibration import calibrate
from deploy.lab.pair.chains import Chains, fresh_chains
from deploy.lab.pair.documents import GeneratedDocuments, texts
from deploy.lab.pair.features import HeadRecipe, own_chains, train_head
from deploy.lab.pair.harvest import Author, harvest
from deploy.lab.pair.kangaroo import EXIT_LAYER, AdapterRecipe, Distillation, train_adapter
from deploy.lab.pair.llama import Recipe
from deploy.lab.pair.measure import acceptance, measure_published
from deploy.lab.pair.publishing import publish_all
from deploy.lab.pair.trainer import train
from deploy.lab.pair.vocabulary import train_tokenizer
from workers.embedded.checkpoints import MODELS
from workers.speculation.feature_head import VARIANTS

TOKENIZER_PROBLEMS = 40_000
HARVESTED_PROBLEMS = 16_000
ALIGNED_PROBLEMS = 8_000
HARVESTS = {"harvest": ("novice", 0), "rehearse": ("small", 1)}
"""Stage -> whose mistakes, and the seed of its problems."""
LEARNS_FROM = {
    "novice": (), "small": ("harvest",), "large": ("harvest", "rehearse"), "draft": ("harvest",),
}  # fmt: skip
RECIPES = {
    "novice": Recipe(layers=2, width=64, tokens=45_000_000),
    "small": Recipe(layers=2, width=64, tokens=55_000_000, seed=1),
    "large": Recipe(layers=12, width=128, tokens=90_000_000, seed=2, flag_layer=9),
    "draft": Recipe(layers=1, width=32, tokens=3_000_000, seed=4),
    "align": Recipe(layers=2, width=64, tokens=5_000_000, seed=3),
}
ADAPTER_RECIPE = AdapterRecipe()


def run(
    stage: str,
    runs: Path,
    *,
    minutes: float | None = None,
    tokens: int | None = None,
    resume: bool = False,
    init_from: Path | None = None,
    seed: int | None = None,
    part: Part = "dev",
    count: int = 1000,
    exit_layer: int | None = None,
    log: Callable[[str], None] = print,
) -> None:
    """Run one stage in the folder `runs`.

    `minutes` caps the wall time of a training stage (its schedule ends in time), `tokens` its
    length; `resume` goes on from the stage's last checkpoint; `init_from` starts from the weights
    of an exported checkpoint and warms up again, to 0.6 of the learning rate. `seed` stands in for
    the recipe's own, in a feature drafter's stage only; `exit_layer` is the one that kangaroo's
    adapter reads. `measure` takes `count` problems of a part that training never saw.
    """
    run_stage = (_MAIN_STAGES | _EXTRA_STAGES)[stage]
    run_stage(
        _StageRun(
            stage, runs, minutes, tokens, resume, init_from, seed, part, count, exit_layer, log
        )
    )


@dataclass(frozen=True, slots=True)
class _StageRun:
    """The arguments of `run`, and the files of the run folder that they lead to."""

    stage: str
    runs: Path
    minutes: float | None
    tokens: int | None
    resume: bool
    init_from: Path | None
    seed: int | None
    part: Part
    count: int
    exit_layer: int | None
    log: Callable[[str], None]

    @property
    def tokenizer(self) -> Path:
        return self.runs / "tokenizer"

    def harvest(self, stage: str) -> Path:
        return self.runs / f"{stage}.jsonl.gz"

    def checkpoint(self, name: str) -> Path:
        """The run folder's checkpoint, or else the published one."""
        trained = self.runs / name
        return trained if (trained / "model.safetensors").exists() else MODELS / name

    def recipe(self, start: Path | None) -> Recipe:
        """The stage's recipe at the length asked for; weights that are taken over learn slower."""
        recipe = replace(RECIPES[self.stage], minutes=self.minutes)
        if self.tokens:
            recipe = replace(recipe, tokens=self.tokens)
        if start:
            recipe = replace(recipe, muon_lr=0.6 * recipe.muon_lr, adam_lr=0.6 * recipe.adam_lr)
        return recipe


def _tokenizer(run: _StageRun) -> None:
    train_tokenizer(texts(0, TOKENIZER_PROBLEMS), run.tokenizer)


def _model(run: _StageRun) -> None:
    """The novice, the small or the large model, from generated documents."""
    mistakes = tuple(run.harvest(stage) for stage in LEARNS_FROM[run.stage])
    _train_on_documents(run, run.tokenizer, mistakes)


def _harvest(run: _StageRun) -> None:
    author, seed = HARVESTS[run.stage]
    harvest(run.runs / author, run.harvest(run.stage), HARVESTED_PROBLEMS, seed, run.log)


def _calibrate(run: _StageRun) -> None:
    calibrate(run.runs / "small", run.runs / "large", run.log)


def _publish(run: _StageRun) -> None:
    publish_all(run.runs, MODELS, run.log)


def _measure(run: _StageRun) -> None:
    measure_published(run.part, run.count, run.log)


def _draft(run: _StageRun) -> None:
    """The draft model, from what there is of tokenizer and harvest."""
    tokenizer = run.tokenizer if run.tokenizer.exists() else MODELS / "large"
    mistakes = [run.harvest(stage) for stage in LEARNS_FROM[run.stage]]
    _train_on_documents(run, tokenizer, tuple(path for path in mistakes if path.exists()))
    large, draft = Author(run.checkpoint("large")), Author(run.runs / run.stage)
    rate = acceptance(large, draft, 100, seed=0)
    run.log(f"draft: {rate:.3f} of its tokens are accepted by the large model at temperature 1")


def _train_on_documents(run: _StageRun, tokenizer: Path, mistakes: tuple[Path, ...]) -> None:
    documents = GeneratedDocuments(tokenizer, judge=run.stage == "large", mistakes=mistakes)
    train(
        run.recipe(run.init_from), documents, run.runs / run.stage, tokenizer, run.resume,
        init_from=run.init_from, log=run.log,
    )  # fmt: skip


def _align(run: _StageRun) -> None:
    """The small model, trained on the large one's greedy chains.

    That is BiLD's prediction alignment (arXiv 2302.07863): it learns the large model's choice
    among words that are equally right, so that fewer of its tokens are taken back.
    """
    small = run.checkpoint("small")
    start = run.init_from or small
    chains = Chains(_greedy_chains(run))
    train(
        run.recipe(start), chains, run.runs / "aligned", small, run.resume,
        init_from=start, log=run.log,
    )  # fmt: skip


def _kangaroo(run: _StageRun) -> None:
    """The adapter by which the large model drafts for itself, from its own chains."""
    large, recipe = run.checkpoint("large"), ADAPTER_RECIPE
    recipe = replace(recipe, minutes=run.minutes, tokens=run.tokens or recipe.tokens)
    distillation = Distillation.on(large, run.exit_layer or EXIT_LAYER, run.init_from, recipe.seed)
    chains = (_greedy_chains(run), *own_chains(large, run.runs, run.log))
    train_adapter(
        distillation, chains, run.runs / run.stage, recipe, resume=run.resume, log=run.log
    )


def _feature_head(run: _StageRun) -> None:
    """A feature drafter of the large model, from its own chains; a seed has its own folder."""
    variant = next(variant for variant in VARIANTS if variant == run.stage)
    recipe = HeadRecipe(variant, minutes=run.minutes, seed=run.seed or 0)
    recipe = replace(recipe, tokens=run.tokens or recipe.tokens)
    large = run.checkpoint("large")
    out = run.runs / (variant if run.seed is None else f"{variant}-{run.seed}")
    chains = own_chains(large, run.runs, run.log)
    train_head(recipe, large, chains, out, run.resume, run.init_from, run.log)


def _greedy_chains(run: _StageRun) -> Path:
    large, out = run.checkpoint("large"), run.runs / "chains.jsonl.gz"
    return fresh_chains(large, out, ALIGNED_PROBLEMS, 2, run.log)


_Stage = Callable[[_StageRun], None]
_MAIN_STAGES: dict[str, _Stage] = {
    "tokenizer": _tokenizer,
    "novice": _model,
    "harvest": _harvest,
    "small": _model,
    "rehearse": _harvest,
    "large": _model,
    "calibrate": _calibrate,
    "publish": _publish,
    "measure": _measure,
}
_EXTRA_STAGES: dict[str, _Stage] = {
    "align": _align,
    "kangaroo": _kangaroo,
    **dict.fromkeys(VARIANTS, _feature_head),
    "draft": _draft,
}
STAGES = tuple(_MAIN_STAGES)
"""In their order; `baton lab train` runs all of them."""
EXTRA_STAGES = tuple(_EXTRA_STAGES)
"""Run only where they are named."""
SEEDED = VARIANTS
"""Stages that may be run with another seed than their recipe's, for comparisons."""
