"""Assignment of units to arms: a salted hash, the same in every replica and after every restart.

The hash, the ranges and the namespaces are GrowthBook's (docs.growthbook.io/lib/build-your-own,
hash version 2), so its published test cases hold. More coverage moves no unit: an arm's range
begins at the same bucket and ends later.

That hash has 32 bits, so whoever knows some units' arms finds out what it is seeded with. Units are
hidden from it by a keyed hash that is none to be guessed, unless the document names its `salt`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from math import ceil
from typing import Final

from orchestrator.experiments.documents import Experiment, ExperimentState

Range = tuple[float, float]
BUCKETS: Final = 10_000
_OFFSET: Final = 0x811C9DC5
_PRIME: Final = 0x01000193


def fnv1a(text: str) -> int:
    """The 32-bit FNV-1a hash (draft-eastlake-fnv) of a text's UTF-8 bytes."""
    value = _OFFSET
    for byte in text.encode():
        value = ((value ^ byte) * _PRIME) & 0xFFFFFFFF
    return value


def bucket(seed: str, unit: str) -> float:
    """Where a unit lies in [0, 1): one of `BUCKETS` places (GrowthBook's hash version 2)."""
    return fnv1a(str(fnv1a(seed + unit))) % BUCKETS / BUCKETS


def in_group(unit: str, name: str, start: float, end: float) -> bool:
    """Whether a unit lies in an exclusion group's part [start, end) (hash version 1)."""
    return start <= fnv1a(f"{unit}__{name}") % 1000 / 1000 < end


def bucket_ranges(coverage: float, weights: Sequence[float]) -> list[Range]:
    """Each arm's part of [0, 1), which begins at the sum of the weights before it."""
    ranges: list[Range] = []
    start = 0.0
    for weight in weights:
        ranges.append((start, start + coverage * weight))
        start += weight
    return ranges


def choose_variation(at: float, parts: Sequence[Range]) -> int:
    """The index of the range that holds `at`, -1 where none does."""
    return next((i for i, (low, high) in enumerate(parts) if low <= at < high), -1)


@dataclass(frozen=True, slots=True)
class Assignment:
    """A unit's arm; `probability` is that of this arm among all buckets that take part."""

    arm: str
    bucket: float
    probability: float
    forced: bool = False


def assign(experiment: Experiment, state: ExperimentState, unit: str) -> Assignment | None:
    """The arm that answers a unit's requests; None where it takes no part.

    A unit whose arm was stopped takes no part any more: if it moved to another arm, the arms could
    no longer be compared. (A bandit draws anew for every request, and shares them out again.)
    """
    group = experiment.group
    if group is not None and not in_group(unit, group.name, group.start, group.end):
        return None
    weights = current_weights(experiment, state)
    names = list(weights)
    at = bucket(experiment.seed, _hidden(unit, experiment.secret))
    parts = bucket_ranges(state.coverage(experiment), list(weights.values()))
    index = choose_variation(at, parts)
    if index < 0 or names[index] in state.stopped:
        return None
    counts = {
        name: _bucket_count(part)
        for name, part in zip(names, parts, strict=True)
        if name not in state.stopped
    }
    return Assignment(names[index], at, counts[names[index]] / sum(counts.values()))


def _hidden(unit: str, secret: str | None) -> str:
    """What stands for a unit in the hash that chooses its arm."""
    if secret is None:
        return unit
    return blake2b(unit.encode(), key=bytes.fromhex(secret), digest_size=16).hexdigest()


def _bucket_count(part: Range) -> int:
    """How many of the 10,000 buckets lie in a range."""
    low, high = (ceil(round(end * BUCKETS, 6)) for end in part)
    return min(high, BUCKETS) - low


def current_weights(experiment: Experiment, state: ExperimentState) -> Mapping[str, float]:
    """The served arms' current shares, in the document's order; those of a bandit change.

    What a bandit's stopped arm had goes to the others at once, in proportion to theirs.
    """
    if experiment.kind != "bandit":
        return experiment.weights
    weights = experiment.weights if state.weights is None else state.weights
    left = {name: weights.get(name, 0.0) for name in experiment.weights.keys() - state.stopped}
    total = sum(left.values())
    return {name: left.get(name, 0.0) / total if total else 0.0 for name in experiment.weights}


def in_shadow_sample(experiment: Experiment, shadow: str, request: str, share: float) -> bool:
    """Whether a shadow arm answers this request too."""
    return bucket(f"{experiment.seed}:{shadow}", request) < share
