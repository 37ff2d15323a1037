"""The wrong steps and the reflections that a model wrote, and their file."""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from deploy.evaluation.builtin.sketch import GeneratedProblem


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


LINE = TypeAdapter(Mistakes)


def load_mistakes(path: Path) -> list[Mistakes]:
    """Read a file written by `harvest`."""
    with gzip.open(path, "rb") as file:
        return [LINE.validate_json(line) for line in file]
