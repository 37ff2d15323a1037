"""Problem sets by name: a file of JSON lines, generated ones, reasoning-gym's, an external set."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, cast

from deploy.evaluation.evaluate import Problem, Question
from orchestrator.errors import ConfigError

DEFAULT_LIMIT = 50  # problems of a builtin set without --limit
BUILTIN = ("heldout", "dev", "train", "strangers")
FOR_FIGURES = ("builtin:heldout", "builtin:strangers")
"""Sets for figures alone: no policy learns from them or is tuned on them."""
EXTERNAL = Path(__file__).parent / "external.jsonl"
"""The external evaluation set: questions of every family, by an author who had not seen the
generator."""


def for_figures(source: str) -> bool:
    """Return whether `--problems` names a set that is for figures alone."""
    return source in FOR_FIGURES or Path(source).resolve() == EXTERNAL.resolve()


def load_problems(
    source: str, limit: int | None, seed: int, *, answers: bool = True
) -> Sequence[Problem]:
    """Return the problems that `--problems` names; without `answers` a file may lack them.

    Raises:
        ConfigError: names the file and line that cannot be used.
    """
    kind, _, name = source.partition(":")
    if kind == "gym":
        from deploy.evaluation import gym

        names, _, own_seed = name.partition(":")
        if own_seed and not own_seed.isdecimal():
            raise ConfigError(f"{source}: expected gym:NAME or gym:NAME:SEED, the seed a number")
        kinds, number = names.split(","), int(own_seed) if own_seed else seed
        each = -(-(limit or DEFAULT_LIMIT) // len(kinds))
        drawn = [gym.draw(name, number, each) for name in kinds]
        return [one for turn in zip(*drawn, strict=True) for one in turn][: limit or DEFAULT_LIMIT]
    if kind == "builtin":
        if name not in BUILTIN:
            raise ConfigError(f"no builtin problems {name!r}; there are {', '.join(BUILTIN)}")
        if name == "strangers":
            return load_problems(str(EXTERNAL), limit, seed, answers=answers)
        from deploy.evaluation.builtin import problems

        part = cast("Literal['train', 'dev', 'heldout']", name)
        return problems.draw(part, seed, limit or DEFAULT_LIMIT)
    try:
        # `splitlines` would split at Unicode line ends too, which JSON strings may contain.
        lines = Path(source).read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{source}: {getattr(error, 'strerror', None) or error}") from None
    numbered = [(at, line) for at, line in enumerate(lines, 1) if line.strip()]
    questions = [_question(source, at, line, answers) for at, line in numbered]
    if not questions:
        raise ConfigError(f"{source}: no problems in it; write one JSON object a line")
    return questions[:limit]


def _question(source: str, at: int, line: str, answers: bool) -> Question:
    try:
        data = json.loads(line)
        question = data["question"]
        answer = data["answer"] if answers else data.get("answer", "")
    except (ValueError, TypeError, KeyError):
        raise ConfigError(
            f"{source}:{at}: expected a JSON object with question{' and answer' * answers}"
        ) from None
    if not isinstance(question, str) or not isinstance(answer, str | int | float):
        raise ConfigError(f"{source}:{at}: question must be text, answer text or a number")
    level = data.get("level")
    if not isinstance(level, str | int | None):
        raise ConfigError(f"{source}:{at}: level must be a whole number or text")
    return Question(question, str(answer), level)
