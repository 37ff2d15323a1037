"""The latest requests, and what is kept of one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.errors import WorkerUnavailable
from orchestrator.http import answering
from orchestrator.http.auth import Access, Keys
from orchestrator.http.records import OUTCOMES_OF, REWARDS
from orchestrator.http.routes import traces
from orchestrator.state.memory import MemoryStore
from orchestrator.types import Generation
from orchestrator.worker import Delta
from tests.orchestrator.serving import HTTP, STORY, post, scripted, service, serving, until
from tests.workers.scripted import Scripted


def listed(url: str, key: str = "", **params: Any) -> list[dict[str, Any]]:
    reply = HTTP.get(f"{url}/v1/traces", params=params, headers=by(key))
    assert reply.status_code == 200, reply.text
    return reply.json()["data"]


def by(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"} if key else {}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    large = scripted(failures={3: WorkerUnavailable("gone")})
    with serving(service(large=large)) as url:
        post(url, {"model": "specreason"})
        post(url, {"model": "small-only"})
        failed = post(url, {"model": "large-only"})
        assert failed.status_code == 503
        until(lambda: len(listed(url)) == 3)
        yield url


def test_the_newest_comes_first_with_its_question(url: str) -> None:
    rows = listed(url)
    assert [row["policy"] for row in rows] == ["large-only", "small-only", "specreason"]
    assert all(row["question"] == "Twice 2+2?" for row in rows)
    assert HTTP.get(f"{url}/v1/traces/{rows[0]['id']}").json()["status"] == "failed"


def test_what_came_to_nothing_takes_little_room() -> None:
    turns = [{"role": "user", "content": f"{n} " + "x" * 100_000} for n in range(5)]
    with serving(service(large=scripted(failures={0: WorkerUnavailable("gone")}))) as url:
        assert post(url, {"model": "small-only", "messages": turns}).status_code == 200
        assert post(url, {"model": "large-only", "messages": turns * 2}).status_code == 503
        until(lambda: len(listed(url)) == 2)
        failed, finished = (HTTP.get(f"{url}/v1/traces/{row['id']}").json() for row in listed(url))
    assert [one["content"] for one in finished["messages"]] == [one["content"] for one in turns]
    assert failed["messages"] == []
    shown = turns[-1]["content"][:2000] + "…"
    assert failed["question"] == finished["question"] == shown


class Costly(Scripted):
    """Each call costs as much as a count may say."""

    async def generate(self, *args: Any, **more: Any) -> AsyncIterator[Delta | Generation]:
        async for item in super().generate(*args, **more):
            if isinstance(item, Generation):
                most = 2**53 - 1
                item = replace(item, usage=replace(item.usage, prompt=most, generated=most))
            yield item


def test_whatever_a_request_cost_it_is_answered_and_listed() -> None:
    with serving(service(large=Costly(story=STORY))) as url:
        replies = [post(url, {"model": "large-only", "stream": on}) for on in (False, True)]
        assert [reply.status_code for reply in replies] == [200, 200]
        assert replies[1].text.endswith("data: [DONE]\n\n")
        until(lambda: len(listed(url)) == 2)
        assert [row["large_tokens"] for row in listed(url)] == [2**53 - 1] * 2


def test_filters(url: str) -> None:
    assert [row["policy"] for row in listed(url, policy="small-only")] == ["small-only"]
    assert [row["policy"] for row in listed(url, status="failed")] == ["large-only"]
    assert [row["policy"] for row in listed(url, count=1)] == ["large-only"]
    assert listed(url, min_ms=1e9) == []
    assert listed(url, arm="nonesuch") == []
    assert listed(url, min_large_tokens=10**6) == []


@pytest.mark.parametrize(
    ("name", "value"), [("count", 0), ("count", 201), ("status", "odd"), ("min_ms", "x")]
)
def test_a_filter_that_makes_no_sense_is_refused_by_name(url: str, name: str, value: Any) -> None:
    refused = HTTP.get(f"{url}/v1/traces", params={name: value})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == f"query.{name}"


def test_a_record_has_the_calls_that_its_steps_name(url: str) -> None:
    (row,) = listed(url, policy="specreason")
    record = HTTP.get(f"{url}/v1/traces/{row['id']}").json()
    first = record["steps"][0]
    assert [record["calls"][index]["kind"] for index in first["calls"]] == ["draft", "judge"]
    assert first["at_ms"] > 0


def test_a_keys_list_says_nothing_of_others_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither by what it lacks, nor do others push its own out."""
    monkeypatch.setattr(traces, "SEARCHED", 4)
    monkeypatch.setattr(answering, "OUTCOMES_OF_KEPT", 8)
    made = service(access=Access(Keys(["one", "two"]), Keys(["boss"])))
    with serving(made) as url:
        mine = [post(url, headers=by("one")) for _ in range(3)]
        for key in (*["two"] * 12, "boss"):
            post(url, headers=by(key))
        until(lambda: len(listed(url, "one")) == 3 and len(listed(url, "two")) == 4)
        ids = [one.json()["baton"]["trace_id"] for one in mine]
        assert [row["id"] for row in listed(url, "one")] == ids[::-1]
        until(lambda: len({row["key"] for row in listed(url, "boss")}) == 2)
        assert HTTP.get(f"{url}/v1/traces").status_code == 401
    assert isinstance(made.shared.store, MemoryStore)
    streams = made.shared.store._streams
    few, many = sorted(len(own) for name, own in streams.items() if name.startswith(OUTCOMES_OF))
    assert few == 3
    assert 8 <= many <= 9  # of 12; an eighth more may stay, and boss has none


def test_a_key_reads_and_judges_its_own_answers_alone_and_once() -> None:
    made = service(access=Access(Keys(["one", "two"]), Keys(["boss"]), Keys(["eye"])))

    def rewards() -> list[Any]:
        entries = asyncio.run(made.shared.store.newest(REWARDS, 100))
        return [json.loads(one.event) for one in entries]

    with serving(made) as url:
        told = post(url, headers=by("one")).json()["baton"]

        def read(key: str) -> int:
            trace = f"{url}/v1/traces/{told['trace_id']}"
            return HTTP.get(trace, headers=by(key)).status_code

        def judge(key: str, worth: float = 1.0) -> int:
            body = {"trace_id": told["trace_id"], "reward": worth}
            return HTTP.post(f"{url}/v1/feedback", json=body, headers=by(key)).status_code

        until(lambda: read("one") == 200)
        assert [read(key) for key in ("two", "boss", "eye")] == [404, 200, 200]
        assert [judge(key) for key in ("two", "eye", *["one"] * 20)] == [404, 403, *[200] * 20]
        assert (judge("one", 0.0), judge("boss")) == (409, 200)
        until(lambda: len(rewards()) == 2)
        assert len({one["key"] for one in rewards()}) == 2
