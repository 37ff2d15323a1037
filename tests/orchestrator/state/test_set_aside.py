"""What this release cannot use of the configuration is set aside; everything else goes on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from orchestrator.errors import StoreUnavailable, Unusable
from orchestrator.experiments.documents import Experiment
from orchestrator.experiments.runs import Run, Runs
from orchestrator.http.service import Service
from orchestrator.state.memory import MemoryStore
from orchestrator.state.store import Store
from orchestrator.state.versions import (
    ACTIVE,
    LATEST,
    PREVIOUS,
    AuditInfo,
    PolicyVersions,
    Publication,
)
from orchestrator.state.watcher import ConfigWatcher
from policies import POLICIES
from tests.orchestrator.commits import commit
from tests.orchestrator.serving import HTTP, planned, post, service, serving

ME = AuditInfo("ada")
GONE = {"policy": "specreason", "version": 1, "params": {"gone": 1}, "created": 0.0}
"""As an earlier release published it, which had that parameter."""
ARMS = [{"name": "large", "policy": "large-only"}, {"name": "small", "policy": "small-only"}]
STATE: dict[str, Any] = {"started": 1.0, "step_since": 1.0}
OLD = {"name": "old", "arms": ARMS, "kind": "bandit"}
"""As another release started it, which had this key."""


async def with_gone(store: Store) -> None:
    """The active version has a parameter that this release does not know."""
    document = {"policy/specreason/1": json.dumps(GONE).encode()}
    await commit(store, {ACTIVE: b"specreason@1", LATEST + "specreason": b"1"}, document)


async def with_unreadable(store: Store) -> None:
    """An experiment runs whose document this release cannot read."""
    document = {"experiment/old/1": json.dumps(OLD).encode()}
    pointer = json.dumps({"run": 1, "state": STATE}).encode()
    await commit(store, {"experiment/old": pointer}, document)


def parts(store: Store) -> tuple[ConfigWatcher, PolicyVersions, Runs]:
    versions = PolicyVersions(store, POLICIES, {})
    runs = Runs(store, versions, ())
    return ConfigWatcher(store, versions, runs, CollectorRegistry()), versions, runs


def trial(name: str = "trial") -> Experiment:
    return Experiment.parse({"name": name, "arms": ARMS})


def spoiled() -> MemoryStore:
    """A store that holds an active version and an experiment that cannot be used here."""
    store = MemoryStore()
    with ThreadPoolExecutor(1) as thread:  # a test's own may run an event loop: a browser's does
        for spoil in (with_gone, with_unreadable):
            thread.submit(asyncio.run, spoil(store)).result()
    return store


@pytest.fixture
def broken() -> Iterator[tuple[Service, str]]:
    made = service(store=spoiled())
    with serving(made) as url:
        yield made, url


def get(url: str, path: str) -> Any:
    reply = HTTP.get(f"{url}{path}")
    assert reply.status_code == 200, reply.text
    return reply.json()


def test_it_is_named_wherever_it_is_shown(broken: tuple[Service, str]) -> None:
    _, url = broken
    assert post(url).json()["baton"]["version"] == 0  # the deployment file's
    ready = get(url, "/ready")
    assert (ready["ready"], ready["store"], ready["degraded"]) == (True, True, True)
    listed = get(url, "/v1/policies")
    assert (listed["active"], listed["answering"]) == ("specreason@1", None)
    assert listed["not_in_effect"].keys() == {"policy/active", "experiment/old"}
    assert listed["not_in_effect"]["policy/active"].startswith("specreason@1 cannot be used: ")
    assert "gone: unknown parameter" in listed["degraded"]
    assert "experiment/old is not in effect" in listed["degraded"]
    for path in ("/v1/policies/active", "/v1/policies/specreason@1"):
        shown = get(url, path)
        assert (shown["id"], shown["params"]) == ("specreason@1", {"gone": 1})
        assert "gone: unknown parameter" in shown["trouble"]
    (version,) = get(url, "/v1/policies/specreason")["data"]
    assert "gone: unknown parameter" in version["trouble"]
    listed = get(url, "/v1/experiments")
    assert listed["not_in_effect"].keys() == {"old"}
    (run,) = listed["data"]
    assert run == get(url, "/v1/experiments/old")
    assert (run["id"], run["status"], run["in_effect"]) == ("old", "unreadable", False)
    assert "kind: unknown parameter" in run["trouble"]
    refused = HTTP.get(f"{url}/v1/experiments/old/report")
    assert (refused.status_code, refused.json()["error"]["code"]) == (500, "store_unusable")
    assert "may be removed" in refused.json()["error"]["message"]
    assert "baton_config_set_aside 2.0" in HTTP.get(f"{url}/metrics").text


def test_everything_else_goes_on_and_a_call_removes_it(broken: tuple[Service, str]) -> None:
    made, url = broken
    publish = {"policy": "specreason", "params": {"threshold": 4}}
    assert HTTP.post(f"{url}/v1/policies", json=publish).json()["id"] == "specreason@2"
    assert post(url).json()["baton"]["version"] == 2
    started = HTTP.post(f"{url}/v1/experiments", json={"name": "trial", "arms": ARMS})
    assert started.status_code == 201, started.text
    assert post(url).json()["baton"]["experiment"] == "trial"
    assert made.shared.watcher.current.set_aside.keys() == {"experiment/old"}
    assert HTTP.post(f"{url}/v1/experiments/old/stop", json={}).status_code == 500
    removed = HTTP.post(f"{url}/v1/experiments/old/remove", json={"note": "of another release"})
    assert (removed.status_code, removed.json()["trouble"]) == (200, None)
    assert HTTP.get(f"{url}/v1/experiments/old").status_code == 404
    assert get(url, "/ready")["degraded"] is False
    assert get(url, "/v1/policies/history")["data"][0]["action"] == "experiment.remove"
    # Back to what cannot be used: refused by name. To the file's: not.
    for back in ({"version": "specreason@1"}, {"to": "specreason@1"}):
        path = "active" if "version" in back else "rollback"
        method = "PUT" if "version" in back else "POST"
        refused = HTTP.request(method, f"{url}/v1/policies/{path}", json=back)
        assert (refused.status_code, refused.json()["error"]["code"]) == (500, "store_unusable")
        assert "gone" in refused.json()["error"]["message"]
    assert HTTP.post(f"{url}/v1/policies/rollback", json={"to": "default"}).status_code == 200


def test_an_active_version_is_left_by_rollback_and_by_the_files_default(
    broken: tuple[Service, str],
) -> None:
    made, url = broken
    assert HTTP.put(f"{url}/v1/policies/active", json={"version": None}).status_code == 200
    assert made.shared.watcher.current.set_aside.keys() == {"experiment/old"}
    asyncio.run(commit(made.shared.store, {ACTIVE: b"specreason@1", PREVIOUS: b"default"}))
    assert HTTP.post(f"{url}/v1/policies/rollback", json={}).status_code == 200
    assert get(url, "/v1/policies")["active"] is None


async def test_the_version_that_was_read_last_stays() -> None:
    store = MemoryStore()
    watcher, versions, _ = parts(store)
    good = await versions.publish(Publication(policy="specreason", params={"threshold": 3}), ME)
    await watcher.refresh()
    newer = json.dumps({**GONE, "version": 2}).encode()
    await commit(store, {ACTIVE: b"specreason@2"}, {"policy/specreason/2": newer})
    await watcher.refresh()
    assert watcher.current.active is not None
    assert watcher.current.active.document == good
    assert "specreason@2" in watcher.current.set_aside[ACTIVE]
    assert (await versions.publish(Publication(policy="specreason"), ME)).version == 3


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"\xff",
        b"[" * 5000,
        json.dumps(OLD).encode(),
        json.dumps({"name": "old", "arms": [*ARMS, ARMS[0]]}).encode(),  # a contradiction
        json.dumps({"name": "other", "arms": ARMS}).encode(),
        None,
    ],
)
async def test_an_experiment_that_cannot_be_read_takes_nothing_else_away(
    document: bytes | None,
) -> None:
    store = MemoryStore()
    watcher, versions, runs = parts(store)
    run = await runs.start(trial(), ME)
    documents = {} if document is None else {"experiment/old/1": document}
    pointer = json.dumps({"run": 1, "state": STATE}).encode()
    await commit(store, {"experiment/old": pointer}, documents)
    await watcher.refresh()
    assert watcher.current.experiments == (run,)
    assert watcher.current.set_aside.keys() == {"experiment/old"}
    await versions.publish(Publication(policy="bild"), ME)
    await watcher.refresh()
    assert watcher.current.active is not None
    with pytest.raises(Unusable, match="may be removed"):
        await runs.find("old")
    assert await runs.remove("old", ME) is None
    await watcher.refresh()
    assert watcher.current.set_aside == {}


async def test_an_unreadable_experiment_is_replaced_by_a_new_start() -> None:
    store = MemoryStore()
    watcher, _, runs = parts(store)
    await with_unreadable(store)
    assert (await runs.start(trial("old"), ME)).number == 2
    await watcher.refresh()
    assert watcher.current.set_aside == {}


async def test_a_store_that_is_away_sets_nothing_aside() -> None:
    store = MemoryStore()
    watcher, versions, runs = parts(store)
    await versions.publish(Publication(policy="bild"), ME)
    await watcher.refresh()
    before = watcher.current

    async def away(names: Any) -> Any:
        raise StoreUnavailable("away")

    await runs.start(trial(), ME)
    store.documents = away  # type: ignore[method-assign]
    with pytest.raises(StoreUnavailable):
        await watcher.refresh()
    assert (watcher.current, watcher.error) == (before, "away")


ANYTHING = st.one_of(
    st.binary(max_size=40),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["run", "state", "name", "step", "arms"]), inner)
        ),
        max_leaves=8,
    ).map(lambda value: json.dumps(value).encode()),
)
POINTERS = st.sampled_from(
    [
        ACTIVE,
        PREVIOUS,
        LATEST + "specreason",
        "experiment/old",
        "experiment/trial",
        "experiment/a/b",
    ]
)


@settings(max_examples=50)
@given(st.dictionaries(POINTERS, ANYTHING, max_size=4), ANYTHING)
def test_nothing_in_the_configuration_freezes_it(
    pointers: dict[str, bytes], document: bytes
) -> None:
    """Whatever pointers and documents hold: a policy and an experiment that come after are in
    effect, and what is set aside can be removed."""

    async def run() -> None:
        store = MemoryStore()
        watcher, versions, runs = parts(store)
        documents = {"policy/specreason/1": document, "experiment/old/1": document}
        await commit(store, pointers, documents)
        await watcher.refresh()
        made = await versions.publish(Publication(policy="specreason"), ME)
        await watcher.refresh()
        assert watcher.current.active is not None
        assert watcher.current.active.document == made
        await versions.rollback(ME, "default")
        for name in (await runs.read(await store.state())).unreadable:
            await runs.remove(name, ME)
        for one in (await runs.read(await store.state())).runs:
            if one.live:
                await runs.stop(one.name, ME)
        begun: Run = await runs.start(trial("new"), ME)
        await watcher.refresh()
        assert begun in watcher.current.experiments
        assert watcher.current.set_aside == {}
        assert watcher.error is None

    asyncio.run(run())


async def test_a_request_is_answered_though_nothing_can_be_used() -> None:
    store = MemoryStore()
    await commit(store, {ACTIVE: b"\xff", PREVIOUS: b"\xff", LATEST + "specreason": b"x"})
    made = service(store=store)
    await made.shared.start()
    assert (await planned(made, "baton")).version == 0
    assert made.shared.error is None
    assert "policy/active is not in effect" in (made.shared.degraded or "")
    await made.shared.stop()
