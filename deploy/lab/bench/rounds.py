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
from deploy.lab.bench.candidates import BASELINE, DecodingCandidate, TurnResult
from deploy.lab.bench.turn_log import TurnLog

MOST_WARM: Final = 40
Numbers = NDArray[np.float64]
Row = dict[str, Any]


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

    def sums(self, count: Callable[[TurnResult], float]) -> Numbers:
        """[groups] sums over the rounds."""
        return np.array([sum(map(count, group)) for group in self.works], float)

    @property
    def emitted(self) -> Numbers:
        return self.sums(lambda work: work.emitted)

    @property
    def rounds(self) -> Numbers:
        return self.sums(lambda work: work.rounds)


def take_turns(
    candidates: Sequence[DecodingCandidate],
    groups: Sequence[Sequence[list[int]]],
    rounds: int,
    temperature: float,
    seed: int,
    advance: Callable[[str], None],
    log: TurnLog | None = None,
) -> list[Turns]:
    """Each candidate `rounds` times on each group, after turns to warm up.

    One turn is enough, but for a method that is still measuring what is fastest here. Turns that
    the log has are not taken again.
    """
    log = log or TurnLog(None, {})
    case = (len(groups[0]), temperature)
    turns = [Turns(candidate, [[] for _ in groups]) for candidate in candidates]
    finished = [log.results(case, turn) for turn in range(rounds * len(groups))]
    for candidate in candidates:
        advance(f"{candidate.entry.label}, warming up")
        for turn in range(MOST_WARM if None in finished else 0):
            candidate.run(groups[-1 - turn % len(groups)], temperature, seed)
            if candidate.converged:
                break
    for turn, results in enumerate(finished):
        first, group = turn % len(turns), turn % len(groups)
        where = f"prompts {group + 1} of {len(groups)}, round {turn // len(groups) + 1} of {rounds}"
        results = results or {}
        missing = not results
        for one in turns[first:] + turns[:first]:
            label = one.candidate.entry.label
            advance(f"{label}, {where}")
            if missing:
                results[label] = one.candidate.run(
                    groups[group], temperature, seed + 1 + turn * len(groups[0])
                )
            one.works[group].append(results[label])
        if missing:
            log.add(case, turn, results)
    return turns


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure with its interval."""

    value: float
    low: float
    high: float

    def keys(self, name: str) -> Row:
        return {name: self.value, f"{name}_low": self.low, f"{name}_high": self.high}


def estimate(
    above: tuple[Numbers, Numbers], below: tuple[Numbers, Numbers] | None = None
) -> Estimate:
    """Ratio of two sums over groups, or of two such ratios."""
    size = len(above[0])

    def ratio(pair: tuple[Numbers, Numbers], chosen: Places) -> Any:
        return pair[0][chosen].sum(-1) / np.maximum(pair[1][chosen].sum(-1), 1e-12)

    def figure(chosen: Places) -> Any:
        return ratio(above, chosen) / (1.0 if below is None else ratio(below, chosen))

    return Estimate(float(figure(np.arange(size))), *bootstrap(size, figure))


def speed(turns: Turns) -> tuple[Numbers, Numbers]:
    """Tokens and their seconds, group by group, every group counting alike."""
    seconds = turns.seconds_per_token
    return np.ones_like(seconds), seconds


def rows(turns: Sequence[Turns], temperature: float, streams: int) -> list[Row]:
    """A row for each candidate; of assisted generation the best alone.

    `over_NAME` is the ratio of tokens a second to that candidate's.
    """
    named = {one.candidate.entry.label: one for one in turns}
    base = named[BASELINE]
    peers: dict[str, Turns] = {"vanilla": base}
    if "hf-generate" in named:
        peers["hf_generate"] = named["hf-generate"]
    assisted = [one for one in turns if one.candidate.entry.method == "hf-assisted"]
    if assisted:
        peers["hf_assisted"] = min(assisted, key=lambda one: float(one.seconds_per_token.sum()))
    table = []
    for one in turns:
        if one in assisted and one is not peers["hf_assisted"]:
            continue
        row = _row(one, base, temperature, streams)
        for name, peer in peers.items():
            row |= estimate(speed(one), speed(peer)).keys(f"over_{name}")
        row["ratio"] = row["over_vanilla"]
        if one in assisted:
            row["tried"] = {
                str(other.candidate.entry.parameters["drafts"]): estimate(
                    speed(other), speed(base)
                ).value
                for other in assisted
            }
        table.append(row)
    return table


def _row(one: Turns, base: Turns, temperature: float, streams: int) -> Row:
    candidate, works = one.candidate, [work for group in one.works for work in group]
    entry = candidate.entry
    drafted = sum(work.drafted or 0 for work in works)
    same = (
        identical(one, base)
        if temperature == 0 and candidate.dtype == base.candidate.dtype
        else None
    )
    prompts = sum(len(group[0].outputs) for group in one.works)
    return {
        "method": entry.method,
        "label": entry.label,
        "parameters": dict(entry.parameters),
        "lossless": candidate.lossless,
        "dtype": candidate.dtype,
        "temperature": temperature,
        "streams": streams,
        **estimate(speed(one)).keys("tokens_per_s"),
        **estimate((one.emitted, one.rounds)).keys("mean_acceptance_length"),
        "target_passes": sum(work.passes for work in works) / sum(map(len, one.works)),
        "passes_per_token": sum(w.passes for w in works) / sum(w.tokens for w in works),
        "acceptance_rate": sum(w.accepted or 0 for w in works) / drafted if drafted else None,
        "drafted_per_round": drafted / max(1, sum(work.rounds for work in works)),
        "identical": None if same is None else same / prompts,
        "identical_prompts": same,
        "prompts": prompts,
    }


def identical(one: Turns, base: Turns) -> int:
    """Prompts whose outputs equal plain decoding's in every round."""
    count = 0
    for mine, theirs in zip(one.works, base.works, strict=True):
        for at, expected in enumerate(theirs[0].outputs):
            count += all(work.outputs[at] == expected for work in (*mine, *theirs))
    return count


def right(turns: Turns, is_right: Callable[[int, list[int]], bool]) -> Estimate:
    """The share of right outputs; `is_right` takes a prompt's number and an output."""
    right_counts, totals, first = [], [], 0
    for group in turns.works:
        grades = [is_right(first + i, out) for one in group for i, out in enumerate(one.outputs)]
        right_counts.append(sum(grades))
        totals.append(len(grades))
        first += len(group[0].outputs)
    return estimate((np.array(right_counts, float), np.array(totals, float)))
