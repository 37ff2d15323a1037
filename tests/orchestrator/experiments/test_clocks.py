"""Replicas whose clocks are hours apart: decisions and reports go by the store's clock alone."""

from __future__ import annotations

import random
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from orchestrator.experiments import outcome_log, recorder, shadows
from orchestrator.experiments.assignment import enroll
from orchestrator.experiments.documents import Experiment, StoppedArm
from orchestrator.experiments.experimenter import Experimenter
from orchestrator.experiments.outcome_log import Outcome
from orchestrator.experiments.recorder import EventRecorder
from orchestrator.experiments.runs import Run, Runs
from orchestrator.experiments.shadows import ShadowRequest
from orchestrator.loop.request import Request
from orchestrator.state.memory import MemoryStore
from orchestrator.state.outbox import Outbox
from orchestrator.state.store import Store
from orchestrator.state.versions import AuditInfo, PolicyVersions
from orchestrator.state.watcher import ConfigWatcher
from policies import POLICIES

ME = AuditInfo("ada")
ARMS = [{"name": "large", "policy": "large-only"}, {"name": "small", "policy": "small-only"}]
HOUR = 3600.0
UNKNOWN: Any = None


class Clock:
    """A clock that tests set: the store's, and every replica's monotonic one."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


class Replica:
    """One replica of the orchestrator, whose own clock is wrong by so many seconds."""

    def __init__(self, store: Store, clock: Clock, wrong_s: float) -> None:
        self.wrong_s, self._clock, registry = wrong_s, clock, CollectorRegistry()
        versions = PolicyVersions(store, POLICIES, {})
        self.runs, self.outbox = Runs(store, versions, ()), Outbox(store, registry)
        self.watcher = ConfigWatcher(store, versions, self.runs, registry)
        self.recorder = EventRecorder(self.outbox, UNKNOWN, registry)
        self.experimenter = Experimenter(store, self.runs, self.watcher, registry)

    @property
    def time(self) -> float:
        return self._clock.now + self.wrong_s


class Replicas:
    """Replicas of one store; one of them acts at a time, and what it does has its clock."""

    def __init__(self, store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store, self.clock, self.asked = store, clock, 0
        self.ahead, self.right, self.late = (
            Replica(store, clock, wrong) for wrong in (HOUR, 0.0, -HOUR)
        )
        self._acting = self.right
        monkeypatch.setattr(outcome_log, "monotonic", clock)
        for module in (recorder, shadows):
            monkeypatch.setattr(module.time, "time", lambda: self._acting.time)

    async def start(self, **more: Any) -> None:
        self._acting = self.ahead
        fixed = {"name": "trial", "arms": ARMS, "goal": {"metric": "ms"}, "secret": "0" * 32}
        made = Experiment.parse({**fixed, **more})  # a random secret makes a false claim at times
        await self.ahead.runs.start(made, ME)

    async def ask(self, replica: Replica, count: int, ms: dict[str, float] | None = None) -> None:
        """So many requests, each a unit of its own, a second apart."""
        self._acting = replica
        await replica.watcher.refresh()
        for _ in range(count):
            self.clock.now += 1.0
            self.asked += 1
            trace = f"t{self.asked}"
            enrollment = enroll(replica.watcher.current.experiments, {"request": trace})
            if enrollment is None:
                continue
            replica.recorder.exposure(enrollment, trace)
            took = (ms or {}).get(enrollment.arm, 100.0)
            outcome = Outcome(trace_id=trace, at=replica.time, ms=took)
            request = ShadowRequest(Request(trace, ()), "")
            replica.recorder.outcome(enrollment, outcome, request)
            await replica.outbox.flush()

    async def decide(self, replica: Replica) -> Run:
        """The run after this replica has looked at it."""
        self._acting = replica
        await replica.watcher.refresh()
        await replica.experimenter.update()
        return (await self.right.runs.read(await self.store.state())).runs[0]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def replicas(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Replicas:
    return Replicas(MemoryStore(wall_clock=clock), clock, monkeypatch)


RAMP = {"steps": [0.5, 0.75, 1.0], "hold_s": 600.0, "units": 10}


async def test_a_step_takes_new_units_and_its_time_whosoever_decides(replicas: Replicas) -> None:
    await replicas.start(ramp=RAMP)
    everyone = (replicas.ahead, replicas.right, replicas.late)
    for one in everyone:
        await replicas.ask(one, 100)
    for one in everyone:  # 300 s: its time has not come, though one clock is an hour further
        assert (await replicas.decide(one)).state.step == 0
    replicas.clock.now += 600
    await replicas.ask(replicas.late, 1)
    assert (await replicas.decide(replicas.late)).state.step == 1
    replicas.clock.now += 700  # now its time has come, but nobody new
    for one in everyone:
        assert (await replicas.decide(one)).state.step == 1
    await replicas.ask(replicas.late, 60)  # new ones, of the replica whose clock is late
    assert (await replicas.decide(replicas.ahead)).state.step == 2


async def test_no_arm_looks_different_after_a_stop(replicas: Replicas) -> None:
    """One replica is slow and late, the other quick and ahead; its arms are alike on either."""
    rails = [{"metric": "ms", "at_most": 1e9}]
    await replicas.start(guardrails=rails)
    for _ in range(20):
        await replicas.ask(replicas.late, 20, {"large": 1000.0, "small": 1000.0})
        await replicas.ask(replicas.ahead, 20, {"large": 10.0, "small": 10.0})
    run = await replicas.decide(replicas.late)
    stopped = {"small": StoppedArm(at=replicas.clock.now, why="by hand")}
    await replicas.late.runs.change(
        run, run.state.model_copy(update={"stopped": stopped}), "guardrail", ME
    )
    for one in (replicas.late, replicas.ahead):
        await replicas.ask(one, 200, {"large": 1000.0 if one is replicas.late else 10.0})
    _, report = await replicas.right.experimenter.report("trial")
    assert report.sample_ratio is not None
    assert report.sample_ratio.ok
    assert sum(report.sample_ratio.counts.values()) == 800
    (ms,) = (one for one in report.comparisons if one.metric == "ms")
    assert ms.always_valid.low < 0 < ms.always_valid.high


@pytest.mark.parametrize("seed", range(20))
async def test_what_is_decided_does_not_depend_on_any_replicas_clock(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same requests and looks, with right clocks and with clocks up to a day wrong."""
    found = []
    for wrong in (0.0, 24 * HOUR):
        random.seed(seed)
        clock = Clock()
        made = Replicas(MemoryStore(wall_clock=clock), clock, monkeypatch)
        everyone = (made.ahead, made.right, made.late)
        for one in everyone:
            one.wrong_s = random.uniform(-1, 1) * wrong
        await made.start(
            ramp={**RAMP, "units": 5},
            guardrails=[{"metric": "ms", "at_most": 300.0}],
            secret="0" * 32,
        )
        steps = []
        for _ in range(12):
            quick, slow = random.choice(everyone), random.choice(everyone)
            await made.ask(quick, random.randrange(40), {"small": random.choice([100.0, 900.0])})
            clock.now += random.choice([0.0, 400.0])
            run = await made.decide(slow)
            steps.append((run.state.step, run.state.step_since, run.state.stopped))
        _, report = await made.right.experimenter.report("trial")
        found.append((steps, report))
    assert found[0] == found[1]


