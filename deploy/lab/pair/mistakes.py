"""The wrong steps and the reflections that a model wrote, and their file."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from pathlib import Path

from deploy.evaluation.builtin.problems import Fact, GeneratedProblem


@dataclass(frozen=True, slots=True)
class Reflection:
    """What a model wrote about a step: step number `index`, as it was `said`, and the reflection.

    `right`: the reflection states that step's fact.
    """

    index: int
    said: str
    text: str
    right: bool


@dataclass(frozen=True, slots=True)
class Mistakes:
    """A problem and the wrong steps that a model really wrote: step index -> text."""

    problem: GeneratedProblem
    greedy: dict[int, str]
    sampled: dict[int, str]
    reflections: list[Reflection]


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
