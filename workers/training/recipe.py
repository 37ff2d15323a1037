"""The recipe of the embedded pair, stage by stage; `baton train` runs it.

    tokenizer   learn the merges from training texts
    novice      a first small model, whose mistakes teach error detection
    harvest     its wrong steps and reflections on training problems, marked by the exact checker
    small       the small model, with reflections on such mistakes
    rehearse    the small model's own wrong steps and reflections, likewise
    large       the large model, with reflections and the judge's turn on both harvests
    calibrate   the judge's likelihood curve, fitted on the development part
    publish     copy both checkpoints to where `embedded:` finds them
    measure     what the published pair can do, on problems it never saw

and, only where it is named, since nothing else builds on it:

    align       a small model that learnt to write like the large one (`align.py`), in `aligned`
    kangaroo    the adapter by which the large model drafts for itself (`kangaroo.py`)
    fspad       the large model's feature drafter (`features.py`)
    eagle2      the same without what FSPAD adds: its ablation
    draft       a weak draft model, one layer of half the small one's width, trained for a fraction
                of its tokens: for measuring speculation where drafts miss

Every stage reads what earlier ones left in the run folder, so each can be repeated alone. Those
named last take the published pair where the run folder has none, and the draft model does without
a harvest; `publish` takes along what there is of them.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tokenizers import Tokenizer

from workers.embedded.checkpoints import JUDGE_FILE, MODELS
from workers.model.early_exit import CONFIG, WEIGHTS
from workers.speculation.feature_head import VARIANTS
from workers.speculation.kangaroo import FOLDER
from workers.training.align import Chains, fresh_chains
from workers.training.batches import TrainingDocument
from workers.training.cost import decode_cost
from workers.training.documents import DocumentWriter, texts
from workers.training.features import HeadRecipe, own_chains, train_head
from workers.training.harvest import Author, harvest, load_mistakes
from workers.training.kangaroo import EXIT_LAYER, Course, Lesson, belongs, train_adapter
from workers.training.llama import Recipe
from workers.training.measure import acceptance, candidates, judge, report
from workers.training.problems import Part
from workers.training.trainer import train
from workers.training.vocabulary import train_tokenizer

SHIPPED = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")

STAGES = (
    "tokenizer", "novice", "harvest", "small", "rehearse", "large", "calibrate", "publish",
    "measure",
)  # fmt: skip
EXTRA_STAGES = ("align", "kangaroo", *VARIANTS, "draft")
SEEDED = VARIANTS
"""Stages that may be run with another seed than their recipe's, for comparisons."""
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
}
COURSE = Course()
RECIPES["align"] = replace(RECIPES["small"], tokens=5_000_000, seed=3)


@dataclass(frozen=True, slots=True)
class Documents:
    """The documents of one stage; picklable, since every process opens a stream of its own."""

    tokenizer: Path
    judge: bool
    mistakes: tuple[Path, ...]

    def __call__(self, rank: int, world: int, seed: int) -> Iterator[TrainingDocument]:
        known = [row for path in self.mistakes for row in load_mistakes(path)] or None
        tokenizer = Tokenizer.from_file(str(self.tokenizer / "tokenizer.json"))
        writer = DocumentWriter(tokenizer, judge=self.judge, mistakes=known)
        return writer.documents("train", seed * world + rank)


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
    tokenizer = runs / "tokenizer"
    harvests = {name: runs / f"{name}.jsonl.gz" for name in HARVESTS}
    if stage == "tokenizer":
        train_tokenizer(texts(0, 40_000), tokenizer)
    elif stage in HARVESTS:
        author, seed = HARVESTS[stage]
        harvest(runs / author, harvests[stage], HARVESTED_PROBLEMS, seed, log)
    elif stage == "align":
        align(runs, minutes=minutes, tokens=tokens, resume=resume, init_from=init_from, log=log)
    elif stage == "kangaroo":
        large = _checkpoint(runs, "large")
        lesson = Lesson.on(large, exit_layer or EXIT_LAYER, init_from, COURSE.seed)
        course = replace(COURSE, minutes=minutes, tokens=tokens or COURSE.tokens)
        chains = (_chains(runs, large, log), *own_chains(large, runs, log))
        train_adapter(lesson, chains, runs / stage, course, resume=resume, log=log)
    elif stage in VARIANTS:
        large = _checkpoint(runs, "large")
        head = HeadRecipe(stage, minutes=minutes, seed=seed or 0)
        head = replace(head, tokens=tokens or head.tokens)
        out = runs / (stage if seed is None else f"{stage}-{seed}")
        train_head(head, large, own_chains(large, runs, log), out, resume, init_from, log)
    elif stage == "calibrate":
        calibrate(runs / "small", runs / "large", log)
    elif stage == "publish":
        for name in ("small", "large", "draft"):
            if name != "draft" or (runs / name).exists():
                publish(runs / name, MODELS / name)
        publish_adapter(runs / "kangaroo", MODELS / "large", log)
        for variant in VARIANTS:
            if (runs / variant).exists():
                publish(runs / variant, MODELS / "large" / variant)
    elif stage == "measure":
        measure(part, count, log)
    else:
        recipe = _recipe(stage, minutes, tokens, init_from)
        known = tuple(harvests[name] for name in LEARNS_FROM[stage])
        if stage == "draft":
            tokenizer = tokenizer if tokenizer.exists() else MODELS / "large"
            known = tuple(path for path in known if path.exists())
        documents = Documents(tokenizer, judge=stage == "large", mistakes=known)
        train(recipe, documents, runs / stage, tokenizer, resume, init_from=init_from, log=log)
    if stage == "draft":
        found = acceptance(Author(_checkpoint(runs, "large")), Author(runs / stage), 100, seed=0)
        log(f"draft: {found:.3f} of its tokens are accepted by the large model at temperature 1")


