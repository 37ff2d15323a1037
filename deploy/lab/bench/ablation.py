"""What FSPAD's additions gain: its heads beside those of its ablation, over several seeds.

A head is trained from chance, so one pair of heads shows little: seeds are drawn in the bootstrap
like prompts are, for both variants apart, since a seed of one has nothing to do with the other's.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from deploy.lab.bench.rounds import RESAMPLES, Numbers, Row, Turns
from workers.speculation.feature_head import VARIANTS


def ablations(turns: Sequence[Turns], temperature: float) -> list[Row]:
    """A row for both variants wherever several heads of both took turns with trees of one shape;
    accepted drafts a round.

    `difference` is FSPAD's accepted drafts less its ablation's.
    """
    ours, ablation = VARIANTS
    sides: dict[tuple[int, ...], dict[str, list[Turns]]] = {}
    for one in turns:
        if one.candidate.entry.method == ours:
            entry = one.candidate.entry
            shape = tuple(entry.parameter(name) for name in ("depth", "width", "nodes"))
            side = sides.setdefault(shape, {})
            side.setdefault(entry.parameter("variant"), []).append(one)
    rows = []
    for (depth, *_), both in sides.items():
        if min(len(both.get(name, [])) for name in VARIANTS) < 2:
            continue
        drawn = {name: _resampled(both[name], seed) for seed, name in enumerate(VARIANTS)}
        values = {name: _accepted(both[name]) for name in VARIANTS}
        for name in VARIANTS:
            low, high = np.quantile(drawn[name], (0.025, 0.975))
            row: Row = {
                "variant": name,
                "temperature": temperature,
                "depth": depth,
                "seeds": [_accepted([one]) for one in both[name]],
                "accepted": values[name],
                "accepted_low": float(low),
                "accepted_high": float(high),
                "below_cap": depth - values[name],
            }
            if name == ours:
                low, high = np.quantile(drawn[ours] - drawn[ablation], (0.025, 0.975))
                row |= {
                    "difference": values[ours] - values[ablation],
                    "difference_low": float(low),
                    "difference_high": float(high),
                }
            rows.append(row)
    return rows


def _accepted(side: Sequence[Turns]) -> float:
    """Accepted drafts a round, of all heads together; the bonus token is not one."""
    emitted = sum(float(one.emitted.sum()) for one in side)
    rounds = sum(float(one.rounds.sum()) for one in side)
    return emitted / max(rounds, 1) - 1


def _resampled(side: Sequence[Turns], seed: int) -> Numbers:
    """[RESAMPLES] the same, of drawn heads on drawn prompts: the same prompts for every side."""
    emitted, rounds = np.stack([s.emitted for s in side]), np.stack([s.rounds for s in side])
    heads, groups = emitted.shape
    prompts = np.random.default_rng(0).integers(0, groups, (RESAMPLES, 1, groups))
    chosen = np.random.default_rng(1 + seed).integers(0, heads, (RESAMPLES, heads, 1))
    above, below = (one[chosen, prompts].sum((1, 2)) for one in (emitted, rounds))
    accepted: Numbers = above / np.maximum(below, 1) - 1
    return accepted
