"""How often experiments claim what is not so, by simulation.

    python -m tests.lab.false_claims [--experiments 2000]

Every cell simulates experiments in which nothing is to be claimed (arms that are alike, or an arm
at the very limit of its guardrail), looks all along, and counts those in which anything was claimed
at any look. All experiments of a cell are reckoned at once, by sums over the requests so far; what
decides is the service's own code (`difference_bounds`, `mean_bounds`, `proportion_exceeds`,
`sample_ratio`). That the sums are those of the requests, and the claims those
of the reports, is tested in tests/lab/test_false_claims.py.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final

import numpy as np
from scipy.stats import binomtest

from deploy.cli.common import wide_console
from deploy.evaluation.summary import Row
from deploy.evaluation.tables import show
from orchestrator.experiments.samples import EQUAL, Moments, Sample
from orchestrator.experiments.sequential import (
    difference_bounds,
    mean_bounds,
    proportion_exceeds,
    required_units,
    sample_ratio,
)

ALPHA: Final = 0.05
RAIL: Final = 0.01  # the alpha of a guardrail
TUNED: Final = 1000
MIN_UNITS: Final = 100
RAIL_UNITS: Final = 20
CHUNK: Final = 50  # experiments at once
BINARY: Final = (0.0, 1.0)


@dataclass(frozen=True, slots=True)
class Law:
    """Of a request's value: how it is drawn, its mean, its ends where it is bounded."""

    draw: Callable[[np.random.Generator, Any], Any]
    mean: float
    extremes: tuple[float, float] | None = None


def _times(sigma: float) -> Law:
    return Law(lambda random, shape: random.lognormal(0, sigma, shape), float(np.exp(sigma**2 / 2)))


def _events(chance: float) -> Law:
    return Law(lambda random, shape: (random.random(shape) < chance) * 1.0, chance, BINARY)


LAWS: Final = {
    "normal": Law(lambda random, shape: random.normal(5, 1, shape), 5.0),
    "lognormal, sigma 0.6": _times(0.6),
    "lognormal, sigma 1": _times(1.0),
    "events, 95 %": _events(0.95),
    "rare events, 0.5 %": _events(0.005),
}


@dataclass(frozen=True, slots=True)
class Cell:
    """What is simulated; `simulate(random, experiments)` counts those with a false claim.

    `above`: the promise is a power, a rate that is at least `promise`.
    """

    group: str
    name: str
    promise: float
    simulate: Callable[[np.random.Generator, int], int]
    above: bool = False


@dataclass(frozen=True, slots=True)
class Rate:
    """How many of so many experiments claimed something, against the promise."""

    cell: Cell
    claims: int
    experiments: int

    @property
    def interval(self) -> tuple[float, float]:
        """At 95 %, after Clopper and Pearson."""
        low, high = binomtest(self.claims, self.experiments).proportion_ci(0.95, method="exact")
        return float(low), float(high)

    @property
    def kept(self) -> str:
        """Whether the promise was kept: yes, no, or not told (the interval has it inside)."""
        rate, (low, high) = self.claims / self.experiments, self.interval
        if self.cell.above:
            rate, low, high = -rate, -high, -low
        promise = -self.cell.promise if self.cell.above else self.cell.promise
        return "yes" if rate <= promise else "no" if low > promise else "cannot be told"


def run(cell: Cell, experiments: int, seed: int = 0) -> Rate:
    """Simulate one cell."""
    random = np.random.default_rng([seed, *f"{cell.group}/{cell.name}".encode()])
    claims, left = 0, experiments
    while left > 0:
        claims += cell.simulate(random, min(CHUNK, left))
        left -= CHUNK
    return Rate(cell, claims, experiments)


# --- two arms -------------------------------------------------------------------------------------


