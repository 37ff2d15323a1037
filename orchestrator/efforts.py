"""How hard a model is to think: the levels that clients ask for, and those that a template has.

A request names one level of OpenAI's scale. A chat template that has levels gets the asked one, or
the nearest that it has. If the template of no model of a policy does, the level is a share of
`max_tokens` that caps the thought. Effort `none` is no thought.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
SCALE: Final[tuple[Effort, ...]] = ("minimal", "low", "medium", "high", "xhigh", "max")
_SHARES: Final[dict[str, float]] = {"minimal": 1 / 8, "low": 1 / 4, "medium": 1 / 2}


@dataclass(frozen=True, slots=True)
class TemplateEfforts:
    """The levels of a chat template.

    Attributes:
        variable: the template's variable for the level.
        levels: those that it has, in the order of `SCALE`.
        strict: whether it has no other way to think; else the levels are steps away from a default,
            which it keeps for a level beyond them.
    """

    variable: str
    levels: tuple[str, ...]
    strict: bool = True

    def nearest(self, asked: str) -> str | None:
        """Return the level that stands for the asked one, of two equally near the higher one; None
        if the template's default does."""
        if asked in self.levels or asked not in SCALE:
            return asked if asked in self.levels else None
        names: tuple[str, ...] = SCALE
        place, places = names.index(asked), list(map(names.index, self.levels))
        if not self.strict and not min(places) < place < max(places):
            return None
        return names[min(places, key=lambda one: (abs(one - place), -one))]


def thought_cap(effort: str, max_tokens: int) -> int | None:
    """Return the cap on a thought, in tokens, of an effort that no template reads."""
    share = _SHARES.get(effort)
    return None if share is None else max(1, int(share * max_tokens))
