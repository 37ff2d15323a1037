"""Foreign entries in the store: skipped, counted once, named once in the log."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.http.records import OUTCOMES, trace_name
from orchestrator.http.service import Service
from orchestrator.state.memory import MemoryStore
from orchestrator.state.redis import RedisStore
from orchestrator.state.store import AUDIT, Store
from tests.orchestrator.redis_server import redis_server
from tests.orchestrator.serving import HTTP, post, service, serving, until

ARMS = [{"name": "large", "policy": "large-only"}, {"name": "small", "policy": "small-only"}]
RUN = "outcomes/trial/1"
OUTCOME = {"kind": "outcome", "trace_id": "abc", "ms": 1.0, "large_tokens": 1}
FOREIGN = [
    b"",
    b"\xff",
    b"[]",
    b"7",
    b'"x"',
    b"{}",
    b"[" * 20_000,
    b'{"kind": "other"}',
    json.dumps({**OUTCOME, "ms": None}).encode(),
    json.dumps({**OUTCOME, "ms": "1"}).encode(),
    json.dumps({**OUTCOME, "large_tokens": [1]}).encode(),
    json.dumps({**OUTCOME, "trace_id": "a b"}).encode(),
    json.dumps({**OUTCOME, "trace_id": 7}).encode(),
    json.dumps({**OUTCOME, "more": float("nan")}).encode(),
    b'{"kind": "outcome", "trace_id": "abc", "ms": 1e999, "large_tokens": 1}',
    b'{"kind": "outcome", "trace_id": "abc", "ms": 1.0, "large_tokens": 1, "more": "\\ud800"}',
]
PATHS = (
    "/v1/traces",
    "/v1/traces?policy=bild",
    "/v1/policies/history",
    "/v1/experiments",
    "/v1/experiments/trial/report",
)


def begin(url: str) -> str:
    """A running experiment, and the trace of a request in it."""
    started = HTTP.post(f"{url}/v1/experiments", json={"name": "trial", "arms": ARMS})
    assert started.status_code == 201
    trace: str = post(url).json()["baton"]["trace_id"]
    until(lambda: HTTP.get(f"{url}/v1/traces").json()["data"])
    return trace


def shown(url: str) -> list[Any]:
    replies = [HTTP.get(f"{url}{path}") for path in PATHS]
    assert [reply.status_code for reply in replies] == [200] * len(PATHS)
    return [reply.json() for reply in replies]


async def spoil(store: Store, events: list[bytes]) -> None:
    for stream in (OUTCOMES, AUDIT, RUN):
        await store.append(stream, events, keep=100_000)


def test_each_is_skipped_and_counted_once(caplog: pytest.LogCaptureFixture) -> None:
    with redis_server() as redis, serving(service(store=RedisStore(redis.url))) as url:
        trace = begin(url)
        shown(url)

        async def fill() -> None:
            store = RedisStore(redis.url)
            await spoil(store, FOREIGN)
            await store.put(trace_name("abc"), b"[]", ttl_s=60)
            await store.put(f"feedback/{trace}/anybody", b"\xff", ttl_s=60)
            await store.aclose()

        redis.admin.xadd(f"baton:stream:{OUTCOMES}", {"other": "x"})
        asyncio.run(fill())
        with caplog.at_level(logging.WARNING):
            for _ in range(3):
                (listed, _, history, _, report) = shown(url)
        assert [row["id"] for row in listed["data"]] == [trace]
        assert [row["action"] for row in history["data"] if "action" in row] == ["experiment.start"]
        assert report["unreadable"] == len(FOREIGN)
        counted = HTTP.get(f"{url}/metrics").text
        assert f'baton_store_foreign_total{{kind="outcomes"}} {len(FOREIGN) + 2}.0' in counted
        said = [one.getMessage() for one in caplog.records if "foreign entries" in one.getMessage()]
        assert len(said) == len(set(said)) == 3
        assert HTTP.get(f"{url}/v1/traces/abc").status_code == 404
        judged = HTTP.post(f"{url}/v1/feedback", json={"trace_id": trace, "reward": 1})
        assert judged.status_code == 200


@pytest.fixture(scope="module")
def held() -> Iterator[tuple[Service, str]]:
    made = service()
    with serving(made) as url:
        begin(url)
        yield made, url


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
def test_whatever_lies_in_the_streams_what_is_ours_is_shown(
    held: tuple[Service, str], events: list[bytes]
) -> None:
    made, url = held
    assert isinstance(made.shared.store, MemoryStore)
    asyncio.run(spoil(made.shared.store, events))
    trace = post(url).json()["baton"]["trace_id"]  # the page shows the newest ones
    until(lambda: trace in [row["id"] for row in shown(url)[0]["data"]])
