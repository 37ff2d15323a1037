"""Turns on the same prompts, and what they measure: tokens a second, ratios, acceptance.

Every candidate takes its turn on a group of prompts before the next group comes, and the order
rotates, so that a machine that warms up or slows down treats all alike. Intervals are of 95 %, by a
bootstrap over the groups in which both sides of a ratio are drawn together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from deploy.evaluation.intervals import Places, bootstrap
from deploy.evaluation.summary import Row
from deploy.lab.bench.candidates import BASELINE, DecodingCandidate, TurnResult

MOST_WARM: Final = 40
Numbers = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Turns:
    """The results of one candidate: `works[group][round]`."""

    candidate: DecodingCandidate
    works: list[list[TurnResult]]

    @property
    def seconds_per_token(self) -> Numbers:
        """[groups] medians over the rounds."""
        return np.array(
            [np.median([work.seconds / work.tokens for work in group]) for group in self.works]
        )

    def sums(self, name: str) -> Numbers:
        """[groups] sums over the rounds of a count of `TurnResult`."""
        return np.array([sum(getattr(one, name) for one in group) for group in self.works], float)


def take_turns(
    candidates: Sequence[DecodingCandidate],
    groups: Sequence[Sequence[list[int]]],
    rounds: int,
    temperature: float,
    seed: int,
    advance: Callable[[str], None],
) -> list[Turns]:
    """Run each candidate `rounds` times on each group, after turns to warm up.

    One turn is enough, but for a method that is still measuring what is fastest here.
    """
    turns = [Turns(candidate, [[] for _ in groups]) for candidate in candidates]
    for candidate in candidates:
        advance(f"{candidate.entry.label}, warming up")
        for turn in range(MOST_WARM):
            candidate.run(groups[-1 - turn % len(groups)], temperature, seed)
            if candidate.converged:
                break
    for turn in range(rounds * len(groups)):
        first, group = turn % len(turns), turn % len(groups)
        place = f"prompts {group + 1} of {len(groups)}, round {turn // len(groups) + 1} of {rounds}"
        for one in turns[first:] + turns[:first]:
            advance(f"{one.candidate.entry.label}, {place}")
            draws = seed + 1 + turn * len(groups[0])
            one.works[group].append(one.candidate.run(groups[group], temperature, draws))
    return turns


def estimate(
    name: str,
    above: tuple[Numbers, Numbers],
    below: tuple[Numbers, Numbers] | None = None,
) -> Row:
    """The ratio of two sums over groups, or of two such ratios, with its interval: three keys."""
    size = len(above[0])

    def ratio(pair: tuple[Numbers, Numbers], chosen: Places) -> Any:
        return pair[0][chosen].sum(-1) / np.maximum(pair[1][chosen].sum(-1), 1e-12)

    def figure(chosen: Places) -> Any:
        return ratio(above, chosen) / (1.0 if below is None else ratio(below, chosen))

    low, high = bootstrap(size, figure)
    return {name: float(figure(np.arange(size))), f"{name}_low": low, f"{name}_high": high}


def speed(turns: Turns) -> tuple[Numbers, Numbers]:
    """Tokens and their seconds, group by group, every group counting alike."""
    seconds = turns.seconds_per_token
    return np.ones_like(seconds), seconds


def rows(
    turns: Sequence[Turns],
    temperature: float,
    streams: int,
    is_right: Callable[[int, list[int]], bool],
) -> list[Row]:
    """A row for each candidate; `is_right` takes a prompt's number and an output."""
    base = next(one for one in turns if one.candidate.entry.policy == BASELINE)
    return [_row(one, base, temperature, streams, is_right) for one in turns]


def _row(
    one: Turns,
    base: Turns,
    temperature: float,
    streams: int,
    is_right: Callable[[int, list[int]], bool],
) -> Row:
    candidate, works = one.candidate, [work for group in one.works for work in group]
    drafted = sum(work.drafted for work in works)
    right = [
        is_right(number * streams + at, output)
        for number, group in enumerate(one.works)
        for work in group
        for at, output in enumerate(work.outputs)
    ]
    alike = temperature == 0 and candidate.dtype == base.candidate.dtype
    return {
        "method": candidate.entry.policy,
        "label": candidate.entry.label,
        "parameters": candidate.entry.params,
        "lossless": candidate.lossless,
        "dtype": candidate.dtype,
        "temperature": temperature,
        "streams": streams,
        **estimate("tokens_per_s", speed(one)),
        **estimate("ratio", speed(one), speed(base)),
        **estimate("mean_acceptance_length", (one.sums("emitted"), one.sums("rounds"))),
        "target_passes": sum(work.passes for work in works) / len(works),
        "acceptance_rate": sum(work.accepted for work in works) / drafted if drafted else None,
        "identical": identical(one, base) if alike else None,
        "right": sum(right) / len(right),
        "prompts": streams * len(one.works),
    }


def identical(one: Turns, base: Turns) -> float:
    """The share of prompts whose outputs equal plain decoding's in every round."""
    same = [
        all(work.outputs[at] == expected for work in (*mine, *theirs))
        for mine, theirs in zip(one.works, base.works, strict=True)
        for at, expected in enumerate(theirs[0].outputs)
    ]
    return sum(same) / len(same)
