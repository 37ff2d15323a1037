"""Past readouts of a run, for a plot over time: kept in a stream of their own as the run goes on.

The older a run, the longer it is between two, so a run of any length has some hundreds, and what
was claimed at any time can still be seen. Every replica asks when the next one is due; where two
find that at once, there are two.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

from pydantic import BaseModel, ValidationError

from orchestrator.experiments.report import ExperimentReport
from orchestrator.experiments.runs import Run
from orchestrator.state.foreign import json_object
from orchestrator.state.store import Store, StreamEntry

KEPT: Final = 2000
"""Readouts of one run; months of them."""
SHOWN: Final = 240
APART_S: Final = 5.0
"""The least time between two, in seconds."""
SHARE: Final = 1 / 120
"""The least time between two, as a share of the run's age."""


async def next_due(store: Store, run: Run, at: float) -> float:
    """When the next readout is due; `at` is now, both by the store's clock."""
    newest = await store.newest(run.readout_stream, 1)
    if not newest:
        return at
    made = _readout(newest[0])
    if made is None:
        return at
    last: float = min(at, made["at"])  # where it was read before the newest events are
    return last + max(APART_S, SHARE * (last - run.state.started))


async def keep(store: Store, run: Run, report: ExperimentReport, at: float) -> None:
    """Keep what a readout says of the goal's metric, and the weights that the arms have; of a
    bandit also what they follow from (`Allocation.beliefs`)."""
    made = report.json()
    intervals = {
        one["arm"]: [one["always_valid"][name] for name in ("estimate", "low", "high")]
        for one in made["comparisons"]
        if one["metric"] == made["metric"]
    }
    readout = {"at": round(at, 3), "intervals": intervals, "weights": made["weights"]}
    if beliefs := run.state.evidence.get("beliefs"):
        readout["beliefs"] = beliefs
    await store.append(run.readout_stream, [json.dumps(readout).encode()], keep=KEPT)


async def read(
    store: Store, run: Run, skip: Callable[[str, str], object] = lambda place, at: None
) -> list[dict[str, Any]]:
    """At most `SHOWN` of the kept readouts, spread over all of them, oldest first.

    `skip` is called with the place of each entry that is none.
    """
    entries = (await store.newest(run.readout_stream, KEPT))[::-1]
    step = max(1, -(-len(entries) // SHOWN))
    shown = []
    for entry in entries[::-1][::step][::-1]:
        if (made := _readout(entry)) is None:
            skip(run.readout_stream, entry.at)
        else:
            shown.append(made)
    return shown


class _Readout(BaseModel):
    """What the plot asks of a readout."""

    at: float
    intervals: dict[str, list[float | None]]
    weights: dict[str, float]


def _readout(entry: StreamEntry) -> dict[str, Any] | None:
    made = json_object(entry.event)
    try:
        _Readout.model_validate(made)
    except ValidationError:
        return None
    return made
