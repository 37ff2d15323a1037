r"""Problems of reasoning-gym (github.com/open-thought/reasoning-gym), drawn by kind and seed.

The prompt asks for the answer in `\boxed{}`. An answer is right if the kind's own scorer gives it
all points, or if it is the same number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from deploy.evaluation.evaluate import Question
from orchestrator.errors import ConfigError

FORMAT = "Please reason step by step, and put your final answer within \\boxed{}."
"""The usual words. Asked for the box and nothing else, a small model writes no step to share."""


@dataclass(frozen=True, slots=True)
class GymQuestion(Question):
    """A problem with the scorer of its kind."""

    dataset: Any = field(default=None, compare=False, repr=False)
    entry: Any = field(default=None, compare=False, repr=False)

    def accepts(self, answer: str) -> bool:
        """Whether the kind's scorer gives an answer, without the box, all points."""
        try:
            return bool(self.dataset.score_answer(answer, self.entry) >= 1)
        except Exception:  # a scorer of somebody else's on whatever a model wrote
            return False


def draw(kind: str, seed: int, n: int) -> Sequence[GymQuestion]:
    """The first `n` problems of a kind at a seed.

    Raises:
        ConfigError: the package is not installed, or has no such kind.
    """
    try:
        from reasoning_gym.factory import DATASETS, create_dataset
    except ImportError as error:
        raise ConfigError(
            f"gym:{kind} needs the package reasoning-gym ({error}): install 'baton[gym]'"
        ) from None
    if kind not in DATASETS:
        near = ", ".join(get_close_matches(kind, DATASETS, 5, 0.4)) or "gsm_symbolic"
        raise ConfigError(
            f"reasoning-gym has no problems {kind!r}; names close to it, of {len(DATASETS)}: {near}"
        )
    dataset = create_dataset(kind, size=n, seed=seed)
    return [_question(dataset, dataset[index]) for index in range(n)]


def _question(dataset: Any, entry: dict[str, Any]) -> GymQuestion:
    answer = "" if entry["answer"] is None else str(entry["answer"])
    text = f"{entry['question'].strip()}\n\n{FORMAT}"
    return GymQuestion(text, answer, dataset=dataset, entry=entry)
