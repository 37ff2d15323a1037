"""Published policies over HTTP, and what requests see of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from orchestrator.errors import StoreUnavailable
from orchestrator.http.ask import Incoming
from orchestrator.http.records import OUTCOMES, REWARDS
from orchestrator.http.service import Service
from orchestrator.http.settings import WhenBusy
from orchestrator.state.memory import MemoryStore
from tests.orchestrator.serving import (
    HTTP,
    asked,
    client,
    post,
    service,
    serving,
    until,
)


@pytest.fixture
def made() -> Service:
    return service(params={"specreason": {"step_tokens": 40}})


@pytest.fixture
def url(made: Service) -> Iterator[str]:
    with serving(made) as address:
        yield address


def publish(url: str, threshold: float = 1, **more: Any) -> httpx.Response:
    body = {"policy": "specreason", "params": {"threshold": threshold}, **more}
    return HTTP.post(f"{url}/v1/policies", json=body)


def refused(reply: httpx.Response, status: int) -> dict[str, Any]:
    assert reply.status_code == status, reply.text
    error: dict[str, Any] = reply.json()["error"]
    return error


def test_a_published_policy_answers(url: str) -> None:
    assert post(url).json()["baton"]["version"] == 0
    reply = publish(url, 0, note="never rewrite", author="anna")
    assert reply.status_code == 201
    shown = reply.json()
    assert (shown["id"], shown["version"], shown["author"]) == ("specreason@1", 1, "anna")
    assert shown["params"]["step_tokens"] == 40
    answer = post(url).json()["baton"]
    assert (answer["policy"], answer["version"]) == ("specreason", 1)
    assert {step["author"] for step in answer["steps"]} == {"small"}
    publish(url, 10, activate=False)
    assert post(url).json()["baton"]["version"] == 1
    pinned = post(url, {"model": "specreason@2"}).json()
    assert (pinned["model"], pinned["baton"]["version"]) == ("specreason@2", 2)
    assert "large" in {step["author"] for step in pinned["baton"]["steps"]}
    assert post(url, {"model": "specreason"}).json()["baton"]["version"] == 0
    with client(url) as api:
        assert "specreason@2" in [model.id for model in api.models.list()]
        assert api.models.retrieve("specreason@1").id == "specreason@1"
    assert HTTP.get(f"{url}/v1/models/specreason@4").status_code == 404
    assert HTTP.get(f"{url}/v1/models/bild@1").status_code == 404


def test_a_request_may_override_a_version_and_says_so(url: str) -> None:
    publish(url, 10)
    reply = post(url, {"policy": {"threshold": 0}}).json()["baton"]
    assert reply["version"] == 1
    assert {step["author"] for step in reply["steps"]} == {"small"}
    record = HTTP.get(f"{url}/v1/traces/{reply['trace_id']}").json()
    assert (record["overrides"], record["parameters"]["step_tokens"]) == (["threshold"], 40)
    other = post(url, {"policy": {"name": "large-only"}}).json()["baton"]
    assert (other["policy"], other["version"]) == ("large-only", 0)


async def policy_of(made: Service, **body: Any) -> str:
    async with made.admit(asked(**{"model": "baton", **body}), Incoming("request")) as (answers, _):
        return answers[0].plan.name


async def test_while_many_answers_are_made_baton_means_another_policy() -> None:
    made = service(when_busy=WhenBusy(answers=3), methods={"lookup": "lookup"})
    async with made.admit(asked(n=2), Incoming("other")):
        assert await policy_of(made, n=4) == "specreason"
        async with made.admit(asked(), Incoming("another")):
            assert await policy_of(made) == "large-only"
            assert await policy_of(made, speculation="lookup") == "large-only"
            assert await policy_of(made, model="bild") == "bild"
            assert await policy_of(made, policy={"name": "bild"}) == "bild"
            assert await policy_of(made, policy={"threshold": 2}) == "specreason"  # its own
        assert await policy_of(made) == "specreason"


async def test_requests_that_come_at_once_count_each_other() -> None:
    made = service(when_busy=WhenBusy(answers=3))
    done = asyncio.Event()

    async def answered() -> str:
        async with made.admit(asked(model="baton"), Incoming("request")) as (answers, _):
            await done.wait()
            return answers[0].plan.name

    tasks = [asyncio.create_task(answered()) for _ in range(8)]
    await asyncio.sleep(0.05)
    done.set()
    assert await asyncio.gather(*tasks) == ["specreason"] * 3 + ["large-only"] * 5
    assert await policy_of(made) == "specreason"


async def test_a_published_policy_answers_busy_or_not() -> None:
    made = service(when_busy=WhenBusy(answers=1))
    with serving(made) as url:
        overview = HTTP.get(f"{url}/v1/policies").json()
        assert overview["when_busy"] == {"answers": 1, "policy": "large-only"}
        publish(url)
        async with made.admit(asked(), Incoming("other")):
            assert await policy_of(made) == "specreason"


def test_moving_the_pointer(url: str) -> None:
    active, policies = f"{url}/v1/policies/active", f"{url}/v1/policies"
    assert HTTP.get(active).json()["version"] == 0
    assert refused(HTTP.post(f"{policies}/rollback", json={}), 400)
    assert HTTP.get(policies).json()["can_roll_back"] is False
    for threshold in (1, 2):
        publish(url, threshold, note=f"number {threshold}")
    assert HTTP.get(active).json()["id"] == "specreason@2"
    assert HTTP.post(f"{policies}/rollback", json={}).json()["id"] == "specreason@1"
    assert post(url).json()["baton"]["version"] == 1
    put = HTTP.put(active, json={"version": "specreason@2", "author": "ben", "note": "again"})
    assert put.json()["id"] == "specreason@2"
    assert HTTP.put(active, json={"version": None}).json()["version"] == 0
    assert post(url).json()["baton"]["version"] == 0
    shown = HTTP.get(f"{policies}/history").json()["data"]
    assert [event["what"] for event in shown[:3]] == ["default", "specreason@2", "specreason@1"]
    assert shown[1]["author"] == "ben"
    overview = HTTP.get(policies).json()
    assert (overview["active"], overview["previous"]) == (None, "specreason@2")
    assert overview["can_roll_back"] is True  # though the default is active
    assert overview["degraded"] is None
    assert {"policy": "specreason", "latest": 2} in [
        {key: row[key] for key in ("policy", "latest")} for row in overview["data"]
    ]
    versions = HTTP.get(f"{policies}/specreason?count=1").json()["data"]
    assert [version["note"] for version in versions] == ["number 2"]
    assert HTTP.get(f"{policies}/specreason@1").json()["params"]["threshold"] == 1
    assert HTTP.get(f"{policies}/bild").json()["data"] == []


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "param"),
    [
        ("POST", "", {}, 400, "policy"),
        ("POST", "", {"policy": "nonesuch"}, 404, "policy"),
        ("POST", "", {"policy": "specreason", "params": {"thresh": 1}}, 400, "params.thresh"),
        ("POST", "", {"policy": "specreason", "params": {"threshold": 99}}, 400, None),
        ("POST", "", {"policy": "specreason", "params": []}, 400, "params"),
        ("POST", "", {"policy": "specreason", "activated": True}, 400, "activated"),
        ("POST", "", {"policy": "specreason", "note": "x" * 1001}, 400, "note"),
        ("PUT", "/active", {}, 400, "version"),
        ("PUT", "/active", {"version": "specreason@9"}, 404, "version"),
        ("PUT", "/active", {"version": "specreason"}, 404, "version"),
        ("PUT", "/active", {"version": 3}, 400, "version"),
        ("POST", "/rollback", {"to": 1}, 400, "to"),
        ("POST", "/rollback", {"to": "specreason@9"}, 404, "to"),
        ("GET", "/nonesuch", None, 404, None),
        ("GET", "/specreason@9", None, 404, None),
        ("GET", "/specreason@x", None, 404, None),
        ("GET", "/history?count=0", None, 400, None),
        ("DELETE", "/active", None, 405, None),
    ],
)
def test_what_is_refused(
    url: str, method: str, path: str, body: Any, status: int, param: str | None
) -> None:
    error = refused(HTTP.request(method, f"{url}/v1/policies{path}", json=body), status)
    assert param is None or error["param"] == param


def test_only_json_changes_anything(url: str) -> None:
    for headers in ({}, {"content-type": "text/plain"}):
        reply = HTTP.post(f"{url}/v1/policies", content=b'{"policy": "bild"}', headers=headers)
        assert refused(reply, 400)["code"] == "invalid_content_type"


def outcomes(made: Service) -> list[dict[str, Any]]:
    assert isinstance(made.shared.store, MemoryStore)
    streams = made.shared.store._streams
    entries = [*streams.get(OUTCOMES, ()), *streams.get(REWARDS, ())]
    return [json.loads(entry.event) for entry in entries]


def test_outcomes_and_feedback(made: Service, url: str) -> None:
    publish(url, 10)
    shown = post(url).json()["baton"]
    until(lambda: len(outcomes(made)) == 1)
    (outcome,) = outcomes(made)
    expected = {key: shown[key] for key in ("trace_id", "policy", "version")} | {
        "kind": "outcome",
        "status": "finished",
        "finish_reason": "stop",
        "large_tokens": shown["metrics"]["large_tokens"],
        "accepted": shown["metrics"]["acceptance_rate"],
    }
    assert outcome.items() >= expected.items()
    assert 0 <= outcome["first_step_ms"] <= outcome["ms"]
    given = {"trace_id": shown["trace_id"], "reward": 0.5}
    reply = HTTP.post(f"{url}/v1/feedback", json=given)
    assert (reply.status_code, given.items() <= reply.json().items()) == (200, True)
    until(lambda: len(outcomes(made)) == 2)
    reward = outcomes(made)[1]
    assert (reward["kind"], reward["reward"], reward["version"]) == ("reward", 0.5, 1)


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"trace_id": "nonesuch", "reward": 1}, 404, None),
        ({"trace_id": "a b", "reward": 1}, 400, "trace_id"),
        ({"trace_id": "x", "reward": 1.5}, 400, "reward"),
        ({"trace_id": "x", "reward": "1"}, 400, "reward"),
        ({"trace_id": "x", "reward": True}, 400, "reward"),
        ({"trace_id": "x"}, 400, "reward"),
        ({"reward": 1}, 400, "trace_id"),
        ({"trace_id": "x", "reward": 1, "user": "me"}, 400, "user"),
    ],
)
def test_feedback_that_is_refused(
    made: Service, url: str, body: Any, status: int, param: str | None
) -> None:
    assert refused(HTTP.post(f"{url}/v1/feedback", json=body), status)["param"] == param
    assert outcomes(made) == []


def test_two_replicas_share_versions_and_traces() -> None:
    """Both follow one store, each with a server of its own."""

    store = MemoryStore()
    with serving(service(store=store)) as one, serving(service(store=store)) as other:
        publish(one)
        until(lambda: post(other).json()["baton"]["version"] == 1)
        trace = post(other).json()["baton"]["trace_id"]
        until(lambda: HTTP.get(f"{one}/v1/traces/{trace}").status_code == 200)
        given = {"trace_id": trace, "reward": 1}
        assert HTTP.post(f"{one}/v1/feedback", json=given).status_code == 200


@pytest.mark.parametrize("back_to_the_file", [False, True])
def test_what_is_active_after_a_wipe_is_what_is_served(
    made: Service, url: str, back_to_the_file: bool
) -> None:
    publish(url)
    if back_to_the_file:
        HTTP.put(f"{url}/v1/policies/active", json={"version": None})
    before = HTTP.get(f"{url}/v1/policies/active").json()
    store = made.shared.store
    assert isinstance(store, MemoryStore)
    store._pointers.clear()
    store._documents.clear()
    store._commits = 0
    until(lambda: HTTP.get(f"{url}/v1/policies").json()["degraded"])
    shown = HTTP.get(f"{url}/v1/policies/active")
    assert (shown.status_code, shown.json()) == (200, before)
    assert before["version"] == post(url).json()["baton"]["version"]


def test_feedback_while_the_store_is_away_is_given_again() -> None:
    """Nothing is acknowledged that would not count."""

    class Moody(MemoryStore):
        away = False

        async def get(self, name: str) -> bytes | None:
            if self.away:
                raise StoreUnavailable("away")
            return await super().get(name)

    store = Moody()
    made = service(store=store)
    arms = [{"name": "large", "policy": "large-only"}, {"name": "small", "policy": "small-only"}]
    with serving(made) as url:
        HTTP.post(f"{url}/v1/experiments", json={"name": "trial", "arms": arms}).raise_for_status()
        trace = post(url).json()["baton"]["trace_id"]
        until(lambda: f"trace/{trace}" in store._values)
        given = {"trace_id": trace, "reward": 1}
        store.away = True
        reply = HTTP.post(f"{url}/v1/feedback", json=given)
        assert refused(reply, 503)["code"] == "store_unavailable"
        assert reply.headers["retry-after"]
        store.away = False
        assert HTTP.post(f"{url}/v1/feedback", json=given).status_code == 200
        until(lambda: len(store._streams.get("outcomes/trial/1", ())) == 3)
        assert len(store._streams[REWARDS]) == 1
