"""Experiments at work in one replica: who gets which arm, what came of it, and what follows.

Nothing here waits on a request's way: an arm is a hash away, events go to the outbox. Beside the
requests a task reads the events of *all* replicas, stops arms that crossed a guardrail, takes the
ramp's next step and finds a bandit new weights. Every replica does so from the same record; the
store lets one of them change an experiment at a time, and the others find it changed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, Final

import numpy as np
from prometheus_client import CollectorRegistry, Counter

from orchestrator.errors import Conflict, InvalidRequest, StoreError
from orchestrator.experiments.assignment import Assignment, assign, fnv1a, in_sample
from orchestrator.experiments.bandit import allocate
from orchestrator.experiments.documents import State, Unit
from orchestrator.experiments.guardrails import crossed, next_step, stop
from orchestrator.experiments.ledger import Analysed, Exposure, Ledger, Request, analysed
from orchestrator.experiments.report import Report, report
from orchestrator.experiments.runs import Built, Run, Runs
from orchestrator.experiments.shadows import Repeat, Shadows
from orchestrator.state.outbox import Outbox
from orchestrator.state.store import Store
from orchestrator.state.versions import AuditInfo

log = logging.getLogger(__name__)

LOOK_S: Final = 1.0  # seconds between looks at what came in
LOT: Final = 1000  # events read at once
KEPT: Final = 100_000  # requests of one run that are remembered
FRESH: Final = 50  # ended requests after which a bandit thinks again
ITSELF: Final = AuditInfo(author="baton")


@dataclass(frozen=True, slots=True)
class Facts:
    """Who asks, as far as it is known: what a unit may be made of.

    `forced` is an arm that somebody wants to test, written EXPERIMENT/ARM.
    """

    request: str
    key: str | None = None
    user: str | None = None
    session: str | None = None
    forced: str | None = None

    def unit(self, kind: Unit) -> str | None:
        """What identifies the asker; None where the request does not say."""
        told: str | None = getattr(self, kind)
        return told


@dataclass(frozen=True, slots=True)
class Taken:
    """A request's part in an experiment: fixed when it begins, whatever happens meanwhile."""

    run: Run
    unit: str
    assignment: Assignment

    @property
    def arm(self) -> str:
        return self.assignment.arm

    @property
    def built(self) -> Built:
        return self.run.arms[self.arm]


class Experimenter:
    """The experiments of one replica. `look` makes a change known to this replica at once."""

    def __init__(
        self,
        store: Store,
        runs: Runs,
        outbox: Outbox,
        shadows: Shadows,
        current: Callable[[], Sequence[Run]],
        look: Callable[[], Awaitable[None]],
        registry: CollectorRegistry,
    ) -> None:
        self._store, self.runs, self._outbox, self._shadows = store, runs, outbox, shadows
        self._current, self._look = current, look
        self._readers: dict[str, _Reader] = {}
        self._task: asyncio.Task[None] | None = None
        self._exposures = Counter(
            "baton_experiment_exposures",
            "Requests in which an arm took effect.",
            ("experiment", "arm"),
            registry=registry,
        )
        self._stops = Counter(
            "baton_experiment_arms_stopped",
            "Arms that this replica stopped because they crossed a guardrail.",
            ("experiment",),
            registry=registry,
        )

    async def start(self) -> None:
        await self._shadows.start()
        self._task = asyncio.create_task(self._work())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        await self._shadows.stop()

    def take(self, runs: Sequence[Run], facts: Facts) -> Taken | None:
        """The part of a request in these experiments; None where it has none.

        Raises:
            InvalidRequest: the forced arm does not exist, or its experiment does not run.
        """
        live = [run for run in runs if run.live and run.trouble is None]
        if facts.forced is not None:
            return _forced(live, facts.forced, facts.request)
        for run in live:
            unit = facts.unit(run.experiment.unit)
            if unit is None:  # it cannot be told from others, so it takes no part
                continue
            found = assign(run.experiment, run.state, unit)
            if found is not None:
                return Taken(run, unit, found)
        return None

    def exposed(self, taken: Taken, trace_id: str) -> None:
        """The arm takes effect: its policy begins to answer."""
        run, found = taken.run, taken.assignment
        unit = blake2b(f"{run.experiment.unit}:{taken.unit}".encode(), digest_size=12).hexdigest()
        exposure = Exposure(
            trace_id=trace_id,
            at=time.time(),
            arm=found.arm,
            unit=unit,
            bucket=found.bucket,
            probability=found.probability,
            forced=found.forced,
        )
        self._exposures.labels(run.name, found.arm).inc()
        self._stops.labels(run.name)  # a series that begins at 0 shows the first stop
        self._outbox.event(run.stream, exposure.model_dump())

    def ended(self, taken: Taken, outcome: Mapping[str, Any], repeat: Repeat) -> None:
        """A request has ended, for better or worse; a shadow may answer it again.

        `outcome` is what the service records of any request.
        """
        run = taken.run
        self._outbox.event(run.stream, outcome)
        served = outcome["status"] == "finished" and not taken.assignment.forced
        if served and taken.arm == run.experiment.base:
            for arm in run.experiment.shadows:
                if in_sample(run.experiment, arm.name, repeat.trace_id, arm.sample):
                    built = run.arms[arm.name]
                    again = replace(repeat, speculation=built.speculation)
                    self._shadows.add(run.stream, arm.name, built.policy, again)

    def rewarded(self, record: Mapping[str, Any], reward: Mapping[str, Any]) -> None:
        """Somebody judged an answer, of which `record` is the trace."""
        name, number = record.get("experiment"), record.get("run")
        if isinstance(name, str) and isinstance(number, int):
            self._outbox.event(f"outcomes/{name}/{number}", reward)

    async def report(self, name: str) -> tuple[Run, Report]:
        """The readout of an experiment's newest run, from all that is on record.

        Raises:
            UnknownPolicy: no experiment of this name. StoreError: the store is away.
        """
        run = await self.runs.find(name)
        reader = self._readers.get(run.stream) or _Reader(run.stream)
        await reader.read(self._store)
        requests, unreadable = reader.ledger.requests, reader.ledger.unreadable
        return run, await asyncio.to_thread(report, run.experiment, run.state, requests, unreadable)

    async def look(self) -> None:
        """Read what came in, and do what it asks for.

        Raises:
            StoreError: the store is away.
        """
        live = [run for run in self._current() if run.live and run.experiment.steered]
        for stream in self._readers.keys() - {run.stream for run in live}:
            del self._readers[stream]
        for run in live:
            reader = self._reader(run)
            if await reader.read(self._store) or _due(run, time.time()):
                state, told = await asyncio.to_thread(
                    _decide, run, reader.ledger.requests, time.time()
                )
                if state != run.state:
                    await self._change(run, state, told)

    async def _change(self, run: Run, state: State, told: str) -> None:
        try:
            await self.runs.change(run, state, told, ITSELF)
        except Conflict:
            return  # another replica was faster, or somebody stopped it
        fallen = state.stopped.keys() - run.state.stopped.keys()
        for arm in fallen:
            self._stops.labels(run.name).inc()
            why = state.stopped[arm].why
            log.warning("experiment %s: arm %s is stopped: %s", run.name, arm, why)
        if not fallen:
            log.info("experiment %s: %s", run.name, told)
        await self._look()

    def _reader(self, run: Run) -> _Reader:
        return self._readers.setdefault(run.stream, _Reader(run.stream))

    async def _work(self) -> None:
        took = 0.0
        while True:
            await asyncio.sleep(max(LOOK_S, 10 * took))  # requests go first
            began = time.perf_counter()
            try:
                await self.look()
            except StoreError as error:
                log.debug("experiments wait for the store: %s", error)
            except Exception:
                log.exception("experiments could not be looked at")
            took = time.perf_counter() - began


