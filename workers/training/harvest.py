"""The small model's own mistakes: it writes steps and reflections, the checker marks them."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from workers.training.documents import Mistakes, Reflection
from workers.training.problems import Fact, GeneratedProblem, stream
from workers.training.steps import DELIMITER, is_right, reflects, step_text
from workers.training.vocabulary import ASSISTANT, CLOSE, END, PAD, THINK, USER

STEP_TOKENS = 28
"""A step of the generated problems is shorter than this."""


class Author:
    """A checkpoint of the pair that writes many steps at once (fp32, plain `generate`)."""

    def __init__(self, checkpoint: Path, device: str = "cpu") -> None:
        self.tokenizer: PreTrainedTokenizerFast = AutoTokenizer.from_pretrained(checkpoint)
        self.model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
        self.model.to(device).eval()
        self.device = device
        ids = range(len(self.tokenizer))
        self.ends_step = [i for i in ids if DELIMITER in self.tokenizer.decode([i])]
        self.end, self.close, self.pad = (
            self.tokenizer.convert_tokens_to_ids(token) for token in (END, CLOSE, PAD)
        )

    def prefix(self, problem: GeneratedProblem, steps: Sequence[str]) -> list[int]:
        """Token ids up to where the next step begins; steps carry their delimiter."""
        parts = [self.tokenizer.encode(step, add_special_tokens=False) for step in steps]
        return self.opening(problem.question) + [token for part in parts for token in part]

    def opening(self, question: str) -> list[int]:
        """Token ids up to where the thought begins."""
        head = f"{USER}{question}{END}{ASSISTANT}{THINK}"
        ids: list[int] = self.tokenizer.encode(head, add_special_tokens=False)
        return ids

    def write(
        self, prefixes: Sequence[list[int]], limit: int, *, to_end: bool = False,
        temperature: float = 0.0,
    ) -> list[str]:  # fmt: skip
        """Continue each prefix to the end of its step, or with `to_end` of the turn."""
        continued = self.continued(prefixes, limit, to_end=to_end, temperature=temperature)
        return [self.tokenizer.decode(ids) for ids in continued]

    @torch.inference_mode()
    def continued(
        self, prefixes: Sequence[list[int]], limit: int, *, to_end: bool = False,
        temperature: float = 0.0,
    ) -> list[list[int]]:  # fmt: skip
        """The same as token ids, the one that ended it included."""
        width = max(map(len, prefixes))
        ids = torch.tensor([[self.pad] * (width - len(p)) + p for p in prefixes])
        ends = [self.end] if to_end else [*self.ends_step, self.close, self.end]
        sampling = (
            {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature else {}
        )
        out = self.model.generate(
            ids.to(self.device), attention_mask=(ids != self.pad).to(self.device),
            max_new_tokens=limit, eos_token_id=ends, pad_token_id=self.pad,
            **(sampling or {"do_sample": False}),
        )[:, width:]  # fmt: skip
        return [row[: row.index(self.pad)] if self.pad in row else row for row in out.tolist()]


def positions(
    problem: GeneratedProblem, rng: random.Random
) -> Iterator[tuple[GeneratedProblem, int, list[str]]]:
    """Every step of a problem, with right ones before it."""
    steps: list[str] = []
    for index in range(len(problem.facts) + 1):
        yield problem, index, list(steps)
        steps.append(step_text(problem, index, rng) + DELIMITER)


def own_steps(
    author: Author,
    asked: Sequence[tuple[GeneratedProblem, int, list[str]]],
    temperature: float = 0.0,
) -> list[str]:
    """What the author writes at each position; empty where it closes its thought at once."""
    prefixes = [author.prefix(problem, steps) for problem, _, steps in asked]
    texts = author.write(prefixes, STEP_TOKENS, temperature=temperature)
    return [text.replace(CLOSE, "").replace(END, "").strip() for text in texts]


def harvest(checkpoint: Path, out: Path, count: int, seed: int, log: Callable[[str], None]) -> Path:
    """Ask for every step of `count` problems, greedily and sampled, and what follows wrong ones.

    Wrong steps are kept, and reflections, right and wrong, with the step they are about. Problems
    without any are kept too, so that their share stays the natural one.
    """
    author, rng, source = (
        Author(checkpoint),
        random.Random(f"harvest/{seed}"),
        stream("train", seed),
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(out, "wt") as file:
        for done in range(0, count, 64):
            problems = list(islice(source, 64))
            asked = [place for problem in problems for place in positions(problem, rng)]
            rows = {p.question: Mistakes(p, {}, {}, []) for p in problems}
            for temperature in (0.0, 0.9):
                _note(author, asked, temperature, rows)
            for row in rows.values():
                file.write(json.dumps(asdict(row)) + "\n")
            if done % 1280 == 0:
                log(f"harvest: {done} of {count} problems")
    return out


def _note(
    author: Author,
    asked: Sequence[tuple[GeneratedProblem, int, list[str]]],
    temperature: float,
    rows: Mapping[str, Mistakes],
    *,
    reflections_only: bool = False,
) -> None:
    """Sort what the author writes at each position into the rows of its problems."""
    doubted: list[tuple[GeneratedProblem, int, list[str]]] = []
    written = own_steps(author, asked, temperature)
    for (problem, index, steps), text in zip(asked, written, strict=True):
        row, right = rows[problem.question], is_right(problem, index, text)
        if reflects(text):
            if index:
                said = steps[-1].removesuffix(DELIMITER)
                row.reflections.append(Reflection(index - 1, said, text, right))
        elif text and not right and not reflections_only:
            (row.sampled if temperature else row.greedy)[index] = text
            if index < len(problem.facts):
                doubted.append((problem, index + 1, [*steps, text + DELIMITER]))
    if doubted:
        _note(author, doubted, temperature, rows, reflections_only=True)


def load_mistakes(path: Path) -> list[Mistakes]:
    """Read a file written by `harvest`."""
    mistakes = []
    with gzip.open(path, "rt") as file:
        for line in file:
            row = json.loads(line)
            facts = tuple(Fact(**fact) for fact in row["problem"]["facts"])
            problem = GeneratedProblem(**row["problem"] | {"facts": facts})
            greedy, sampled = (
                {int(index): step for index, step in row[kind].items()}
                for kind in ("greedy", "sampled")
            )
            reflections = [Reflection(**reflection) for reflection in row["reflections"]]
            mistakes.append(Mistakes(problem, greedy, sampled, reflections))
    return mistakes
