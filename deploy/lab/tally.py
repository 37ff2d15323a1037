"""What each policy did on the problems of several recorded evaluations, and what a coin would do.

An evaluation is a folder of `baton eval --recordings`; two of the same problems are one, so that a
policy can be added without measuring the others again.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deploy.evaluation.candidates import BASELINE
from deploy.evaluation.evaluation_log import read
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
    judged: int = 0
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
            if "recording" in row:
                one.judged += judge_tokens(folder / row["recording"])
    return list(found.values())


def judge_tokens(path: Path) -> int:
    """Tokens that were computed to judge drafts, over one recorded request."""
    return sum(_judge_tokens(json.loads(line)) for line in path.read_text("utf-8-sig").splitlines())


def _judge_tokens(data: Any) -> int:
    """The same of a line: plain JSON, since it may hold actions of other versions."""
    if isinstance(data, list):
        return sum(map(_judge_tokens, data))
    if not isinstance(data, dict):
        return 0
    if data.get("$") in ("Classification", "Verification"):
        usage = data.get("usage", {})
        return int(usage.get("prompt", 0) - usage.get("cached", 0))
    return sum(map(_judge_tokens, data.values()))


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
