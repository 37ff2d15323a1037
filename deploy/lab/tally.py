"""What policies did over several recorded evaluations, and what a coin would do.

An evaluation is a folder of `baton eval --recordings`; two of the same problems are one, so that a
policy can be added without measuring the others again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from deploy.evaluation.candidates import BASELINE
from deploy.evaluation.evaluation_log import read
from deploy.evaluation.intervals import bootstrap, mean, paired, wilson
from deploy.evaluation.summary import SMALL, Row
from orchestrator.errors import ConfigError

ALONE = ("coin", BASELINE, SMALL)
"""Coins of any share; one model alone is one of share 0 or 1."""
Key = tuple[str, int]
"""A problem: the set it is of (`gym:gsm_symbolic:7`) and its number there."""


@dataclass(slots=True)
class Tally:
    """What one policy did: right answers, and tokens that stayed, by author."""

    label: str
    right: dict[Key, bool] = field(default_factory=dict)
    kept: dict[Key, Counter[str]] = field(default_factory=dict)

    @property
    def alone(self) -> bool:
        return self.label.partition(":")[0] in ALONE

    def share_of(self, problems: Iterable[Key]) -> float:
        """The large model's part of the tokens that stayed."""
        kept = sum((self.kept[key] for key in problems), Counter[str]())
        return kept["large"] / max(1, kept["large"] + kept["small"])


def tally(folders: Sequence[Path]) -> list[Tally]:
    """Every policy over several evaluations; of `large-only`, which each of them has, the first.

    Raises:
        ConfigError: two of them hold another policy's answer to one problem.
    """
    found: dict[str, Tally] = {}
    for folder in folders:
        settings, rows = read(folder / "rows.jsonl")
        for row in rows:
            one = found.setdefault(row["policy"], Tally(row["policy"]))
            key = (settings["problems"], row["problem"])
            if key in one.right:
                if row["policy"] == BASELINE:
                    continue
                raise ConfigError(
                    f"{folder}: {row['policy']} answered problem {key[1]} of {key[0]} in another "
                    "folder too; keep one of the two"
                )
            one.right[key], one.kept[key] = row["correct"], Counter()
            for step in row["steps"]:
                one.kept[key][step["author"]] += step["tokens"] * step["accepted"]
    return list(found.values())


def above_coin(one: Tally, tallies: Sequence[Tally]) -> list[float]:
    """By problem, how much more right a policy is than a coin at its share of large tokens.

    The coin is a line between the two nearest ones. Problems are those that all of them answered.
    Empty if nothing lies on one of the sides.
    """
    alone = [coin for coin in tallies if coin.alone and coin.right.keys() & one.right.keys()]
    both = [key for key in one.right if all(key in coin.right for coin in alone)]
    share = one.share_of(both)
    coins = [(coin.share_of(both), number) for number, coin in enumerate(alone)]
    below = [coin for coin in coins if coin[0] <= share]
    above = [coin for coin in coins if coin[0] >= share]
    if not both or not below or not above:
        return []
    (left_share, left), (right_share, right) = max(below), min(above)
    apart = right_share - left_share
    weight = (share - left_share) / apart if apart else 0.0
    lower, upper = alone[left].right, alone[right].right
    return [one.right[key] - (1 - weight) * lower[key] - weight * upper[key] for key in both]


def mean_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of the mean of values from -1 to 1, by a seeded bootstrap.

    As in `paired`, one value is added at each end, so that a few equal values give no certainty.
    """
    if not values:
        return -1.0, 1.0
    drawn = np.array([*values, -1.0, 1.0])
    return bootstrap(len(drawn), lambda picks: drawn[picks].mean(axis=1))


def rows(tallies: Sequence[Tally]) -> list[Row]:
    """One row a policy: right answers, large tokens, and the differences in points.

    `to_large` is the difference to `large-only` on the same problems, `above_coin` to a coin at the
    same share of large tokens; each with its interval of 95 %, and None if it cannot be known.
    """
    base = next((one for one in tallies if one.label == BASELINE), None)
    found = []
    for one in tallies:
        right = sum(one.right.values())
        row: Row = {
            "policy": one.label,
            "problems": len(one.right),
            "accuracy": [right / len(one.right), *wilson(right, len(one.right))],
            "large_share": one.share_of(one.kept),
            "to_large": None,
            "above_coin": None,
        }
        if base is not None and base is not one:
            both = [key for key in one.right if key in base.right]
            ours, theirs = ([of.right[key] for key in both] for of in (one, base))
            row["to_large"] = [*paired(ours, theirs)]
        if not one.alone and (differences := above_coin(one, tallies)):
            row["above_coin"] = [mean(differences), *mean_interval(differences)]
        found.append(row)
    return found
