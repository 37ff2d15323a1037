"""A replica's part in experiments: enroll requests, record events, act on what they show.

No request waits here: its arm is a hash, and its events go to the outbox. Beside the requests a
task reads the events of *all* replicas, stops arms that crossed a guardrail, takes the next step of
a ramp and computes a bandit's weights. Every replica does so from the same log; the store lets one
of them change an experiment at a time, and the others read its change.

A decision looks at every request of the run. So it is made once the events since the last one come
to `NEWS` of the requests, which makes the work per event constant, or `WAIT_S` after the last one
where they are fewer: no stop of an arm and no step waits longer.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import Context
from dataclasses import dataclass, replace
from hashlib import blake2b
from time import monotonic
from typing import Any, Final

import numpy as np
from cachetools import LRUCache
from prometheus_client import CollectorRegistry, Counter

from orchestrator.background import stop
from orchestrator.errors import Conflict, InvalidRequest, StoreError
from orchestrator.experiments import readouts
from orchestrator.experiments.assignment import Assignment, assign, fnv1a, in_shadow_sample
from orchestrator.experiments.bandit import allocate
from orchestrator.experiments.documents import Experiment, ExperimentState, Unit
from orchestrator.experiments.guardrails import crossed_guardrails, next_ramp_step, stop_arms
from orchestrator.experiments.outcome_log import (
    AnalysisSet,
    Exposure,
    OutcomeLog,
    RequestRecord,
    analysis_set,
    comparable,
)
from orchestrator.experiments.report import ExperimentReport, report
from orchestrator.experiments.runs import BuiltArm, Run, RunKey, Runs, outcome_stream
from orchestrator.experiments.shadows import ShadowRequest, ShadowRunner
from orchestrator.state.outbox import EVENTS_KEPT, Outbox
from orchestrator.state.store import Store
from orchestrator.state.versions import AuditInfo

log = logging.getLogger(__name__)

UPDATE_S: Final = 1.0  # seconds between two updates
BATCH: Final = 1000  # events read at once
KEPT: Final = 100_000  # requests of one run in memory
REPORTS: Final = 16  # of runs, in memory
NEWS: Final = 0.01  # events since the last decision that call for another, as a share of requests
WAIT_S: Final = 60.0  # seconds after a decision in which fewer events call for none
FRESH: Final = 50  # ended requests between two updates of a bandit's weights
ITSELF: Final = AuditInfo(author="baton")


@dataclass(frozen=True, slots=True)
class AssignmentFacts:
    """The attributes of a request that its assignment may use: one per kind of unit.

    `forced` is an arm to test, written EXPERIMENT/ARM.
    """

    request: str
    key: str | None = None
    user: str | None = None
    session: str | None = None
    forced: str | None = None

    def unit(self, kind: Unit) -> str | None:
        """The id of the request's unit; None where the request has none of that kind."""
        value: str | None = getattr(self, kind)
        return value


@dataclass(frozen=True, slots=True)
class Enrollment:
    """A request's part in an experiment, fixed when the request begins."""

    run: Run
    unit: str
    assignment: Assignment

    @property
    def arm(self) -> str:
        return self.assignment.arm

    @property
    def built(self) -> BuiltArm:
        return self.run.arms[self.arm]


