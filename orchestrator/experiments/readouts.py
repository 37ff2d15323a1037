"""Past readouts of a run, for a plot over time, in a stream beside its events.

The time between two grows with the run's age, so a run of any length has some hundreds. Every
replica keeps one when it is due; if two do so at the same moment, there are two.
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
"""The most readouts of one run: enough for months."""
SHOWN: Final = 240
APART_S: Final = 5.0
"""The least time between two, in seconds."""
SHARE: Final = 1 / 120
"""The least time between two, as a share of the run's age."""


async def next_due(store: Store, run: Run, at: float) -> float:
    """Return when the next readout is due; `at` is now. Both by the store's clock."""
    newest = await store.newest(run.readout_stream, 1)
    made = _readout(newest[0]) if newest else None
    if made is None:
        return at
    last: float = min(at, made["at"])  # `at` comes from events, and may be early
    return last + max(APART_S, SHARE * (last - run.state.started))


async def keep(store: Store, run: Run, report: ExperimentReport, at: float) -> None:
    """Keep a readout's intervals of the goal's metric."""
    made = report.json()
    intervals = {
        one["arm"]: [one["always_valid"][name] for name in ("estimate", "low", "high")]
        for one in made["comparisons"]
        if one["metric"] == made["metric"]
    }
    readout = {"at": round(at, 3), "intervals": intervals}
    await store.append(run.readout_stream, [json.dumps(readout).encode()], keep=KEPT)


async def read(
    store: Store, run: Run, skip: Callable[[str, str], object] = lambda place, at: None
) -> list[dict[str, Any]]:
    """Return at most `SHOWN` of the kept readouts, spread over all of them, oldest first.

    `skip` is called with the place of each foreign entry.
    """
    newest = await store.newest(run.readout_stream, KEPT)
    step = max(1, -(-len(newest) // SHOWN))
    shown = []
    for entry in newest[::step][::-1]:
        if (made := _readout(entry)) is None:
            skip(run.readout_stream, entry.at)
        else:
            shown.append(made)
    return shown


class _Readout(BaseModel):
    """The part of a readout that the plot uses."""

    at: float
    intervals: dict[str, list[float | None]]


def _readout(entry: StreamEntry) -> dict[str, Any] | None:
    made = json_object(entry.event)
    try:
        _Readout.model_validate(made)
    except ValidationError:
        return None
    return made