def moments(
    count: Any, sums: tuple[Any, Any, Any], extremes: tuple[float, float] | None = None
) -> Moments:
    """`Sample.moments` from the number of units and the sums of their values, squares and cubes.

    Sums of values near 0 keep the most digits. The variance is infinite below two units.
    """
    count = np.asarray(count, dtype=float)
    mean, number = sums[0] / np.maximum(count, 1), np.maximum(count, 1)
    if extremes is not None:
        number = count + 2
        sums = tuple(
            total + extremes[0] ** power + extremes[1] ** power
            for power, total in enumerate(sums, start=1)
        )
    first, second, third = (total / number for total in sums)
    spread = np.maximum(second - first**2, 0.0)
    cube = third - 3 * first * second + 2 * first**3
    known = spread > EQUAL * np.maximum(second, np.finfo(float).tiny)  # else it is rounding
    skewness = np.where(known, cube / np.where(known, spread, 1.0) ** 1.5, 0.0)
    if extremes is None:
        spread = np.where(count > 1, spread * number / np.maximum(number - 1, 1), np.inf)
    return Moments(count, mean, spread, skewness)


def at_looks(values: Any, every: int) -> Any:
    """Sums over the requests so far at a look every so many requests, along the last axis."""
    return np.cumsum(values, axis=-1)[..., every - 1 :: every]


def seen_moments(values: Any, arm: Any, every: int, law: Law) -> Moments:
    """An arm's moments at every look; `values` and `arm` have shape (experiments, requests)."""
    near = (values - law.mean) * arm
    sums = (at_looks(near, every), at_looks(near**2, every), at_looks(near**3, every))
    ends = law.extremes
    if ends is not None:
        ends = (ends[0] - law.mean, ends[1] - law.mean)
    found = moments(at_looks(arm, every), sums, ends)
    return Moments(found.count, found.mean + law.mean, found.variance, found.skewness)


def claims_of(arm: Moments, control: Moments, min_units: int) -> tuple[Any, Any]:
    """Whether an arm is said to be above the control, and below, at each look."""
    low, high = difference_bounds(arm, control, ALPHA, TUNED)
    enough = np.minimum(arm.count, control.count) >= min_units
    return enough & (low > 0), enough & (high < 0)


def alike(law: Law, share: float, min_units: int = MIN_UNITS, requests: int = 8000) -> Any:
    """Arms that are alike; a look after every 50 requests."""

    def simulate(random: np.random.Generator, experiments: int) -> int:
        values = law.draw(random, (experiments, requests))
        mine = random.random(values.shape) < share
        above, below = claims_of(
            seen_moments(values, mine, 50, law), seen_moments(values, ~mine, 50, law), min_units
        )
        return int((above | below).any(axis=1).sum())

    return simulate


def unit_sums(units: Any, values: Any, number: int) -> Any:
    """Sums of values by unit; all have shape (experiments, requests), the result (.., units)."""
    rows = np.arange(len(units))[:, None] * number
    flat = np.bincount((rows + units).ravel(), values.ravel(), len(units) * number)
    return flat.reshape(len(units), number)


def ratio_moments(
    numerators: Any, denominators: Any, arm: Any, extremes: tuple[float, float] | None = None
) -> tuple[Moments, Any]:
    """Moments of `linearise`, by experiment, and the linearised values; shapes (.., units)."""
    above, below = numerators * arm, denominators * arm
    count = (below > 0).sum(axis=1)
    ratio = above.sum(axis=1) / np.maximum(below.sum(axis=1), 1)
    mean = below.sum(axis=1) / np.maximum(count, 1)
    apart = (above - ratio[:, None] * below) / np.maximum(mean, 1e-9)[:, None]
    sums = (apart.sum(axis=1), (apart**2).sum(axis=1), (apart**3).sum(axis=1))
    if extremes is not None:  # around the ratio, where the sums are
        found = _pseudo_units(count, sums, ratio, extremes)
    else:
        found = moments(count, sums)
    values = np.where(below > 0, ratio[:, None] + apart, 0.0)
    return Moments(found.count, ratio, found.variance, found.skewness), values


