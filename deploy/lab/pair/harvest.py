"""The small model's mistakes: it writes steps and reflections, the checker marks them."""

from __future__ import annotations

import gzip
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

from transformers import AutoTokenizer, PreTrainedTokenizerFast

from deploy.evaluation.builtin.problems import stream
from deploy.evaluation.builtin.sketch import GeneratedProblem
from deploy.lab.pair.generation import generate
from deploy.lab.pair.mistakes import LINE, Mistakes, Reflection
from deploy.lab.pair.steps import DELIMITER, is_right, reflects, step_text
from deploy.lab.pair.vocabulary import ASSISTANT, CLOSE, END, THINK, USER
from orchestrator.errors import ConfigError
from orchestrator.types import Sampling
from workers.engine.loading import load_model
from workers.model.target import Target
from workers.speculation.decode import Decoder
from workers.speculation.vanilla import Vanilla

AT_ONCE, MOST_TOKENS = 48, 1024  # texts, and tokens of each with its prefix
STEP_TOKENS = 28
"""A step of the generated problems is shorter than this."""


class Author:
    """A checkpoint of the pair that writes many texts at once, in float32."""

    def __init__(self, checkpoint: Path) -> None:
        if not (checkpoint / "config.json").is_file():  # transformers would ask a hub for its name
            raise ConfigError(f"{checkpoint}: run the stage {checkpoint.name} first")
        self.tokenizer: PreTrainedTokenizerFast = AutoTokenizer.from_pretrained(checkpoint)
        target = Target(load_model(str(checkpoint)), slots=AT_ONCE, max_len=MOST_TOKENS)
        self.decoder = Decoder(target, {"vanilla": Vanilla(target)})
        ids = range(len(self.tokenizer))
        self.ends_step = [i for i in ids if DELIMITER in self.tokenizer.decode([i])]
        self.end, self.close = map(self.tokenizer.convert_tokens_to_ids, (END, CLOSE))

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
        self, prefixes: Sequence[list[int]], most: int, sampling: Sampling, ends: Sequence[int] = ()
    ) -> list[list[int]]:
        """Continue each prefix to the end of the turn, to one of `ends`, or by `most` tokens."""
        stops = [self.end, *ends]
        return generate(self.decoder, prefixes, most, sampling=sampling, stop_token_ids=stops)


StepPlace = tuple[GeneratedProblem, int, list[str]]
"""A problem, the number of a step, and the right steps before it with their delimiters."""


def step_places(problem: GeneratedProblem, rng: random.Random) -> Iterator[StepPlace]:
    """Every step of a problem, with right ones before it."""
    steps: list[str] = []
    for index in range(len(problem.facts) + 1):
        yield problem, index, list(steps)
        steps.append(step_text(problem, index, rng) + DELIMITER)


def own_steps(author: Author, places: Sequence[StepPlace], sampling: Sampling) -> list[str]:
    """The step that the author writes at each place; empty if it closes its thought at once."""
    prefixes = [author.prefix(problem, steps) for problem, _, steps in places]
    ends = [*author.ends_step, author.close]
    texts = map(author.tokenizer.decode, author.write(prefixes, STEP_TOKENS, sampling, ends))
    return [text.replace(CLOSE, "").replace(END, "").strip() for text in texts]


def harvest(checkpoint: Path, out: Path, count: int, seed: int, log: Callable[[str], None]) -> None:
    """Let the model write every step of `count` problems, greedily and sampled; keep its mistakes.

    Wrong steps are kept, and reflections, right and wrong, with their step. Problems without any
    are kept too, so that their share stays natural.
    """
    author, source = Author(checkpoint), stream("train", seed)
    rng = random.Random(f"harvest/{seed}")
    out.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(out, "wb") as file:
        for done in range(0, count, 64):
            problems = list(islice(source, 64))
            places = [place for problem in problems for place in step_places(problem, rng)]
            rows = {p.question: Mistakes(p, {}, {}, []) for p in problems}
            for temperature in (0.0, 0.9):
                sampling = Sampling(temperature, seed=1000 * (seed * count + done))
                _collect(author, places, sampling, rows)
            for row in rows.values():
                file.write(LINE.dump_json(row) + b"\n")
            if done % 1280 == 0:
                log(f"harvest: {done} of {count} problems")


def _collect(
    author: Author,
    places: Sequence[StepPlace],
    sampling: Sampling,
    rows: Mapping[str, Mistakes],
    *,
    reflections_only: bool = False,
) -> None:
    """Add what the author writes at each place to the row of its problem."""
    after_wrong: list[StepPlace] = []
    written = own_steps(author, places, sampling)
    for (problem, index, steps), text in zip(places, written, strict=True):
        row, right = rows[problem.question], is_right(problem, index, text)
        if reflects(text):
            if index:
                said = steps[-1].removesuffix(DELIMITER)
                row.reflections.append(Reflection(index - 1, said, text, right))
        elif text and not right and not reflections_only:
            (row.greedy if sampling.is_greedy else row.sampled)[index] = text
            if index < len(problem.facts):
                after_wrong.append((problem, index + 1, [*steps, text + DELIMITER]))
    if after_wrong:
        _collect(author, after_wrong, sampling, rows, reflections_only=True)
