"""Published policies: immutable versions, one active, every change on record."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from orchestrator.errors import Conflict, InvalidRequest, StoreError, UnknownPolicy
from orchestrator.state.memory import MemoryStore
from orchestrator.state.store import Commit, Store, StoreState
from orchestrator.state.versions import (
    ACTIVE,
    LATEST,
    AuditInfo,
    PolicyVersions,
    Publication,
    active,
    active_before,
    build,
    newest_numbers,
)
from policies import POLICIES
from tests.orchestrator.commits import commit
from tests.orchestrator.conftest import Open

ANNA = AuditInfo("anna", "0a1b2c3d", "because")
DEFAULTS: dict[str, dict[str, Any]] = {"specreason": {"threshold": 6, "step_tokens": 40}}


def versions(store: Store) -> PolicyVersions:
    return PolicyVersions(store, POLICIES, DEFAULTS)


def publication(policy: str = "specreason", activate: bool = True, **params: Any) -> Publication:
    return Publication(policy=policy, params=params, author="anna", note="why", activate=activate)


async def test_a_version_carries_all_its_parameters(opened: Open) -> None:
    one = versions(opened())
    made = await one.publish(publication(threshold=7), ANNA)
    assert made.reference == "specreason@1"
    assert made.params["threshold"] == 7
    assert made.params["step_tokens"] == 40
    assert made.params == POLICIES["specreason"](threshold=7, step_tokens=40).model_dump(
        mode="json"
    )
    # Another replica, whose deployment file has changed since, reads the same policy.
    other = PolicyVersions(opened(), POLICIES, {"specreason": {"step_tokens": 9}})
    found = await other.find("specreason@1")
    assert found.document == made
    assert found.policy == POLICIES["specreason"](threshold=7, step_tokens=40)


async def test_each_policy_counts_its_own_versions(store: Store) -> None:
    one = versions(store)
    made = [
        await one.publish(publication(name), ANNA)
        for name in ("specreason", "bild", "specreason", "specreason")
    ]
    told = ["specreason@1", "bild@1", "specreason@2", "specreason@3"]
    assert [version.reference for version in made] == told
    assert newest_numbers(await store.state()) == ({"specreason": 3, "bild": 1}, {})
    assert [v.reference for v in await one.newest("specreason", 2)] == told[:1:-1]
    assert await one.newest("cascade", 9) == []


@pytest.mark.parametrize(
    ("policy", "params", "said"),
    [
        ("nonesuch", {}, "nonesuch"),
        ("specreason", {"thresh": 1}, "params.thresh: unknown parameter"),
        ("specreason", {"threshold": 99}, "params.threshold"),
        ("specreason", {"threshold": "7"}, "params.threshold"),
        ("specreason", {"max_cost": 0.01}, "params.max_cost: this service names no prices"),
    ],
)
async def test_what_is_wrong_is_never_published(
    store: Store, policy: str, params: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidRequest, match=said):
        await versions(store).publish(publication(policy, **params), ANNA)
    assert await store.state() == StoreState()


async def test_a_cap_on_the_cost_is_published_and_read_with_prices_only(store: Store) -> None:
    priced = PolicyVersions(store, POLICIES, DEFAULTS, priced=True)
    made = await priced.publish(publication(max_cost=0.01), ANNA)
    assert (await priced.find(made.reference)).policy.max_cost == 0.01
    with pytest.raises(StoreError, match="names no prices"):
        await versions(store).find(made.reference)


async def test_active_moves_and_rolls_back(store: Store) -> None:
    one = versions(store)
    with pytest.raises(InvalidRequest, match="nothing to roll back"):
        await one.rollback(ANNA)
    await one.publish(publication(threshold=1), ANNA)
    await one.publish(publication(threshold=2), ANNA)
    await one.publish(publication(threshold=3, activate=False), ANNA)
    assert active(await store.state()) == "specreason@2"
    assert await one.rollback(ANNA) == "specreason@1"
    assert active(await store.state()) == "specreason@1"
    assert active_before(await store.state()) == [None]
    assert await one.rollback(ANNA) is None  # the file's; not what was rolled back
    with pytest.raises(InvalidRequest, match="nothing to roll back"):
        await one.rollback(ANNA)
    await one.activate("specreason@3", ANNA)
    await one.activate("specreason@3", ANNA)  # twice is once
    await one.activate(None, ANNA)
    assert active(await store.state()) is None
    assert await one.rollback(ANNA) == "specreason@3"
    with pytest.raises(UnknownPolicy):
        await one.activate("specreason@4", ANNA)
    with pytest.raises(UnknownPolicy):
        await one.activate("specreason", ANNA)
    assert active(await store.state()) == "specreason@3"


async def test_a_rollback_by_name_forgets_what_it_leaves(store: Store) -> None:
    one = versions(store)
    for threshold in (1, 2, 3):
        await one.publish(publication(threshold=threshold), ANNA)
    assert await one.rollback(ANNA, "specreason@1") == "specreason@1"
    assert active_before(await store.state()) == [None]
    assert await one.rollback(ANNA, "specreason@3") == "specreason@3"  # by name, whatever it is
    assert await one.rollback(ANNA, "default") is None
    with pytest.raises(UnknownPolicy):
        await one.rollback(ANNA, "specreason@4")
    await one.activate("specreason@2", ANNA)
    await one.rollback(ANNA)
    with pytest.raises(InvalidRequest, match="nothing to roll back"):
        await one.rollback(ANNA)


async def test_a_rollback_waits_for_no_other_change_but_one_of_what_is_active(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = MemoryStore()
    one, other = versions(store), versions(store)
    for threshold in (1, 2, 3):
        await one.publish(publication(threshold=threshold), ANNA)
    committing = store.commit

    async def first(change: Callable[[], Awaitable[object]]) -> str | None:
        """Roll back; another replica's change comes first."""

        async def commit_after(known: str, commit: Commit) -> str:
            monkeypatch.setattr(store, "commit", committing)
            await change()
            return await committing(known, commit)

        monkeypatch.setattr(store, "commit", commit_after)
        return await one.rollback(ANNA)

    unrelated = publication("bild", activate=False)
    assert await first(lambda: other.publish(unrelated, ANNA)) == "specreason@2"
    with pytest.raises(Conflict, match="changed the active version"):
        await first(lambda: other.rollback(ANNA))
    assert active(await store.state()) == "specreason@1"


