"""`POST /v1/requests/{id}/answer`: a key ends the thoughts of its own running requests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from orchestrator.http.auth import Access, Keys
from orchestrator.http.service import Service
from tests.orchestrator.loop.test_answer_now import endless
from tests.orchestrator.serving import HTTP, asking, service, serving, until


@contextmanager
def thinking(url: str, **headers: str) -> Iterator[tuple[Any, Iterator[str]]]:
    """A stream that thinks, with its first chunk, and the lines that follow."""
    body = asking(model="large-only", stream=True, max_tokens=2000)
    given = {"authorization": "Bearer sk-one", **headers}
    path = f"{url}/v1/chat/completions"
    with HTTP.stream("POST", path, json=body, headers=given) as reply:
        lines = (line for line in reply.iter_lines() if line)
        yield json.loads(next(lines).removeprefix("data: ")), lines


def end(url: str, name: str, key: str = "sk-one") -> Any:
    path = f"{url}/v1/requests/{name}/answer"
    return HTTP.post(path, json={}, headers={"authorization": f"Bearer {key}"})


def made() -> Service:
    keys = Access(Keys(["sk-one", "sk-two"]), observers=Keys(["sk-eye"]))
    return service(large=endless(delay=0.01), access=keys)


@pytest.mark.parametrize("named", ["answer", "trace", "request"])
def test_the_answer_follows_at_once(named: str) -> None:
    one = made()
    with serving(one) as url, thinking(url, **{"x-request-id": "mine"}) as (first, lines):
        trace_id = first["id"].removeprefix("chatcmpl-")
        name = {"answer": first["id"], "trace": trace_id, "request": "mine"}[named]
        refused = {"sk-two": 404, "sk-eye": 403, "sk-bad": 401}  # sk-two: another key's
        assert {key: end(url, name, key).status_code for key in refused} == refused
        reply = end(url, name)
        assert (reply.status_code, reply.json()["requests"]) == (200, 1)
        *_, last, done = lines
        assert done == "data: [DONE]"
        chunk = json.loads(last.removeprefix("data: "))
        assert chunk["choices"][0]["finish_reason"] == "stop"
        assert chunk["baton"]["forced"]
        assert sum(step["tokens"] for step in chunk["baton"]["steps"]) < 1900
        until(lambda: not one.live.hurries)
        missing = end(url, name)
        assert (missing.status_code, missing.json()["error"]["code"]) == (404, "request_not_found")


def test_other_replicas_are_asked() -> None:
    asked: list[str] = []

    async def everywhere(name: str, key: str | None) -> int:
        asked.append(name)
        return 2

    one = made()
    one.hurry = everywhere
    with serving(one) as url:
        assert end(url, "mine").json()["requests"] == 2
    assert asked == ["mine"]


def test_a_page_of_another_origin_cannot_send_it_unasked() -> None:
    with serving(service()) as url:
        path = f"{url}/v1/requests/mine/answer"
        sent: list[Any] = [{}, {"content": "{}", "headers": {"content-type": "text/plain"}}]
        for body in sent:
            reply = HTTP.post(path, **body)
            assert reply.json()["error"]["code"] == "invalid_content_type"
        assert HTTP.post(path, json={"now": True}).json()["error"]["param"] == "now"