class Experimenter:
    """The experiments of one replica. `refresh` makes a change visible on it at once."""

    def __init__(
        self,
        store: Store,
        runs: Runs,
        outbox: Outbox,
        shadows: ShadowRunner,
        current: Callable[[], Sequence[Run]],
        refresh: Callable[[], Awaitable[None]],
        registry: CollectorRegistry,
    ) -> None:
        self._store, self.runs, self._outbox, self._shadows = store, runs, outbox, shadows
        self._current, self._refresh = current, refresh
        self._readers: dict[RunKey, _Reader] = {}
        self._decided: dict[RunKey, _Decision] = {}  # the last one
        self._due: dict[RunKey, float] = {}  # when its next readout is
        self._reports: LRUCache[RunKey, _MadeReport] = LRUCache(REPORTS)
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
            await stop(self._task)
        await self._shadows.stop()

    def enroll(self, runs: Sequence[Run], facts: AssignmentFacts) -> Enrollment | None:
        """A request's part in these experiments; None where it takes part in none.

        Raises:
            InvalidRequest: the forced arm does not exist, or its experiment does not run.
        """
        live = [run for run in runs if run.live and run.error is None]
        if facts.forced is not None:
            return _forced(live, facts.forced, facts.request)
        for run in live:
            unit = facts.unit(run.experiment.unit)
            if unit is None:  # the request has no such unit
                continue
            assignment = assign(run.experiment, run.state, unit)
            if assignment is not None:
                return Enrollment(run, unit, assignment)
        return None

    def record_exposure(self, enrollment: Enrollment, trace_id: str) -> None:
        """Record that an arm takes effect: its policy begins to answer."""
        run, assignment = enrollment.run, enrollment.assignment
        unit = blake2b(
            f"{run.experiment.unit}:{enrollment.unit}".encode(), digest_size=12
        ).hexdigest()
        exposure = Exposure(
            trace_id=trace_id,
            at=time.time(),
            arm=assignment.arm,
            unit=unit,
            bucket=assignment.bucket,
            probability=assignment.probability,
            forced=assignment.forced,
        )
        self._exposures.labels(run.name, assignment.arm).inc()
        self._stops.labels(run.name)  # a series that begins at 0 shows the first stop
        self._outbox.event(run.stream, exposure.model_dump())

    def record_outcome(
        self, enrollment: Enrollment, outcome: Mapping[str, Any], request: ShadowRequest
    ) -> None:
        """Record the `outcome` of a request, and queue it for the shadows that sample it."""
        run = enrollment.run
        self._outbox.event(run.stream, outcome)
        served = outcome["status"] == "finished" and not enrollment.assignment.forced
        if served and enrollment.arm == run.experiment.base:
            for arm in run.experiment.shadows:
                if in_shadow_sample(run.experiment, arm.name, request.trace_id, arm.sample):
                    built = run.arms[arm.name]
                    again = replace(request, speculation=built.speculation)
                    self._shadows.add(run.stream, arm.name, built.policy, again)

    def record_reward(self, record: Mapping[str, Any], reward: Mapping[str, Any]) -> None:
        """Record a reward for the answer whose trace is `record`."""
        name, number = record.get("experiment"), record.get("run")
        if isinstance(name, str) and isinstance(number, int):
            self._outbox.event(outcome_stream(name, number), reward)

    async def report(self, name: str) -> tuple[Run, ExperimentReport]:
        """The readout of an experiment's newest run, over all its events that are kept.

        Raises:
            UnknownPolicy: no experiment of this name. StoreError: the store is down.
        """
        run = await self.runs.find(name)
        reader = self._readers.get(run.key) or _reader(run)
        await reader.read(self._store)
        return run, await self._report(run, reader)

    async def _report(self, run: Run, reader: _Reader) -> ExperimentReport:
        """The readout of what was read; those who ask for it while nothing is new share one."""
        of = (run.experiment, run.state, reader.events, reader.position)
        made = self._reports.get(run.key)
        if made is None or made.of != of or made.failed:
            requests, unreadable = reader.outcomes.requests, reader.outcomes.unreadable
            making = asyncio.to_thread(
                report, run.experiment, run.state, requests, unreadable, reader.since
            )
            # Ray ends what a request began with that request, which it knows by the context.
            made = _MadeReport(of, asyncio.create_task(making, context=Context()))
            self._reports[run.key] = made
        return await asyncio.shield(made.task)

    async def update(self) -> None:
        """Read new events; stop arms, take the ramp's next step or reweigh the arms, and keep a
        readout, each where due.

        Raises:
            StoreError: the store is down.
        """
        running = [run for run in self._current() if run.live]
        keys = {run.key for run in running}
        known: dict[RunKey, Any]
        for known in (self._readers, self._decided, self._due):
            for key in known.keys() - keys:
                del known[key]
        for run in running:
            self._stops.labels(run.name)  # also of replicas that have answered nothing yet
            reader = self._readers.setdefault(run.key, _reader(run))
            await reader.read(self._store)
            if run.experiment.adaptive:
                await self._decide(run, reader)
        for run in running:
            try:
                await self._keep_readout(run, self._readers[run.key].now)
            except StoreError:
                raise
            except Exception:  # a picture that is missing must not end what others wait for
                log.exception("experiment %s: its readout could not be kept", run.name)

    async def _decide(self, run: Run, reader: _Reader) -> None:
        """Decide anew where it is time to; what could not be carried out is decided once more."""
        at = reader.now
        if not _calls_for_decision(run, self._decided.get(run.key), reader, at):
            return
        decision = self._decided[run.key] = _Decision(at, reader.events, _stage(run))
        requests, whole = reader.outcomes.requests, not reader.forgotten
        state, action = await asyncio.to_thread(_decide, run, requests, at, whole)
        if state != run.state:
            del self._decided[run.key]
            if await self._change(run, state, action):
                self._decided[run.key] = decision

    async def _keep_readout(self, run: Run, at: float) -> None:
        if at < self._due.get(run.key, 0.0):
            return
        self._due[run.key] = at + readouts.APART_S
        due = await readouts.next_due(self._store, run, at)
        if due <= at:
            newest, analysis = await self.report(run.name)
            if newest.number == run.number:
                await readouts.keep(self._store, newest, analysis, at)
            due = at + readouts.APART_S
        self._due[run.key] = due

    async def _change(self, run: Run, state: ExperimentState, action: str) -> bool:
        try:
            audited = action != "weights"  # there are too many: the audit log is for people
            await self.runs.change(run, state, action, ITSELF, audited=audited)
        except Conflict:
            return False  # another replica was faster, or somebody stopped it
        stopped = state.stopped.keys() - run.state.stopped.keys()
        for arm in stopped:
            self._stops.labels(run.name).inc()
            why = state.stopped[arm].why
            log.warning("experiment %s: arm %s is stopped: %s", run.name, arm, why)
        if not stopped:
            log.info("experiment %s: %s", run.name, action)
        await self._refresh()
        return True

    async def _work(self) -> None:
        duration = 0.0
        while True:
            await asyncio.sleep(max(UPDATE_S, 10 * duration))  # requests go first
            began = time.perf_counter()
            try:
                await self.update()
            except StoreError as error:
                log.debug("experiments wait for the store: %s", error)
            except Exception:
                log.exception("experiments could not be updated")
            duration = time.perf_counter() - began


