"""The recipe of the embedded pair, stage by stage: `baton train` runs it.

    tokenizer   learn the merges from training texts
    novice      a short-trained small model, whose mistakes teach error detection
    harvest     its wrong steps on training problems, marked by the checker
    small       the small model, with reflection on its own mistakes
    large       the large model, with reflection and the judge's turn
    control     the small model trained for as many tokens as the large one
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Tokenizer

from workers.models.documents import Writer, texts
from workers.models.harvest import harvest, load_mistakes
from workers.models.trainer import Document, Recipe, train
from workers.models.vocabulary import train_tokenizer

RUNS = Path("runs")

NOVICE = Recipe(layers=2, width=64, tokens=8_000_000, batch_tokens=4096)
SMALL = Recipe(layers=2, width=64, tokens=12_000_000, batch_tokens=4096, seed=1)
LARGE = Recipe(layers=10, width=192, tokens=60_000_000, batch_tokens=4096, seed=2, flag_layer=8)


class Documents:
    """The documents of one stage; each process reads a stream of its own."""

    def __init__(self, *, judge: bool, mistakes: Path | None) -> None:
        self.judge, self.mistakes = judge, mistakes

    def __call__(self, rank: int, world: int, seed: int) -> Iterator[Document]:
        known = load_mistakes(self.mistakes) if self.mistakes else None
        tokenizer = Tokenizer.from_file(str(RUNS / "tokenizer" / "tokenizer.json"))
        writer = Writer(tokenizer, judge=self.judge, mistakes=known)
        return writer.documents("train", seed * world + rank)


def run(stage: str, minutes: float | None = None, resume: bool = False) -> None:
    mistakes = RUNS / "mistakes.jsonl.gz"
    tokenizer = RUNS / "tokenizer"
    if stage == "tokenizer":
        train_tokenizer(texts(0, 40_000), tokenizer)
    elif stage == "harvest":
        harvest(RUNS / "novice", mistakes, 100_000, 0, lambda n, m: print(n, m, flush=True))
    else:
        recipe = {"novice": NOVICE, "small": SMALL, "large": LARGE}[stage]
        if minutes:
            from dataclasses import replace

            recipe = replace(recipe, minutes=minutes)
        documents = Documents(judge=stage == "large", mistakes=None if stage == "novice" else mistakes)
        train(recipe, documents, RUNS / stage, tokenizer, resume)


if __name__ == "__main__":
    run(sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else None, "resume" in sys.argv)
