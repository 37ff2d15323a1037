"""Statistics of a sample: means, quantiles, and confidence intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Z: Final = 1.959964  # of a 95 % interval
RESAMPLES: Final = 2000
Places = NDArray[np.int64]


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def quantile(values: Sequence[float], share: float) -> float:
    return float(np.quantile(values, share)) if values else 0.0


def wilson(right: int, count: int) -> tuple[float, float]:
    """Return a proportion's 95 % interval (Wilson's score interval)."""
    if not count:
        return 0.0, 1.0
    share, z2 = right / count, Z * Z
    middle = (share + z2 / (2 * count)) / (1 + z2 / count)
    half = Z / (1 + z2 / count) * math.sqrt(share * (1 - share) / count + z2 / (4 * count * count))
    return max(0.0, middle - half), min(1.0, middle + half)


def paired(ours: Sequence[bool], theirs: Sequence[bool]) -> tuple[float, float, float]:
    """Return our accuracy minus theirs on the same problems, a fraction, with its 95 % interval.

    One problem is added to each kind of disagreement (Bonett and Price 2012), which keeps the
    interval's coverage if nearly all problems agree.
    """
    count = len(ours)
    won = sum(a and not b for a, b in zip(ours, theirs, strict=True))
    lost = sum(b and not a for a, b in zip(ours, theirs, strict=True))
    if not count:
        return 0.0, -1.0, 1.0
    up, down = (won + 1) / (count + 2), (lost + 1) / (count + 2)
    half = Z * math.sqrt((up + down - (up - down) ** 2) / (count + 2))
    low, high = max(-1.0, up - down - half), min(1.0, up - down + half)
    return (won - lost) / count, low, high


def ratio_of_sums(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of sum(ours) / sum(theirs) over paired measurements of at least 0.

    Without measurements it is (0, 0).
    """
    if not sum(theirs):
        return 0.0, 0.0
    above, below = np.array(ours, float), np.array(theirs, float)
    return bootstrap(
        len(above), lambda picks: above[picks].sum(-1) / np.maximum(below[picks].sum(-1), 1e-12)
    )


def bootstrap(count: int, figure: Callable[[Places], Any]) -> tuple[float, float]:
    """Return the 95 % interval of a figure over `count` measurements, by the percentile bootstrap.

    `figure` gets the indices of each sample's measurements, [samples, count], which are the same at
    every call, and returns the figure of each sample.
    """
    picks = np.random.default_rng(0).integers(count, size=(RESAMPLES, count))
    low, high = np.quantile(figure(picks), (0.025, 0.975))
    return float(low), float(high)