@dataclass(frozen=True, slots=True)
class _Decision:
    """When a decision was made, upon how many events, and at which stage of the run."""

    at: float
    events: int
    stage: tuple[int, int]


def _stage(run: Run) -> tuple[int, int]:
    """The step of the ramp, and how many arms were stopped."""
    return run.state.step, len(run.state.stopped)


@dataclass(frozen=True, slots=True)
class _MadeReport:
    """A report, or its making, and what it is of: the document, the state, how many events up to
    which."""

    of: tuple[Experiment, ExperimentState, int, str]
    task: asyncio.Task[ExperimentReport]

    @property
    def failed(self) -> bool:
        task = self.task
        return task.done() and (task.cancelled() or task.exception() is not None)


class _Reader:
    """The events of one run, read from its stream as they come; `events` counts them.

    `after`: a time that has passed, by the store's clock.
    """

    def __init__(self, stream: str, outcomes: OutcomeLog, after: float = 0.0) -> None:
        self.outcomes, self.events = outcomes, 0
        self._ahead = after - monotonic()  # of the store's clock, at the least
        self.forgotten = False  # requests, by the store or here
        self.position = ""  # of the last event
        self._stream = stream
        self._reading = asyncio.Lock()

    async def read(self, store: Store) -> None:
        """Read what is new."""
        async with self._reading:
            before = self.events
            while entries := await store.read(self._stream, after=self.position, count=BATCH):
                for entry in entries:
                    self.outcomes.add(entry.event, entry.time)
                self.events += len(entries)
                self.position = entries[-1].at
                self._ahead = max(self._ahead, entries[-1].time - monotonic())
                await asyncio.sleep(0)  # requests go first
            # So many at once are all that the stream holds: there may have been more before them.
            self.forgotten |= self.events - before >= EVENTS_KEPT or self.outcomes.count > KEPT
            self.outcomes.forget(KEPT)

    @property
    def now(self) -> float:
        """The time by the store's clock, or a little earlier: it is known from the events. This
        machine's own may differ from those by which others stopped an arm or took a step."""
        return monotonic() + self._ahead

    @property
    def since(self) -> float | None:
        """When the first request that is known came; None where none was forgotten."""
        if not self.forgotten:
            return None
        return min((one.exposure.at for one in self.outcomes.requests), default=self.now)