async def test_the_clock_of_the_store_in_memory_never_goes_back(clock: Clock) -> None:
    store = MemoryStore(wall_clock=clock)
    await store.append("s", [b"1"], keep=9)
    clock.now -= HOUR
    await store.append("s", [b"2"], keep=9)
    one, two = await store.read("s")
    assert one.time == two.time == await store.time()
    assert [entry.event for entry in await store.read("s", after=one.at)] == [b"2"]


async def test_after_a_wipe_a_new_experiment_of_an_old_name_begins_with_nothing(
    replicas: Replicas,
) -> None:
    await replicas.start()
    await replicas.ask(replicas.right, 30)
    await replicas.decide(replicas.right)
    _, report = await replicas.right.experimenter.report("trial")
    assert report.sample_ratio is not None
    assert sum(report.sample_ratio.counts.values()) == 30
    store = replicas.store
    store.__init__(wall_clock=replicas.clock)  # type: ignore[misc]
    await replicas.start()
    await replicas.decide(replicas.right)
    run, report = await replicas.right.experimenter.report("trial")
    assert report.sample_ratio is not None
    assert (run.number, sum(report.sample_ratio.counts.values())) == (1, 0)
    await replicas.ask(replicas.right, 5)
    _, report = await replicas.right.experimenter.report("trial")
    assert report.sample_ratio is not None
    assert sum(report.sample_ratio.counts.values()) == 5


async def test_events_that_came_to_a_wiped_store_are_no_new_experiments(
    replicas: Replicas,
) -> None:
    """They waited in the outbox of a replica while the store was away."""
    await replicas.start()
    await replicas.ask(replicas.right, 1)
    (run,) = replicas.right.watcher.current.experiments
    enrollment = enroll([run], {"request": "late"})
    assert enrollment is not None
    replicas.right.recorder.exposure(enrollment, "late")
    replicas.store.__init__(wall_clock=replicas.clock)  # type: ignore[misc]
    await replicas.right.outbox.flush()
    await replicas.start()
    run, report = await replicas.right.experimenter.report("trial")
    assert report.sample_ratio is not None
    assert (run.number, sum(report.sample_ratio.counts.values())) == (2, 0)
