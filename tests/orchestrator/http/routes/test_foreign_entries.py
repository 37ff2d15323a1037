"""Foreign entries in the store: every page skips them and shows what is ours."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from orchestrator.http.records import OUTCOMES, REWARDS, trace_name
from orchestrator.http.service import Service
from orchestrator.state.memory import MemoryStore
from orchestrator.state.store import AUDIT
from tests.orchestrator.serving import HTTP, post, service, serving, until

ARMS = [{"name": "large", "policy": "large-only"}, {"name": "small", "policy": "small-only"}]
OUTCOME = {"kind": "outcome", "trace_id": "abc", "at": 1.0, "ms": 1.0, "large_tokens": 1}
THEIRS = {**OUTCOME, "trace_id": "foreign"}
FOREIGN = [
    b"",
    b"\xff",
    b"[]",
    b"{}",
    b"[" * 20_000,
    b'{"kind": "other"}',
    b'{"trace_id": "foreign", "at": 1}',
    json.dumps({**THEIRS, "shadow": True}).encode(),
    json.dumps({**THEIRS, "large_tokens": [1]}).encode(),
    json.dumps({**THEIRS, "ms": float("inf"), "action": "foreign"}).encode(),
    b'{"kind": "outcome", "trace_id": "foreign", "at": 1, "action": "foreign", "key": "\\ud800"}',
]
PATHS = (
    "/v1/traces",
    "/v1/traces?policy=bild",
    "/v1/policies/history?count=1000",
    "/v1/experiments",
    "/v1/experiments/trial/report",
)


@pytest.fixture(scope="module")
def held() -> Iterator[tuple[Service, str]]:
    """A running experiment; its store has a foreign record too."""
    made = service()
    with serving(made) as url:
        started = HTTP.post(f"{url}/v1/experiments", json={"name": "trial", "arms": ARMS})
        assert started.status_code == 201
        asyncio.run(made.shared.store.put(trace_name("abc"), b"[]", ttl_s=600))
        assert HTTP.get(f"{url}/v1/traces/abc").status_code == 404
        yield made, url


def shown(url: str) -> list[Any]:
    replies = [HTTP.get(f"{url}{path}") for path in PATHS]
    assert [reply.status_code for reply in replies] == [200] * len(PATHS)
    return [reply.json() for reply in replies]


@pytest.mark.parametrize(
    ("other", "rating"),
    [({}, b"\xff"), ({"policy": [], "version": "x", "arm": "a b"}, None)],
    ids=["rating", "record"],
)
def test_a_rating_among_foreign_values_counts(
    held: tuple[Service, str], other: dict[str, Any], rating: bytes | None
) -> None:
    made, url = held
    store = made.shared.store
    trace = post(url).json()["baton"]["trace_id"]
    until(lambda: asyncio.run(store.get(trace_name(trace))))
    record = {**HTTP.get(f"{url}/v1/traces/{trace}").json(), **other}
    asyncio.run(store.put(trace_name(trace), json.dumps(record).encode(), ttl_s=600))
    if rating is not None:
        asyncio.run(store.put(f"feedback/{trace}/anybody", rating, ttl_s=600))
    given = {"trace_id": trace, "reward": 1}
    for _ in range(2):
        assert HTTP.post(f"{url}/v1/feedback", json=given).status_code == 200
    until(lambda: asyncio.run(store.newest(REWARDS, 1)))
    (entry,) = asyncio.run(store.newest(REWARDS, 1))
    event = json.loads(entry.event)
    assert (event["trace_id"], event["reward"]) == (trace, 1)
    assert event["experiment"] == "trial"
    assert event["version"] == (None if other else 0)
    refused = HTTP.post(f"{url}/v1/feedback", json={**given, "reward": 0})
    assert refused.status_code == 409


VALUES: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)
KEYS = ("kind", "trace_id", "at", "ms", "large_tokens", "arm", "unit", "intervals")
OBJECTS = st.dictionaries(st.sampled_from(KEYS), VALUES)
LIKE_OURS = OBJECTS.map(lambda more: {**OUTCOME, "at": 1.0, "arm": "large", "unit": "u", **more})
ENTRIES = st.one_of(
    st.binary(max_size=30),
    *(kind.map(lambda v: json.dumps(v).encode()) for kind in (VALUES, LIKE_OURS)),
)


@settings(
    max_examples=40,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.lists(ENTRIES, min_size=1, max_size=5))
@example(FOREIGN)
def test_whatever_lies_in_the_streams_what_is_ours_is_shown(
    held: tuple[Service, str], events: list[bytes]
) -> None:
    made, url = held
    assert isinstance(made.shared.store, MemoryStore)
    for stream in (OUTCOMES, AUDIT, "outcomes/trial/1"):
        asyncio.run(made.shared.store.append(stream, events, keep=100_000))
    trace = post(url).json()["baton"]["trace_id"]  # the page shows the newest ones
    until(lambda: trace in [row["id"] for row in shown(url)[0]["data"]])
    traces, _, history, *_ = shown(url)
    assert "foreign" not in [row["id"] for row in traces["data"]]
    actions = [entry.get("action") for entry in history["data"]]
    assert "experiment.start" in actions
    assert "foreign" not in actions
