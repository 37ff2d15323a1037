"""The large model's answers to training problems, right or wrong: drafters learn its words."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from deploy.evaluation.builtin.problems import stream
from deploy.lab.pair.batches import TrainingDocument
from deploy.lab.pair.harvest import Author
from deploy.lab.pair.noise import disturb
from orchestrator.types import Sampling

CHAINS = 8_000
"""Problems of a file."""
CHAIN_TOKENS = 256
"""A longer thought and answer do not end and are left out."""
PROMPT_TOKENS = 256
WRITTEN_AT_ONCE = 960
"""Chains are written to the file in such blocks, decoded a batch at a time."""
KINDS = {"chains": (2, 0.0), "own-greedy": (3, 0.0), "own-sampled": (4, 1.0)}
"""File -> the seed of its problems, and the temperature."""


def written(large: Path, runs: Path, kind: str, log: Callable[[str], None]) -> Path:
    """The file of a kind of chains; written if it does not exist."""
    out = runs / f"{kind}.jsonl.gz"
    if not out.exists():
        write_chains(large, out, CHAINS, *KINDS[kind], log)
    return out


def write_chains(
    large: Path, out: Path, count: int, seed: int, temperature: float, log: Callable[[str], None]
) -> None:
    """Write the large model's answers to `count` training problems.

    A line is `[prompt ids, reply ids]`; the reply ends with the end of the turn.
    """
    author, source = Author(large), stream("train", seed)
    rng = random.Random(f"align/{seed}")
    out.parent.mkdir(parents=True, exist_ok=True)
    growing = out.with_name(out.name + ".new")
    with gzip.open(growing, "wt") as file:
        for done in range(0, count, WRITTEN_AT_ONCE):
            log(f"chains: {done} of {count}")
            problems = islice(source, min(WRITTEN_AT_ONCE, count - done))
            prompts = [author.opening(disturb(problem.question, rng)) for problem in problems]
            prompts = [prompt for prompt in prompts if len(prompt) <= PROMPT_TOKENS]
            sampling = Sampling(temperature, seed=seed * count + done)
            replies = author.write(prompts, CHAIN_TOKENS, sampling)
            for prompt, reply in zip(prompts, replies, strict=True):
                if reply[-1:] == [author.end]:
                    file.write(json.dumps([prompt, reply]) + "\n")
    growing.replace(out)


def in_turn(paths: Sequence[Path], seed: int) -> Iterator[TrainingDocument]:
    """A chain of each file in turn, without end, each file in random order."""
    streams = [_shuffled(path, seed) for path in paths]
    while True:
        for documents in streams:
            yield next(documents)


def _shuffled(path: Path, seed: int) -> Iterator[TrainingDocument]:
    with gzip.open(path, "rt") as file:
        documents = [document(*json.loads(line)) for line in file]
    if not documents:
        raise ValueError(f"{path} holds no chains")
    rng = random.Random(f"chains/{seed}")
    while True:
        yield from rng.sample(documents, len(documents))


def document(prompt: list[int], reply: list[int]) -> TrainingDocument:
    """A chain of which the reply alone has a loss."""
    tokens, skipped = prompt + reply, len(prompt) - 1
    size = len(tokens)
    targets = [-100] * skipped + reply + [-100]
    weights = [0.0] * skipped + [1.0] * len(reply) + [0.0]
    return TrainingDocument(tokens, targets, weights, range(size), [0] * size, [-1] * size)