class _Reader:
    """The events of one run, read from its stream bit by bit."""

    def __init__(self, stream: str) -> None:
        self.ledger = Ledger()
        self._stream, self._place = stream, ""
        self._reading = asyncio.Lock()

    async def read(self, store: Store) -> bool:
        """Take in what is new, and say whether anything was."""
        came = False
        async with self._reading:
            while entries := await store.read(self._stream, after=self._place, count=LOT):
                for entry in entries:
                    self.ledger.add(entry.event)
                self._place, came = entries[-1].at, True
                await asyncio.sleep(0)  # requests go first
            self.ledger.forget(KEPT)
        return came


def _forced(live: Sequence[Run], forced: str, request: str) -> Taken:
    name, _, arm = forced.partition("/")
    for run in live:
        if run.name == name and arm in {one.name for one in run.experiment.served}:
            return Taken(run, request, Assignment(arm, 0.0, 1.0, forced=True))
    raise InvalidRequest(
        "x-baton-arm: no experiment that runs serves this arm (write EXPERIMENT/ARM)",
        param="x-baton-arm",
    )


def _due(run: Run, at: float) -> bool:
    """Whether a step of the ramp has lasted, so that there is something to do without news."""
    ramp, state = run.experiment.ramp, run.state
    if ramp is None or state.step >= len(ramp.steps) - 1:
        return False
    return at >= state.step_since + ramp.hold_s


def _decide(run: Run, requests: Sequence[Request], at: float) -> tuple[State, str]:
    """The state that a run's record asks for, and what that is called."""
    experiment, state = run.experiment, run.state
    found = analysed(requests, experiment.weights)
    fallen = crossed(experiment, state, found.by_arm)
    if fallen:
        return stop(state, fallen, at), "guardrail"
    units = {name: len({one.exposure.unit for one in own}) for name, own in found.by_arm.items()}
    higher = next_step(experiment, state, units, at)
    if higher is not None:
        return higher, "ramp"
    if experiment.kind == "bandit":
        return _reweighed(run, found, at), "weights"
    return state, ""


def _reweighed(run: Run, found: Analysed, at: float) -> State:
    """The state with a bandit's new weights, once there is enough that is new."""
    experiment, state = run.experiment, run.state
    by_arm = {name: own for name, own in found.by_arm.items() if name not in state.stopped}
    ended = sum(one.outcome is not None for own in by_arm.values() for one in own)
    if ended < state.evidence.get("ended", 0) + FRESH:
        return state
    # Seeded by the evidence: replicas that see the same think the same.
    random = np.random.default_rng([fnv1a(experiment.seed), ended])
    made = allocate(experiment, by_arm, random)
    evidence = {"at": at, "ended": ended, "beliefs": dict(made.beliefs)}
    return state.model_copy(update={"weights": dict(made.weights), "evidence": evidence})