def _pseudo_units(count: Any, sums: Any, mean: Any, ends: tuple[float, float]) -> Moments:
    return moments(count, sums, (ends[0] - mean, ends[1] - mean))  # type: ignore[arg-type]


def users_at_looks(
    random: np.random.Generator, experiments: int, users: int, requests: int, every: int
) -> Iterator[tuple[slice, Any]]:
    """Who sends each request, look by look: few users send most, and new ones come all along."""
    activity = random.lognormal(0, 1, (experiments, users))
    chances = np.cumsum(activity / activity.sum(axis=1, keepdims=True), axis=1)
    drawn = random.random((experiments, requests))
    who = np.stack([np.searchsorted(c, d) for c, d in zip(chances, drawn, strict=True)])
    who = np.minimum(who, users - 1)
    for end in range(every, requests + 1, every):
        yield slice(end - every, end), who[:, end - every : end]


def correlated(share: float, users: int = 2000, requests: int = 8000, every: int = 200) -> Any:
    """Arms that are alike; the unit is the user, and a user's requests have much in common."""

    def simulate(random: np.random.Generator, experiments: int) -> int:
        mood = random.lognormal(0, 0.7, (experiments, users))
        mine = random.random((experiments, users)) < share
        sums = np.zeros((2, experiments, users))
        claimed = np.zeros(experiments, dtype=bool)
        for _, who in users_at_looks(random, experiments, users, requests, every):
            values = np.take_along_axis(mood, who, axis=1) * random.lognormal(0, 0.5, who.shape)
            sums[0] += unit_sums(who, values, users)
            sums[1] += unit_sums(who, np.ones(who.shape), users)
            arms = [ratio_moments(*sums, arm)[0] for arm in (mine, ~mine)]
            above, below = claims_of(arms[0], arms[1], MIN_UNITS)
            claimed |= above | below
        return int(claimed.sum())

    return simulate


def censored_moments(known: Any, cancelled: Any, arm: Any, worst: Any, every: int) -> Moments:
    """An arm's moments where the cancelled requests have the worst time so far (`comparable`)."""
    own = np.where(cancelled, 0.0, known) * arm
    late = at_looks(cancelled & arm, every)
    sums = tuple(at_looks(own**power, every) + late * worst**power for power in (1, 2, 3))
    return moments(at_looks(arm, every), sums)  # type: ignore[arg-type]


def impatient(share: float, faster: float = 1.0, hanging: float = 0.0, requests: int = 8000) -> Any:
    """Clients give up after a patience of their own.

    The arm's requests take `faster` times the control's time, but a part `hanging` of them hangs
    until 30 times the median, when its client gives up; only "faster" is a false claim then.
    """

    def simulate(random: np.random.Generator, experiments: int) -> int:
        shape = (experiments, requests)
        mine = random.random(shape) < share
        times = random.lognormal(0, 0.6, shape) * np.where(mine, faster, 1.0)
        patience = random.lognormal(1.0, 0.5, shape)
        if hanging:
            patience[:] = 30.0
            times = np.where(mine & (random.random(shape) < hanging), 31.0, times)
        cancelled, known = times > patience, np.minimum(times, patience)
        worst = np.maximum.accumulate(known, axis=1)[:, 49::50]
        arm, control = (
            censored_moments(known, cancelled, each, worst, 50) for each in (mine, ~mine)
        )
        above, below = claims_of(arm, control, MIN_UNITS)
        return int((below if hanging else above | below).any(axis=1).sum())

    return simulate


# --- one arm against a limit ----------------------------------------------------------------------


def _stopped(over: Any, count: Any) -> int:
    return int((over & (count >= RAIL_UNITS)).any(axis=1).sum())


