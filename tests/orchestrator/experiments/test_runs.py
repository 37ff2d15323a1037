"""Experiments in the store, in memory and in a real Redis: started, changed, stopped, on record."""

from __future__ import annotations

import json
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from orchestrator.errors import (
    Conflict,
    InvalidRequest,
    StoreError,
    StoreUnavailable,
    UnknownPolicy,
)
from orchestrator.experiments.assignment import assign
from orchestrator.experiments.documents import Experiment, StoppedArm, initial_state
from orchestrator.experiments.runs import Run, Runs
from orchestrator.http.routes.experiments import run_json
from orchestrator.state.memory import MemoryStore
from orchestrator.state.store import AUDIT, Store
from orchestrator.state.versions import AuditInfo, PolicyVersions, Publication
from orchestrator.state.watcher import ConfigWatcher
from policies import POLICIES
from tests.orchestrator.commits import commit

ME = AuditInfo(author="ada", key="12345678", note="try it")


def runs_of(store: Store, *methods: str) -> Runs:
    versions = PolicyVersions(store, POLICIES, {"specreason": {"threshold": 6.0}})
    return Runs(store, versions, methods)


def next_build(store: Store) -> Runs:
    """The experiments as a replica of a build without one policy reads them."""
    policies = {name: made for name, made in POLICIES.items() if name != "specreason"}
    return Runs(store, PolicyVersions(store, policies, {}), ())


async def watched(store: Store, runs: Runs) -> ConfigWatcher:
    watcher = ConfigWatcher(store, PolicyVersions(store, POLICIES, {}), runs, CollectorRegistry())
    await watcher.refresh()
    return watcher


def document(**more: Any) -> Experiment:
    arms = [
        {"name": "large", "policy": "large-only"},
        {"name": "shared", "policy": "specreason", "params": {"first_n": 2}},
    ]
    return Experiment.parse({"name": "trial", "arms": arms, **more})


async def test_an_experiment_from_start_to_stop(store: Store) -> None:
    runs = runs_of(store)
    started = await runs.start(document(), ME)
    assert started.live
    assert (started.number, started.stream) == (1, "outcomes/trial/1")
    built = started.arms["shared"]
    assert (built.name, built.version) == ("specreason", 0)
    assert built.policy.model_dump()["threshold"] == 6.0  # the deployment file's
    assert built.policy.model_dump()["first_n"] == 2
    assert await runs_of(store).find("trial") == started  # as another replica reads it
    stopped = await runs.stop("trial", ME)
    assert not stopped.live
    with pytest.raises(Conflict, match="does not run"):
        await runs.stop("trial", ME)
    again = await runs.start(document(coverage=0.5), ME)
    assert (again.number, again.experiment.coverage) == (2, 0.5)
    audit = [json.loads(entry.event) for entry in await store.newest(AUDIT, 10)]
    assert [(one["action"], one["what"]) for one in audit] == [
        ("experiment.start", "trial/2"),
        ("experiment.stop", "trial/1"),
        ("experiment.start", "trial/1"),
    ]
    assert (audit[0]["author"], audit[0]["key"], audit[0]["note"]) == ("ada", "12345678", "try it")


