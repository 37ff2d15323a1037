"""Assignment of units to arms: a keyed hash, the same in every replica and after every restart.

A unit's hash is a place in [0, 1), of which each arm has a range. More coverage moves no unit to
another arm: an arm's range begins at the same place and ends later. The key is the experiment's
secret, so users cannot compute arms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from orchestrator.experiments.documents import Experiment, ExperimentState, Unit
from orchestrator.experiments.runs import BuiltArm, Run


@dataclass(frozen=True, slots=True)
class Enrollment:
    """A request's part in an experiment, fixed when the request begins."""

    run: Run
    unit: str
    arm: str

    @property
    def built(self) -> BuiltArm:
        return self.run.arms[self.arm]


def enroll(runs: Sequence[Run], units: Mapping[Unit, str | None]) -> Enrollment | None:
    """Return the part in these experiments of a request with these units, None if it takes part in
    none."""
    for run in runs:
        if not run.live or run.error is not None:
            continue
        unit = units.get(run.experiment.unit)
        if unit is not None and (arm := assign(run.experiment, run.state, unit)) is not None:
            return Enrollment(run, unit, arm)
    return None


def assign(experiment: Experiment, state: ExperimentState, unit: str) -> str | None:
    """Return the arm that answers a unit's requests; None if the unit takes no part.

    Units of a stopped arm take no further part: in another arm they would make the arms
    incomparable.
    """
    group = experiment.group
    if group is not None and not group.start <= place(group.name, unit) < group.end:
        return None
    at, start, coverage = place(experiment.seed, unit), 0.0, state.coverage(experiment)
    for arm, weight in experiment.weights.items():
        if start <= at < start + coverage * weight:
            return None if arm in state.stopped else arm
        start += weight
    return None


def place(seed: str, unit: str) -> float:
    """Return a unit's place in [0, 1)."""
    digest = blake2b(f"{seed}\0{unit}".encode(errors="surrogatepass"), digest_size=6).digest()
    return int.from_bytes(digest) / 2**48