def mean_rail(law: Law, at_least: bool = False, requests: int = 2000) -> Any:
    """An arm whose mean is at its limit; a look after every 20 requests."""

    def simulate(random: np.random.Generator, experiments: int) -> int:
        values = law.draw(random, (experiments, requests))
        seen = seen_moments(values, np.ones(values.shape, dtype=bool), 20, law)
        low, high = mean_bounds(seen, RAIL, TUNED)
        return _stopped(high < law.mean if at_least else low > law.mean, seen.count)

    return simulate


def share_rail(limit: float, requests: int = 2000) -> Any:
    """An arm whose share of errors, or of requests beyond a quantile's limit, is at its limit."""

    def simulate(random: np.random.Generator, experiments: int) -> int:
        hits = at_looks(random.random((experiments, requests)) < limit, 20)
        count = np.broadcast_to(np.arange(20, requests + 1, 20), hits.shape)
        return _stopped(proportion_exceeds(hits, count, limit, RAIL), count)

    return simulate


def quantile_over(numerators: Any, denominators: Any, limit: float) -> tuple[Any, Any]:
    """What the guardrail of a quantile says, by experiment, and its units: sums by unit."""
    everybody = np.ones(numerators.shape, dtype=bool)
    found, values = ratio_moments(numerators, denominators, everybody, BINARY)
    whole = np.isin(values, BINARY).all(axis=1)
    exact = proportion_exceeds(values.sum(axis=1), found.count, limit, RAIL)
    return np.where(whole, exact, mean_bounds(found, RAIL, TUNED)[0] > limit), found.count


def correlated_quantile_rail(spread: float, users: int = 1000, requests: int = 4000) -> Any:
    """A p95 at its limit; each user's chance to be slow is drawn from a beta law of mean 5 %.

    `spread` 0: all are alike; near 1: a user is always slow or never.
    """

    def simulate(random: np.random.Generator, experiments: int) -> int:
        size = 1 / spread - 1
        slow = random.beta(0.05 * size, 0.95 * size, (experiments, users))
        sums = np.zeros((2, experiments, users))
        stopped = np.zeros(experiments, dtype=bool)
        for _, who in users_at_looks(random, experiments, users, requests, 100):
            hit = random.random(who.shape) < np.take_along_axis(slow, who, axis=1)
            sums[0] += unit_sums(who, hit * 1.0, users)
            sums[1] += unit_sums(who, np.ones(who.shape), users)
            over, count = quantile_over(sums[0], sums[1], 0.05)
            stopped |= over & (count >= RAIL_UNITS)
        return int(stopped.sum())

    return simulate


def relative_rail(law: Law, share: float, requests: int = 4000) -> Any:
    """`worse_than_control_by: 0` for an arm that is like the control."""

    def simulate(random: np.random.Generator, experiments: int) -> int:
        values = law.draw(random, (experiments, requests))
        mine = random.random(values.shape) < share
        arm, control = (seen_moments(values, each, 20, law) for each in (mine, ~mine))
        low, _ = difference_bounds(arm, control, RAIL, TUNED)
        return _stopped(low > 0, np.minimum(arm.count, control.count))

    return simulate


# --- assignment, power ----------------------------------------------------------------------------


