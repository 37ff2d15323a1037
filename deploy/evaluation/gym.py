r"""Problems of reasoning-gym (github.com/open-thought/reasoning-gym), drawn by kind and seed.

The prompt asks for the answer in `\boxed{}`. Most kinds have one right answer, which is compared by
value; `deploy.evaluation.gym_answers` checks the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from functools import partial
from typing import Any

from deploy.evaluation.evaluate import Question
from deploy.evaluation.gym_answers import check_of
from deploy.service.extras import want
from orchestrator.errors import ConfigError

FORMAT = "Please reason step by step, and put your final answer within \\boxed{}."
"""The usual words. If asked for the box alone, a small model writes no step to share."""


def draw(kind: str, seed: int, n: int) -> Sequence[Question]:
    """Return the first `n` problems of a kind at a seed.

    Raises:
        ConfigError: the package is not installed, or has no such kind.
    """
    want("eval", f"gym:{kind}", "reasoning_gym")
    from reasoning_gym.factory import DATASETS, create_dataset

    known = DATASETS.keys() - {"composite"}  # needs the names of other kinds
    if kind not in known:
        near = ", ".join(get_close_matches(kind, sorted(known), 5, 0.4)) or "gsm_symbolic"
        raise ConfigError(
            f"reasoning-gym has no problems {kind!r}; names close to it, of {len(known)}: {near}"
        )
    dataset = create_dataset(kind, size=n, seed=seed)
    return [question(kind, dataset[index]) for index in range(n)]


def question(kind: str, entry: dict[str, Any]) -> Question:
    """Return an entry of reasoning-gym as a problem."""
    answer = "" if entry["answer"] is None else str(entry["answer"])
    accepts = None if check_of(kind) is None else partial(_accepts, kind, entry)
    return Question(f"{entry['question'].strip()}\n\n{FORMAT}", answer, accepts)


def _accepts(kind: str, entry: dict[str, Any], answer: str) -> bool:
    check = check_of(kind)
    return check is not None and check(answer, entry)
