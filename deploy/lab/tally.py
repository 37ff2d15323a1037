"""What each policy did on the problems of several recorded evaluations, and what a coin would do.

An evaluation is a folder of `baton eval --recordings`; two of the same problems are one, so that a
policy can be added without measuring the others again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deploy.evaluation.candidates import BASELINE
from deploy.evaluation.evaluation_log import read
from deploy.evaluation.intervals import mean, mean_interval, paired, wilson
from deploy.evaluation.summary import SMALL
from orchestrator.errors import ConfigError

COIN = "coin"
ALONE = (COIN, BASELINE, SMALL)
"""Coins of any share; one model alone is one of share 0 or 1."""
Key = tuple[str, int]
"""A problem: the set it is of (`gym:gsm_symbolic:7`) and its number there."""


@dataclass(slots=True)
class Tally:
    """What one policy did on all problems."""

    label: str
    right: dict[Key, bool] = field(default_factory=dict)
    ms: dict[Key, float] = field(default_factory=dict)
    base_ms: dict[Key, float] = field(default_factory=dict)
    """What `large-only` took in the same run."""
    kept: dict[Key, Counter[str]] = field(default_factory=dict)
    """Tokens that stayed, by author."""
    failed: int = 0

    @property
    def policy(self) -> str:
        return self.label.partition(":")[0]

    @property
    def accuracy(self) -> float:
        return sum(self.right.values()) / len(self.right)

    @property
    def share(self) -> float:
        """The large model's part of the tokens that stayed."""
        return self.share_of(self.kept)

    def share_of(self, problems: Iterable[Key]) -> float:
        """The same, of some of the problems."""
        kept = sum((self.kept[key] for key in problems), Counter())
        return kept["large"] / max(1, kept["large"] + kept["small"])


def tally(folders: Sequence[Path]) -> list[Tally]:
    """Every policy over several evaluations; of `large-only`, which each of them has, the first.

    Raises:
        ConfigError: two of them hold another policy's answer to one problem.
    """
    found: dict[str, Tally] = {}
    for folder in folders:
        settings, rows = read(folder / "rows.jsonl")
        base = {row["problem"]: row["ms"] for row in rows if row["policy"] == BASELINE}
        for row in rows:
            one = found.setdefault(row["policy"], Tally(row["policy"]))
            key = (settings["problems"], row["problem"])
            if key in one.right and row["policy"] == BASELINE:
                continue
            if key in one.right:
                raise ConfigError(
                    f"{folder}: {row['policy']} answered problem {key[1]} of {key[0]} in another "
                    "folder too; keep one of the two"
                )
            one.right[key], one.ms[key] = row["correct"], row["ms"]
            if row["problem"] in base:
                one.base_ms[key] = base[row["problem"]]
            one.failed += row["error"] is not None
            one.kept[key] = Counter()
            for step in row["steps"]:
                if step["accepted"]:
                    one.kept[key][step["author"]] += step["tokens"]
    return list(found.values())


def above_coin(one: Tally, tallies: Sequence[Tally]) -> list[float]:
    """Of each problem, how much more right a policy is than a coin at its share of large tokens.

    The coin is a line between the two nearest ones; one model alone is a coin of share 0 or 1.
    Problems are those that all of them answered. Empty where nothing lies on one of the sides.
    """
    alone = [
        coin for coin in tallies if coin.policy in ALONE and coin.right.keys() & one.right.keys()
    ]
    both = [key for key in one.right if all(key in coin.right for coin in alone)]
    share = one.share_of(both)
    coins = [
        (coin.share_of(both), number, coin)  # the number, so that no two coins are compared
        for number, coin in enumerate(alone)
    ]
    below = [coin for coin in coins if coin[0] <= share]
    above = [coin for coin in coins if coin[0] >= share]
    if not both or not below or not above:
        return []
    (left_share, _, left), (right_share, _, right) = max(below), min(above)
    apart = right_share - left_share
    weight = (share - left_share) / apart if apart else 0.0
    return [
        one.right[key] - (1 - weight) * left.right[key] - weight * right.right[key] for key in both
    ]


def rows(tallies: Sequence[Tally]) -> list[dict[str, Any]]:
    """One row a policy: right answers, large tokens, and the differences in points.

    `to_large` is the difference to `large-only` on the same problems, `above_coin` to a coin at the
    same share of large tokens; each with its interval of 95 %, and None if it cannot be known.
    """
    base = next((one for one in tallies if one.label == BASELINE), None)
    found = []
    for one in tallies:
        low, high = wilson(sum(one.right.values()), len(one.right))
        row = {
            "policy": one.label,
            "problems": len(one.right),
            "failed": one.failed,
            "accuracy": [one.accuracy, low, high],
            "large_share": one.share,
            "to_large": None,
            "above_coin": None,
        }
        if base is not None and base is not one:
            both = [key for key in one.right if key in base.right]
            compared = paired([one.right[key] for key in both], [base.right[key] for key in both])
            row["to_large"] = [compared.difference, compared.low, compared.high]
        if one.policy not in ALONE and (differences := above_coin(one, tallies)):
            row["above_coin"] = [mean(differences), *mean_interval(differences)]
        found.append(row)
    return found