async def test_every_change_is_on_record(store: Store) -> None:
    one = versions(store)
    await one.publish(publication(threshold=1), ANNA)
    await one.publish(publication("bild", activate=False), AuditInfo("ben"))
    await one.activate("bild@1", ANNA)
    await one.rollback(AuditInfo("carl", None, "no"))
    told = await one.history(10)
    assert [(e["action"], e["what"], e["before"], e["author"]) for e in told] == [
        ("policy.rollback", "specreason@1", "bild@1", "carl"),
        ("policy.activate", "bild@1", "specreason@1", "anna"),
        ("policy.publish", "bild@1", "specreason@1", "ben"),
        ("policy.publish", "specreason@1", "default", "anna"),
    ]
    assert told[1]["key"] == "0a1b2c3d"
    assert told[0]["note"] == "no"
    assert [event["active"] for event in told] == [True, True, False, True]
    assert len(await one.history(2)) == 2


async def test_many_publish_at_once_and_each_gets_a_version(opened: Open) -> None:
    publishers = [versions(opened()) for _ in range(6)]
    made = await asyncio.gather(
        *(one.publish(publication(threshold=n % 10), ANNA) for n, one in enumerate(publishers))
    )
    assert sorted(version.version for version in made) == [1, 2, 3, 4, 5, 6]
    for version in made:
        assert (await publishers[0].find(version.reference)).document == version
    assert len(await publishers[0].history(99)) == 6


GOOD = {"policy": "specreason", "version": 1, "params": {"threshold": 7}, "created": 0.0}


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (b"", "cannot be used"),
        (b"\xff\x00", "cannot be used"),
        (b"[]", "cannot be used"),
        (json.dumps({**GOOD, "params": {"threshold": 99}}).encode(), "threshold"),
        (json.dumps({**GOOD, "params": {"surprise": 1}}).encode(), "surprise"),
        (json.dumps({**GOOD, "version": 2}).encode(), "specreason@2"),
        (json.dumps({**GOOD, "shell": "rm"}).encode(), "shell"),
    ],
)
async def test_what_is_read_is_checked_again(store: Store, document: bytes, said: str) -> None:
    await commit(store, {LATEST + "specreason": b"1"}, {"policy/specreason/1": document})
    one = versions(store)
    with pytest.raises(StoreError, match=said):
        await one.find("specreason@1")
    with pytest.raises(StoreError):
        await one.activate("specreason@1", ANNA)
    # What is broken is left behind: the next version is whole.
    assert (await one.publish(publication(), ANNA)).reference == "specreason@2"
    assert "specreason@2" in [v.reference for v in await one.newest("specreason", 9)]


async def test_a_version_with_parameters_that_no_longer_exist_is_read(store: Store) -> None:
    former = {"threshold": 7, "sure": None, "sure_at": 0.9, "probe": "", "probe_tokens": 16}
    for number, params in ((1, former), (2, {**former, "sure": 2})):
        document = json.dumps({**GOOD, "version": number, "params": params}).encode()
        await commit(store, {}, {f"policy/specreason/{number}": document})
    one = versions(store)
    found = await one.find("specreason@1")
    assert found.policy == POLICIES["specreason"](threshold=7)
    assert build(POLICIES, "specreason", {**found.document.params, "first_n": 1})
    for name, value in former.items():
        if name != "threshold":  # no client may give them
            with pytest.raises(InvalidRequest, match=name):
                await one.publish(publication(**{name: value}), ANNA)
    with pytest.raises(StoreError, match="sure"):  # it did something
        await one.find("specreason@2")


@pytest.mark.parametrize("pointer", [b"", b"\xff", b"specreason", b"specreason@0", b"a@1@2"])
async def test_pointers_are_checked_when_read(pointer: bytes) -> None:
    store = MemoryStore()
    await commit(store, audit=b"\xffgarbage")
    with pytest.raises(StoreError, match="holds no version"):
        active(StoreState("r", {ACTIVE: pointer}))
    assert await versions(store).history(5) == []
    for number in (b"x", b"", b"9" * 30, "٣".encode()):
        state = StoreState("r", {LATEST + "specreason": number, LATEST + "bild": b"2"})
        numbers, unreadable = newest_numbers(state)
        assert numbers == {"bild": 2}
        (said,) = unreadable.items()
        assert said[0] == LATEST + "specreason"
        assert "holds no number" in said[1]


@pytest.mark.parametrize("what", ["specreason", "@1", "specreason@01", "specreason@-1", "a/b@1"])
async def test_what_is_no_reference(what: str) -> None:
    with pytest.raises(UnknownPolicy):
        await versions(MemoryStore()).find(what)


async def test_pins_are_remembered_for_as_long_as_the_contents_are_the_same() -> None:
    store = MemoryStore()
    one = versions(store)
    await one.publish(publication(threshold=1), ANNA)
    asked = []

    async def documents(names: Any) -> Any:
        asked.append(names)
        return await MemoryStore.documents(store, names)

    store.documents = documents  # type: ignore[method-assign]
    for identity in ("a", "a", "b", "a", None):
        await one.find("specreason@1", identity=identity)
    assert len(asked) == 3