async def test_of_two_that_start_at_one_moment_one_comes_second(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever looked before the other was there looks again."""
    commit, raced = store.commit, list[Run]()

    async def racing(*changes: Any) -> None:
        if not raced:
            monkeypatch.setattr(store, "commit", commit)
            raced.append(await runs_of(store).start(document(name="other"), ME))
        await commit(*changes)

    monkeypatch.setattr(store, "commit", racing)
    with pytest.raises(Conflict, match="the experiment other runs"):
        await runs_of(store).start(document(), ME)
    assert raced[0].live


async def test_nobody_computes_arms_from_what_users_are_told(store: Store) -> None:
    runs, units = runs_of(store), [f"s{n}" for n in range(200)]

    def arms(run: Run) -> list[str | None]:
        return [assign(run.experiment, run.state, unit) for unit in units]

    guess = Run(1, document(), initial_state(0.0), {})
    first = await runs.start(document(), ME)
    other = await runs_of(MemoryStore()).start(document(), ME)
    guessed = sum(one == two for one, two in zip(arms(first), arms(guess), strict=True))
    assert 60 < guessed < 140  # by chance 100, by 7 a standard deviation
    assert arms(first) != arms(other)  # not by the name, either
    await runs.stop("trial", ME)
    again = await runs.start(document(), ME)
    assert arms(again) == arms(first)  # who asked before, keeps their arm
    await runs.stop("trial", ME)
    named = await runs.start(document(secret="0" * 32), ME)
    assert arms(named) == arms(Run(1, document(secret="0" * 32), initial_state(0.0), {}))


async def test_streams_that_nothing_reads_any_more_are_dropped(store: Store) -> None:
    runs = runs_of(store)

    async def record(run: Run) -> None:
        await store.append(run.stream, [b"{}"], keep=10)

    async def held(*numbers: int) -> list[int]:
        return [len(await store.read(f"outcomes/trial/{n}")) for n in numbers]

    first = await runs.start(document(), ME)
    await record(first)
    await runs.stop("trial", ME)
    assert await held(1) == [1]  # its report is still asked for
    second = await runs.start(document(), ME)
    await record(second)
    assert await held(1, 2) == [0, 1]
    await record(first)  # what came late goes with the next
    await runs.stop("trial", ME)
    await runs.remove("trial", ME)
    assert await held(1, 2) == [0, 0]
    await record(second)
    third = await runs.start(document(), ME)
    await record(third)
    assert (third.number, await held(1, 2, 3)) == (3, [0, 0, 1])


async def test_an_experiment_starts_though_old_streams_cannot_be_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def away(*streams: str) -> None:
        raise StoreError("it is away")

    store = MemoryStore()
    monkeypatch.setattr(store, "drop", away)
    runs = runs_of(store)
    for number in (1, 2):
        assert (await runs.start(document(), ME)).number == number
        await runs.stop("trial", ME)
    assert (await runs.remove("trial", ME)).number == 2


async def test_only_one_of_two_changes_to_the_same_state_is_made(store: Store) -> None:
    runs = runs_of(store)
    run = await runs.start(document(), ME)
    stops = {"shared": StoppedArm(at=1.0, why="slow")}
    changed = run.state.model_copy(update={"stopped": stops})
    await PolicyVersions(store, POLICIES, {}).publish(Publication(policy="bild"), ME)
    await runs.change(run, changed, "guardrail", ME)  # another commit is no change of the run
    with pytest.raises(Conflict):
        await runs.change(run, run.state.model_copy(update={"step": 1}), "ramp", ME)
    assert (await runs.find("trial")).state == changed


async def test_what_runs_at_the_same_time_must_exclude_each_other(store: Store) -> None:
    runs = runs_of(store)

    def part(name: str, start: float, end: float) -> Experiment:
        return document(name=name, group={"name": "g", "start": start, "end": end})

    await runs.start(part("one", 0, 0.5), ME)
    await runs.start(part("two", 0.5, 1), ME)
    with pytest.raises(Conflict, match="runs already"):
        await runs.start(part("one", 0, 0.5), ME)
    with pytest.raises(Conflict, match="its own part"):
        await runs.start(part("three", 0.2, 0.6), ME)
    with pytest.raises(Conflict, match="its own part"):
        await runs.start(document(name="four"), ME)
    await runs.stop("one", ME)
    await runs.stop("two", ME)
    await runs.start(document(name="four"), ME)


async def test_an_arm_may_be_a_published_version(store: Store) -> None:
    runs, versions = runs_of(store), PolicyVersions(store, POLICIES, {})
    published = Publication(policy="specreason", params={"threshold": 3.0})
    await versions.publish(published, ME)
    arms = [
        {"name": "old", "policy": "specreason@1"},
        {"name": "new", "policy": "specreason@1", "params": {"threshold": 8.0}},
    ]
    run = await runs.start(document(arms=arms), ME)
    assert [run.arms[name].version for name in ("old", "new")] == [1, 1]
    assert [run.arms[n].policy.model_dump()["threshold"] for n in ("old", "new")] == [3.0, 8.0]


@pytest.mark.parametrize(
    ("arm", "place", "told"),
    [
        ({"policy": "nothing"}, "arms.new", "no policy is named"),
        ({"policy": "specreason@9"}, "arms.new", "no version"),
        (
            {"policy": "specreason", "params": {"treshold": 3}},
            "arms.new.params.treshold",
            "unknown",
        ),
        (
            {"policy": "specreason", "params": {"max_cost": 0.01}},
            "arms.new.params.max_cost",
            "names no prices",
        ),
        ({"policy": "bild", "speculation": "chain"}, "arms.new.speculation", "offers lookup"),
    ],
)
async def test_an_arm_that_cannot_be_built_is_refused_by_name(
    arm: dict[str, Any], place: str, told: str
) -> None:
    arms = [{"name": "large", "policy": "large-only"}, {"name": "new", **arm}]
    with pytest.raises(InvalidRequest, match=told) as caught:
        await runs_of(MemoryStore(), "lookup").start(document(arms=arms), ME)
    assert caught.value.param == place


async def test_an_arm_whose_method_is_no_longer_offered_stops_its_own_experiment_alone() -> None:
    store = MemoryStore()
    arms = [
        {"name": "large", "policy": "large-only"},
        {"name": "copied", "policy": "large-only", "speculation": "lookup"},
    ]
    await runs_of(store, "lookup").start(document(arms=arms), ME)
    changed = runs_of(store, "vanilla")
    (run,) = (await watched(store, changed)).current.experiments
    assert run.live
    assert "'lookup' is not offered" in (run.error or "")
    assert run_json(run)["trouble"] == run.error
    with pytest.raises(InvalidRequest, match="'lookup' is not offered"):
        await changed.start(document(name="other", arms=arms), ME)
    ended = await changed.stop(run.name, ME)
    assert not ended.live
    assert run_json(ended)["trouble"] is None


async def test_nobody_knows_an_experiment_that_never_ran(store: Store) -> None:
    with pytest.raises(UnknownPolicy) as caught:
        await runs_of(store).find("nothing")
    assert caught.value.code == "experiment_not_found"


async def test_what_cannot_be_built_any_more_is_set_aside_and_can_be_removed(store: Store) -> None:
    old = runs_of(store)
    await old.start(document(), ME)
    await old.stop("trial", ME)
    versions = PolicyVersions(store, POLICIES, {})
    other = await versions.publish(Publication(policy="bild", activate=True), ME)
    new = next_build(store)
    watcher = await watched(store, new)
    assert watcher.error is None
    assert watcher.current.active is not None
    assert watcher.current.active.document.version == other.version
    (run,) = watcher.current.experiments
    assert run.error is not None
    assert "no policy is named" in run.error
    assert run_json(run)["trouble"] == run.error
    assert run_json(run)["arms"] == {}
    arms = [{"name": name, "policy": "bild"} for name in ("a", "b")]
    second = await new.start(Experiment.parse({"name": "second", "arms": arms}), ME)
    with pytest.raises(Conflict, match="stop it first"):
        await new.remove("second", ME)
    await new.stop("second", ME)
    await new.remove("trial", ME)
    with pytest.raises(UnknownPolicy):
        await new.find("trial")
    assert second.number == 1
    arms = [{"name": name, "policy": "bild"} for name in ("large", "new")]
    again = await new.start(Experiment.parse({"name": "trial", "arms": arms}), ME)
    assert again.number == 2  # the first one's events are not its own
    await new.stop("trial", ME)
    await new.remove("trial", ME)
    await watcher.refresh()
    assert [one.name for one in watcher.current.experiments] == ["second"]


async def test_a_pinned_version_that_cannot_be_built_any_more_takes_nothing_else_away() -> None:
    store = MemoryStore()
    versions = PolicyVersions(store, POLICIES, {})
    await versions.publish(Publication(policy="specreason", activate=False), ME)
    arms = [{"name": "old", "policy": "bild"}, {"name": "new", "policy": "specreason@1"}]
    await runs_of(store).start(document(arms=arms), ME)
    await runs_of(store).stop("trial", ME)
    await versions.publish(Publication(policy="bild"), ME)
    new = next_build(store)
    watcher = await watched(store, new)
    assert watcher.current.active is not None
    (run,) = watcher.current.experiments
    assert "no such policy any more" in (run.error or "")
    with pytest.raises(InvalidRequest, match="no such policy any more"):
        await new.start(document(name="other", arms=arms), ME)


async def test_arms_with_parameters_that_no_longer_exist_are_read_and_not_started() -> None:
    store, params = MemoryStore(), {"threshold": 7.0, "probe": ""}
    arms = [{"name": name, "policy": "specreason", "params": params} for name in ("a", "b")]
    trial = document(arms=arms)
    with pytest.raises(InvalidRequest, match="probe"):
        await runs_of(store).start(trial, ME)
    pointer = json.dumps({"run": 1, "state": initial_state(1.0).model_dump()}).encode()
    written = {"experiment/trial/1": trial.model_dump_json().encode()}
    await commit(store, {"experiment/trial": pointer}, written)
    run = await runs_of(store).find("trial")
    assert run.error is None
    assert run.arms["a"].policy == POLICIES["specreason"](threshold=7)


async def test_a_store_that_is_away_breaks_no_experiment(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    versions = PolicyVersions(store, POLICIES, {})
    await versions.publish(Publication(policy="specreason"), ME)
    arms = [{"name": "old", "policy": "bild"}, {"name": "new", "policy": "specreason@1"}]
    await runs_of(store).start(document(arms=arms), ME)

    async def away(*names: Any, **more: Any) -> Any:
        raise StoreUnavailable("away")

    monkeypatch.setattr(versions, "find", away)
    new = Runs(store, versions, ())
    with pytest.raises(StoreUnavailable):
        await new.find("trial")
    monkeypatch.undo()
    assert (await new.find("trial")).error is None
