"""The large model's own answers to training problems, for those that learn from them.

The small model is aligned with them, and the drafters are trained on them: right or wrong as they
are, since what is learnt is the large model's choice of words.
"""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from deploy.evaluation.builtin.problems import stream
from deploy.lab.pair.batches import TrainingDocument
from deploy.lab.pair.generation import generate
from deploy.lab.pair.harvest import Author
from deploy.lab.pair.noise import disturb
from orchestrator.types import Sampling
from workers.model.target import Target
from workers.speculation.decode import Decoder
from workers.speculation.vanilla import Vanilla

CHAIN_TOKENS = 256
"""A thought and its answer are shorter; a longer one does not end and is left out."""
PROMPT_TOKENS = 256
BATCH = 48
WRITTEN_AT_ONCE = 960
"""Chains are written out so many at a time, of which a batch is being decoded."""


def write_chains(
    large: Path, out: Path, count: int, seed: int, log: Callable[[str], None] = print,
    *, temperature: float = 0.0,
) -> Path:  # fmt: skip
    """The large model's answers to `count` training problems: `[prompt ids, reply ids]` a line.

    Replies are the ids that the model wrote, up to its end of turn; none is encoded anew.
    """
    author, source = Author(large), stream("train", seed)
    rng = random.Random(f"align/{seed}")
    target = Target(author.model, slots=BATCH, max_len=PROMPT_TOKENS + CHAIN_TOKENS)
    decoder = Decoder(target, Vanilla(target))
    out.parent.mkdir(parents=True, exist_ok=True)
    growing = out.with_name(out.name + ".new")
    with gzip.open(growing, "wt") as file:
        for done in range(0, count, WRITTEN_AT_ONCE):
            log(f"chains: {done} of {count}")
            problems = islice(source, min(WRITTEN_AT_ONCE, count - done))
            prompts = [author.opening(disturb(problem.question, rng)) for problem in problems]
            prompts = [prompt for prompt in prompts if len(prompt) <= PROMPT_TOKENS]
            sampling = Sampling(temperature, seed=seed * count + done)
            replies = generate(
                decoder, prompts, CHAIN_TOKENS, sampling=sampling, stop_token_ids=[author.end]
            )
            for prompt, reply in zip(prompts, replies, strict=True):
                if reply[-1:] == [author.end]:
                    file.write(json.dumps([prompt, reply]) + "\n")
    growing.replace(out)
    return out


def fresh_chains(
    large: Path, out: Path, count: int, seed: int, log: Callable[[str], None] = print,
    *, temperature: float = 0.0,
) -> Path:  # fmt: skip
    """The chains in `out`: those written since the model was trained, or else new ones."""
    weights = large / "model.safetensors"
    if not out.exists() or out.stat().st_mtime_ns < weights.stat().st_mtime_ns:
        write_chains(large, out, count, seed, log, temperature=temperature)
    return out


def read_chains(path: Path) -> list[TrainingDocument]:
    """The chains of a file as documents, in their order."""
    with gzip.open(path, "rt") as file:
        return [document(*json.loads(line)) for line in file]


@dataclass(frozen=True, slots=True)
class Chains:
    """The chains of a file as documents, again and again in another order; picklable.

    The first `skip` of the file are left out.
    """

    path: Path
    skip: int = 0

    def __call__(self, rank: int, world: int, seed: int) -> Iterator[TrainingDocument]:
        documents = read_chains(self.path)[self.skip :]
        if not documents:
            raise ValueError(f"{self.path} holds no chains after the first {self.skip}: write more")
        rng = random.Random(f"chains/{seed * world + rank}")
        while True:
            yield from rng.sample(documents, len(documents))


def in_turn(paths: Sequence[Path], seed: int, skip: int = 0) -> Iterator[TrainingDocument]:
    """A chain of each file in turn, without end; the first `skip` of each file are left out."""
    streams = [Chains(path, skip)(0, 1, seed) for path in paths]
    while True:
        for documents in streams:
            yield next(documents)


def document(prompt: list[int], reply: list[int]) -> TrainingDocument:
    """A chain of which only the reply has a loss."""
    tokens, skipped = prompt + reply, len(prompt) - 1
    size = len(tokens)
    targets = [-100] * skipped + reply + [-100]
    weights = [0.0] * skipped + [1.0] * len(reply) + [0.0]
    return TrainingDocument(tokens, targets, weights, range(size), [0] * size, [-1] * size)
