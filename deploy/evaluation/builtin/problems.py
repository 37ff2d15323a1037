"""Generated problems whose every reasoning step can be checked.

A problem is a question, an integer answer and the reference steps, each one arithmetic fact. Its
`key` is the normalised expression of its numbers and operations, the same for every wording. The
key's hash alone decides the part (`part_of`): one fifth is held out, one fifth is for development,
the rest is for training. A calculation that training has in another notation is not drawn as held
out (`shared_forms`).
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterator
from typing import Literal

from deploy.evaluation.builtin.calculations import (
    arithmetic,
    chain,
    operate,
    remainder,
    sum_of_numbers,
)
from deploy.evaluation.builtin.shared_forms import is_shared, normal_form
from deploy.evaluation.builtin.sketch import GeneratedProblem, Sketch
from deploy.evaluation.builtin.unknowns import one_unknown, two_unknowns
from deploy.evaluation.builtin.word_problems import word_left, word_share, word_total

Part = Literal["train", "dev", "heldout"]
LEVELS = (1, 2, 3, 4, 5)
FAMILIES: dict[str, Callable[[Sketch], GeneratedProblem | None]] = {
    "arithmetic": arithmetic,
    "chain": chain,
    "remainder": remainder,
    "sum": sum_of_numbers,
    "one-unknown": one_unknown,
    "two-unknowns": two_unknowns,
    "operate": operate,
    "word-total": word_total,
    "word-left": word_left,
    "word-share": word_share,
}
"""Functions that draw numbers of the sketch's level and work them out; None if they do not fit."""


def part_of(key: str) -> Part:
    """Return a key's part, the same in every version: by the key's crc32 modulo 5."""
    fifth = zlib.crc32(key.encode()) % 5
    return "heldout" if fifth == 0 else "dev" if fifth == 1 else "train"


def draw(part: Part, seed: int, count: int) -> list[GeneratedProblem]:
    """Return `count` distinct problems of one part from its stream, families and levels in turn.

    Held-out ones are distinct calculations that training has in no notation, so there are fewer of
    the lowest levels.
    """
    problems: list[GeneratedProblem] = []
    seen: set[str] = set()
    for problem in stream(part, seed):
        held_out = part == "heldout"
        mark = normal_form(problem.key) if held_out else problem.question
        if mark not in seen and not (held_out and is_shared(mark)):
            seen.add(mark)
            problems.append(problem)
            if len(problems) == count:
                return problems
    raise AssertionError("the stream of problems never ends")


def stream(part: Part, seed: int) -> Iterator[GeneratedProblem]:
    """Yield an endless, reproducible stream of problems of one part.

    Any ten in a row have every family once and every level twice.
    """
    rng = random.Random(f"{part}/{seed}")
    names = sorted(FAMILIES)
    turn = 0
    while True:
        cycle, place = divmod(turn, len(names))
        name, level = names[place], LEVELS[(cycle + place) % len(LEVELS)]
        turn += 1
        while True:
            problem = FAMILIES[name](Sketch(rng, level))
            if problem is not None and part_of(problem.key) == part:
                break
        yield problem