def _recipe(
    stage: str, minutes: float | None, tokens: int | None, init_from: Path | None
) -> Recipe:
    """The stage's recipe at the length asked for; weights that are taken over learn slower."""
    recipe = replace(RECIPES[stage], minutes=minutes)
    if tokens:
        recipe = replace(recipe, tokens=tokens)
    if init_from:
        recipe = replace(recipe, muon_lr=0.6 * recipe.muon_lr, adam_lr=0.6 * recipe.adam_lr)
    return recipe


def align(
    runs: Path,
    *,
    minutes: float | None = None,
    tokens: int | None = None,
    resume: bool = False,
    init_from: Path | None = None,
    log: Callable[[str], None] = print,
) -> None:
    """Train the small model on the large one's greedy chains, from its own weights or another's."""
    small, large = (_checkpoint(runs, name) for name in ("small", "large"))
    chains = _chains(runs, large, log)
    start = init_from or small
    recipe = _recipe("align", minutes, tokens, start)
    train(recipe, Chains(chains), runs / "aligned", small, resume, init_from=start, log=log)


def _chains(runs: Path, large: Path, log: Callable[[str], None]) -> Path:
    return fresh_chains(large, runs / "chains.jsonl.gz", ALIGNED_PROBLEMS, 2, log)


def _checkpoint(runs: Path, name: str) -> Path:
    """The run folder's checkpoint, or else the published one."""
    return runs / name if (runs / name / "model.safetensors").exists() else MODELS / name


def calibrate(
    small: Path, large: Path, log: Callable[[str], None] = print, count: int = 4000
) -> None:
    """Measure the judge on the development part and write down how this model is to be asked.

    `likelihood` is 9·P(right), by a logistic fit of the large model's minimum log-probability in
    the step. The scoring that separates right from wrong steps better becomes the default.
    """
    found = candidates(Author(small), "dev", 0, count)
    figures = judge(Author(large), found)
    digit, likelihood = figures["digit_auc"], figures["likelihood_auc"]
    scoring = "expected" if digit >= likelihood else "likelihood"
    curve = [figures["intercept"], figures["slope"]]
    policy = {"judge": "short", "scoring": scoring, "likelihood": curve}
    (large / JUDGE_FILE).write_text(json.dumps({"policy": policy, "dev": figures}, indent=2) + "\n")
    log(json.dumps(figures))


def publish(trained: Path, shipped: Path, names: Sequence[str] = (*SHIPPED, JUDGE_FILE)) -> None:
    """Copy what a user loads; nothing of the optimizer."""
    shipped.mkdir(parents=True, exist_ok=True)
    for name in names:
        if (trained / name).exists():
            shutil.copyfile(trained / name, shipped / name)


def publish_adapter(trained: Path, large: Path, log: Callable[[str], None]) -> None:
    """Lay the adapter beside the large model it was trained on; say so where none fits."""
    shipped = large / FOLDER
    if belongs(trained, large):
        publish(trained, shipped, (CONFIG, WEIGHTS))
    elif shipped.exists() and not belongs(shipped, large):
        log(f"publish: {shipped} was trained on other weights; run the stage kangaroo")


def measure(part: Part, count: int, log: Callable[[str], None] = print, seed: int = 1) -> None:
    """Log the figures of the published pair as JSON; the seed is fixed once and for all."""
    figures = {"cost": decode_cost(MODELS)}
    small, large = (Author(MODELS / name) for name in ("small", "large"))
    figures |= report(small, large, part, seed, count)
    if (MODELS / "draft" / "config.json").exists():
        rate = acceptance(large, Author(MODELS / "draft"), 200, part=part, seed=seed)
        figures["draft"] = {"acceptance": round(rate, 4)}
    log(json.dumps(figures, indent=2))
