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

Every stage reads what earlier ones left in the run folder, so each can be repeated alone. Aligning
takes the published pair where the run folder has none.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from tokenizers import Tokenizer

from workers.checkpoints import JUDGE_FILE, MODELS
from workers.models.align import Chains, write_chains
from workers.models.batches import Document
from workers.models.cost import decode_cost
from workers.models.documents import Writer, texts
from workers.models.harvest import Author, harvest, load_mistakes
from workers.models.llama import Recipe
from workers.models.measure import candidates, judge, report
from workers.models.problems import Part
from workers.models.trainer import train
from workers.models.vocabulary import train_tokenizer

SHIPPED = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")

STAGES = (
    "tokenizer", "novice", "harvest", "small", "rehearse", "large", "calibrate", "publish",
    "measure",
)  # fmt: skip
EXTRA_STAGES = ("align",)
HARVESTED_PROBLEMS = 16_000
ALIGNED_PROBLEMS = 16_000
HARVESTS = {"harvest": ("novice", 0), "rehearse": ("small", 1)}
"""Stage -> whose mistakes, and the seed of its problems."""
LEARNS_FROM = {"novice": (), "small": ("harvest",), "large": ("harvest", "rehearse")}
RECIPES = {
    "novice": Recipe(layers=2, width=64, tokens=45_000_000),
    "small": Recipe(layers=2, width=64, tokens=55_000_000, seed=1),
    "large": Recipe(layers=12, width=128, tokens=90_000_000, seed=2, flag_layer=9),
}
RECIPES["align"] = replace(RECIPES["small"], tokens=5_000_000, seed=3)


@dataclass(frozen=True, slots=True)
class Documents:
    """The documents of one stage; picklable, since every process opens a stream of its own."""

    tokenizer: Path
    judge: bool
    mistakes: tuple[Path, ...]

    def __call__(self, rank: int, world: int, seed: int) -> Iterator[Document]:
        known = [row for path in self.mistakes for row in load_mistakes(path)] or None
        tokenizer = Tokenizer.from_file(str(self.tokenizer / "tokenizer.json"))
        writer = Writer(tokenizer, judge=self.judge, mistakes=known)
        return writer.documents("train", seed * world + rank)


def run(
    stage: str,
    runs: Path,
    *,
    minutes: float | None = None,
    tokens: int | None = None,
    resume: bool = False,
    init_from: Path | None = None,
    part: Part = "dev",
    count: int = 1000,
    log: Callable[[str], None] = print,
) -> None:
    """Run one stage in the folder `runs`.

    `minutes` caps the wall time of a training stage (its schedule ends in time), `tokens` its
    length; `resume` goes on from the stage's last checkpoint; `init_from` starts from the weights
    of an exported checkpoint and warms up again, to 0.6 of the learning rate. `measure` takes
    `count` problems of a part that training never saw.
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
    elif stage == "calibrate":
        calibrate(runs / "small", runs / "large", log)
    elif stage == "publish":
        for name in ("small", "large"):
            publish(runs / name, MODELS / name)
    elif stage == "measure":
        measure(part, count, log)
    else:
        recipe = _recipe(stage, minutes, tokens, init_from)
        known = tuple(harvests[name] for name in LEARNS_FROM[stage])
        documents = Documents(tokenizer, judge=stage == "large", mistakes=known)
        train(recipe, documents, runs / stage, tokenizer, resume, init_from=init_from, log=log)


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
    """Train the small model on the large one's greedy chains, from its own weights or another's.

    The chains are written anew, unless a stage that was broken off goes on with them.
    """
    small, large = (_checkpoint(runs, name) for name in ("small", "large"))
    chains = runs / "chains.jsonl.gz"
    if not (resume and chains.exists()):
        write_chains(large, chains, ALIGNED_PROBLEMS, 2, log)
    start = init_from or small
    recipe = _recipe("align", minutes, tokens, start)
    train(recipe, Chains(chains), runs / "aligned", small, resume, init_from=start, log=log)


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


def publish(trained: Path, shipped: Path) -> None:
    """Copy what a user loads; nothing of the optimizer."""
    shipped.mkdir(parents=True, exist_ok=True)
    for name in (*SHIPPED, JUDGE_FILE):
        if (trained / name).exists():
            shutil.copyfile(trained / name, shipped / name)


def measure(part: Part, count: int, log: Callable[[str], None] = print, seed: int = 1) -> None:
    """Log the figures of the published pair as JSON; the seed is fixed once and for all."""
    figures = {"cost": decode_cost(MODELS)}
    small, large = (Author(MODELS / name) for name in ("small", "large"))
    log(json.dumps(figures | report(small, large, part, seed, count), indent=2))
