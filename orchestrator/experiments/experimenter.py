"""A replica's task that reads the events of all replicas and acts on them.

It stops arms that crossed a guardrail and takes the next step of a ramp. Every replica does so
from the same log; the store accepts one change at a time, which the other replicas read.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from time import perf_counter
from typing import Final

from cachetools import LRUCache
from prometheus_client import CollectorRegistry, Counter

from orchestrator.background import Background
from orchestrator.errors import Conflict, StoreError
from orchestrator.experiments.decisions import decide
from orchestrator.experiments.documents import Experiment, ExperimentState
from orchestrator.experiments.outcome_log import LogReader
from orchestrator.experiments.report import ExperimentReport, report
from orchestrator.experiments.runs import Run, RunKey, Runs
from orchestrator.state.store import Store
from orchestrator.state.versions import AuditInfo
from orchestrator.state.watcher import ConfigWatcher

log = logging.getLogger(__name__)

UPDATE_S: Final = 1.0  # seconds between two updates, at the least
REST: Final = 30  # times as long as an update, or a slow report, takes, until the next one
SLOW_S: Final = 1.0  # seconds that a slow report takes, at the least
REPORTS: Final = 16  # in memory, and logs of runs that have ended
ITSELF: Final = AuditInfo(author="baton")
_Input = tuple[Experiment, ExperimentState, int, str]
"""A report's document, state, and the number and position of its events."""


@dataclass(frozen=True, slots=True)
class _MadeReport:
    """A report and its input; `rests_until`: before that, new events alone make no other one."""

    seen: _Input
    report: ExperimentReport
    rests_until: float

    def shows(self, seen: _Input) -> bool:
        """Return whether it is still shown for an input."""
        resting = self.seen[:2] == seen[:2] and perf_counter() < self.rests_until
        return resting or self.seen == seen


class Experimenter(Background):
    """The experiments of one replica. If the store has other contents, it forgets what it read."""

    def __init__(
        self, store: Store, runs: Runs, watcher: ConfigWatcher, registry: CollectorRegistry
    ) -> None:
        self._store, self.runs, self._watcher = store, runs, watcher
        self._read_from = ""  # the identity of the contents that were read
        self._readers: dict[RunKey, LogReader] = {}  # of runs that have not ended
        self._ended: LRUCache[RunKey, LogReader] = LRUCache(REPORTS)
        self._reports: LRUCache[RunKey, _MadeReport] = LRUCache(REPORTS)
        self._reporting = asyncio.Lock()
        self._stops = Counter(
            "baton_experiment_arms_stopped",
            "Arms that this replica stopped because they crossed a guardrail.",
            ("experiment",),
            registry=registry,
        )

    async def report(self, name: str) -> tuple[Run, ExperimentReport]:
        """Return the report of an experiment's newest run, over all its events that are kept; after
        a slow one, maybe without the latest.

        Raises:
            UnknownPolicy: no experiment of this name. StoreError: the store is down.
        """
        run = await self.runs.find(name)
        self._forget_other_contents()
        reader = self._readers.get(run.key) or self._ended.setdefault(run.key, LogReader(run))
        await reader.read(self._store)
        async with self._reporting:  # calls share one report until there are new events
            seen = (run.experiment, run.state, reader.events, reader.position)
            known = self._reports.get(run.key)
            if known is None or not known.shows(seen):
                began = perf_counter()
                made = await asyncio.to_thread(
                    report, *seen[:2], reader.outcomes.requests, reader.since
                )
                ended = perf_counter()
                took = ended - began
                rests_s = REST * took if took >= SLOW_S else 0.0  # requests go first
                known = self._reports[run.key] = _MadeReport(seen, made, ended + rests_s)
        return run, known.report

    def _forget_other_contents(self) -> None:
        if (contents := self._watcher.current.identity) != self._read_from:
            self._read_from = contents
            for known in (self._readers, self._ended, self._reports):
                known.clear()

    async def update(self) -> None:
        """Read new events; then stop arms and take the ramp's next step, if due.

        Raises:
            StoreError: the store is down.
        """
        self._forget_other_contents()
        running = {run.key: run for run in self._watcher.current.experiments if run.live}
        for key in self._readers.keys() - running.keys():
            del self._readers[key]
        for key, run in running.items():
            self._stops.labels(run.name)  # a series that begins at 0 shows the first stop
            reader = self._readers.setdefault(key, LogReader(run))
            await reader.read(self._store)
            if run.experiment.adaptive:
                requests = reader.outcomes.requests
                state, action = await asyncio.to_thread(
                    decide, run.experiment, run.state, requests, reader.now
                )
                if state != run.state:
                    await self._change(run, state, action)

    async def _change(self, run: Run, state: ExperimentState, action: str) -> None:
        try:
            await self.runs.change(run, state, action, ITSELF)
        except Conflict:
            return  # another replica changed it first, or an administrator stopped it
        stopped = state.stopped.keys() - run.state.stopped.keys()
        for arm in stopped:
            self._stops.labels(run.name).inc()
            why = state.stopped[arm].why
            log.warning("experiment %s: arm %s is stopped: %s", run.name, arm, why)
        if not stopped:
            log.info("experiment %s: %s", run.name, action)
        await self._watcher.refresh()

    async def _work(self) -> None:
        duration = 0.0
        while True:
            await asyncio.sleep(max(UPDATE_S, REST * duration))  # requests go first
            began = perf_counter()
            try:
                await self.update()
            except StoreError as error:
                log.debug("experiments wait for the store: %s", error)
            except Exception:
                log.exception("experiments could not be updated")
            duration = perf_counter() - began