def _reader(run: Run) -> _Reader:
    after = max(run.state.started, run.state.step_since)
    return _Reader(run.stream, OutcomeLog(run.experiment.counts_rewards_of), after)


def _forced(live: Sequence[Run], forced: str, request: str) -> Enrollment:
    name, _, arm = forced.partition("/")
    for run in live:
        served = {one.name for one in run.experiment.served} - run.state.stopped.keys()
        if run.name == name and arm in served:
            return Enrollment(run, request, Assignment(arm, 0.0, 1.0, forced=True))
    raise InvalidRequest(
        "x-baton-arm: no experiment that runs serves this arm (write EXPERIMENT/ARM)",
        param="x-baton-arm",
    )


def _calls_for_decision(run: Run, last: _Decision | None, reader: _Reader, at: float) -> bool:
    """Whether there is news enough since the last decision, or the ramp's next step became due."""
    if last is None:
        return True
    ramp, state = run.experiment.ramp, run.state
    if ramp is not None and state.step < len(ramp.steps) - 1:
        due = state.step_since + ramp.hold_s
        if at >= due and (last.at < due or last.stage != _stage(run)):
            return True
    news = reader.events - last.events
    late = at - last.at >= WAIT_S
    return news > 0 and (late or news >= NEWS * reader.outcomes.count)


def _decide(
    run: Run, requests: Sequence[RequestRecord], at: float, whole: bool
) -> tuple[ExperimentState, str]:
    """The state that follows from a run's log, and the action that leads to it.

    Where requests are forgotten (the log is not `whole`), guardrails go by those that are known: an
    arm that becomes bad late is stopped. Of a bandit's bounds nothing is sure then, so its weights
    stay.
    """
    experiment, state = run.experiment, run.state
    analysed = analysis_set(requests, experiment.weights)
    stopped = crossed_guardrails(experiment, state, analysed.by_arm)
    if stopped:
        return stop_arms(state, stopped, at), "guardrail"
    units = {
        name: len({one.exposure.unit for one in own if one.exposure.at > state.step_since})
        for name, own in analysed.by_arm.items()
    }
    higher = next_ramp_step(experiment, state, units, at)
    if higher is not None:
        return higher, "ramp"
    if experiment.kind == "bandit" and whole:
        return _reweighed(run, analysed, at), "weights"
    return state, ""


def _reweighed(run: Run, analysed: AnalysisSet, at: float) -> ExperimentState:
    """The state with a bandit's new weights, once `FRESH` more requests have ended."""
    experiment, state = run.experiment, run.state
    compared = comparable(analysed.by_arm)
    # Those of stopped arms count too: they did when the weights were found that hold now.
    ended = sum(one.outcome is not None for own in compared.values() for one in own)
    if ended < state.evidence.get("ended", 0) + FRESH:
        return state
    # Seeded by the evidence: replicas that have the same log compute the same weights.
    random = np.random.default_rng([fnv1a(experiment.seed), ended])
    by_arm = {name: own for name, own in compared.items() if name not in state.stopped}
    allocation = allocate(experiment, by_arm, random)
    evidence = {"at": at, "ended": ended, "beliefs": dict(allocation.beliefs)}
    weights = {name: allocation.weights.get(name, 0.0) for name in experiment.weights}
    return state.model_copy(update={"weights": weights, "evidence": evidence})