def ratio_mismatch(weights: dict[str, float], units: int = 2000, every: int = 100) -> Any:
    """Arms that get the shares that were intended."""

    def simulate(random: np.random.Generator, experiments: int) -> int:
        wrong = 0
        for _ in range(experiments):
            drawn = random.multinomial(every, list(weights.values()), units // every)
            wrong += any(
                not sample_ratio(dict(zip(weights, map(int, row), strict=True)), weights).ok
                for row in np.cumsum(drawn, axis=0)
            )
        return wrong

    return simulate


def power(law: Law, share: float, relative: float) -> Any:
    """An arm that differs by `relative` of the control's mean, looked at until
    `needed.always_valid` units."""
    known = Sample(law.draw(np.random.default_rng(1), 400_000))
    wanted = relative * law.mean
    needed = required_units(known, known, wanted, share / (1 - share), ALPHA, TUNED)
    assert needed is not None
    units = needed.always_valid

    def simulate(random: np.random.Generator, experiments: int) -> int:
        values = law.draw(random, (experiments, units))
        mine = random.random(values.shape) < share
        values = values + wanted * mine
        every = max(1, units // 100)
        arm, control = (seen_moments(values, each, every, law) for each in (mine, ~mine))
        above, _ = claims_of(arm, control, MIN_UNITS)
        return int(above.any(axis=1).sum())

    return simulate


# --- the table ------------------------------------------------------------------------------------


def cells() -> list[Cell]:
    """Every cell of the table."""
    made = []
    shares = {"50/50": 0.5, "5/95": 0.05}
    two = "two arms that are alike"
    for name, law in LAWS.items():
        for words, share in shares.items():
            few = alike(law, share, 10, 4000)
            made.append(Cell(two, f"{name}, {words}", ALPHA, alike(law, share)))
            made.append(Cell(two, f"{name}, {words}, from ten units", ALPHA, few))
    for words, share in shares.items():
        made.append(Cell(two, f"correlated users, {words}", ALPHA, correlated(share)))
        made.append(Cell(two, f"impatient clients, {words}", ALPHA, impatient(share)))
    hanging = impatient(0.5, faster=0.9, hanging=0.15)
    made.append(Cell("an arm that hangs", "10 % faster, 15 % hang: 'better'", ALPHA, hanging))
    rail = "guardrails, at the limit"
    for name, law in LAWS.items():
        if law.extremes is None:
            made.append(Cell(rail, f"mean at_most, {name}", RAIL, mean_rail(law)))
            made.append(Cell(rail, f"mean at_least, {name}", RAIL, mean_rail(law, True)))
    made += [
        Cell(rail, f"share at_most {100 * limit:g} %", RAIL, share_rail(limit))
        for limit in (0.05, 0.005)
    ]
    for spread in (0.05, 0.5, 0.95):
        name = f"p95 of correlated users (correlation {spread:g})"
        made.append(Cell(rail, name, RAIL, correlated_quantile_rail(spread)))
    for name in ("lognormal, sigma 1", "events, 95 %"):
        for words, share in shares.items():
            title = f"worse_than_control_by 0, {name}, {words}"
            made.append(Cell(rail, title, RAIL, relative_rail(LAWS[name], share)))
    thirds = {"a": 0.9, "b": 0.05, "c": 0.05}
    made.append(Cell("sample ratio", "90/5/5", 0.001, ratio_mismatch(thirds)))
    needed = "power at needed.always_valid"
    for name, relative in (("normal", 0.02), ("lognormal, sigma 0.6", 0.05)):
        for words, share in (("50/50", 0.5), ("10/90", 0.1)):
            title = f"{name}, {100 * relative:g} %, {words}"
            made.append(Cell(needed, title, 0.8, power(LAWS[name], share, relative), above=True))
    return made


def row_of(rate: Rate) -> Row:
    """A rate as a row of the table."""
    cell, (low, high) = rate.cell, rate.interval
    return {
        "what": cell.group,
        "cell": cell.name,
        "promised": f"at {'least' if cell.above else 'most'} {100 * cell.promise:g} %",
        "seen [95 %]": f"{100 * rate.claims / rate.experiments:.2f} % "
        f"[{100 * low:.2f}, {100 * high:.2f}]",
        "kept": rate.kept,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--experiments", type=int, default=2000)
    given = parser.parse_args()
    rows = []
    for cell in cells():
        rows.append(row_of(run(cell, given.experiments)))
        print(*rows[-1].values(), sep=", ", flush=True)
    show(rows, [(name, itemgetter(name)) for name in rows[0]], wide_console())


if __name__ == "__main__":
    main()
