"""Problem sets by name: a file of JSON lines, generated ones, reasoning-gym's, an external set."""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import ceil
from pathlib import Path
from typing import Literal, cast

from deploy.evaluation.evaluate import Question
from orchestrator.errors import ConfigError

DEFAULT_LIMIT = 50  # problems of a generated set, if --limit is not given
BUILTIN = ("heldout", "dev", "train", "strangers")
FOR_FIGURES = ("builtin:heldout", "builtin:strangers")
"""Sets for figures alone: no policy learns from them or is tuned on them."""
EXTERNAL = Path(__file__).parent / "external.jsonl"
"""The external evaluation set: questions of every family, by an author who had not seen the
generator."""


def for_figures(source: str) -> bool:
    """Return whether `--problems` names a set that nothing may be learned from or tuned on."""
    return source in FOR_FIGURES or Path(source).resolve() == EXTERNAL.resolve()


def load_problems(
    source: str, limit: int | None, seed: int, *, answers: bool = True
) -> Sequence[Question]:
    """Load the problems that `--problems` names; if `answers` is false, a file may omit answers.

    Raises:
        ConfigError: no such set, or a file that cannot be used; names the line, if one is wrong.
    """
    kind, _, name = source.partition(":")
    count = limit or DEFAULT_LIMIT
    if kind == "gym":
        from deploy.evaluation import gym

        names, _, own_seed = name.partition(":")
        if own_seed and not own_seed.isdecimal():
            raise ConfigError(f"{source}: expected gym:NAME or gym:NAME:SEED, the seed a number")
        tasks = names.split(",")
        drawn = [gym.draw(task, int(own_seed or seed), ceil(count / len(tasks))) for task in tasks]
        return [problem for turn in zip(*drawn, strict=True) for problem in turn][:count]
    if kind == "builtin" and name != "strangers":
        from deploy.evaluation.builtin.problems import draw

        if name not in BUILTIN:
            raise ConfigError(f"no builtin problems {name!r}; there are {', '.join(BUILTIN)}")
        made = draw(cast("Literal['train', 'dev', 'heldout']", name), seed, count)
        return [Question(one.question, one.answer) for one in made]
    path = EXTERNAL if kind == "builtin" else Path(source)
    try:
        # Not splitlines(): a JSON string may contain other line separators of Unicode.
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    numbered = [(f"{path}:{at}", line) for at, line in enumerate(lines, 1) if line.strip()]
    if not numbered:
        raise ConfigError(f"{path}: no problems in it; write one JSON object a line")
    return [_question(place, line, answers) for place, line in numbered][:limit]


def _question(place: str, line: str, answers: bool) -> Question:
    try:
        data = json.loads(line)
        question = data["question"]
        answer = data["answer"] if answers else data.get("answer", "")
    except (ValueError, TypeError, KeyError, AttributeError):
        raise ConfigError(
            f"{place}: expected a JSON object with question{' and answer' * answers}"
        ) from None
    if not isinstance(question, str) or not isinstance(answer, str | int | float):
        raise ConfigError(f"{place}: question must be text, answer text or a number")
    return Question(question, str(answer))
