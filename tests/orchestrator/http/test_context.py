"""What a request's context makes of who asks."""

from __future__ import annotations

import json
from typing import Any

from orchestrator.http.admission import Place
from orchestrator.http.chat_schema import ChatRequest
from orchestrator.http.completion_schema import CompletionRequest
from orchestrator.http.context import RequestContext
from orchestrator.http.schemas import parse_request
from orchestrator.types import Limits
from orchestrator.worker import key_of
from tests.orchestrator.serving import HTTP, asking, scripted, service, serving


def test_what_a_client_names_is_a_unit_of_its_key() -> None:
    one, other = (RequestContext(_body(), Limits(), {}, "r", key) for key in ("a", "b"))
    assert one.unit("session 1") != other.unit("session 1")
    assert one.unit(None) is None


def _body(**more: Any) -> ChatRequest:
    question = {"model": "baton", "messages": [{"role": "user", "content": "12 + 34?"}]}
    return ChatRequest.model_validate({**question, **more})


def owner(key: str | None, user: str | None = None) -> str:
    question = {"model": "baton", "messages": [{"role": "user", "content": "12 + 34?"}]}
    body = parse_request(
        json.dumps(question | ({"user": user} if user else {})).encode(), ChatRequest
    )
    return RequestContext(body, Limits(), {}, "r", key).owner


async def test_workers_are_told_of_a_session_by_what_no_other_key_can_name() -> None:
    made = service()

    def asked(key: str | None, session: str = "") -> RequestContext:
        headers = {"x-session-id": session}
        context = RequestContext(_body(), Limits(), headers, "r", key)
        context.policy = made.policies["large-only"]()
        return context

    sessions = set[str]()
    for key in (None, "a"):
        for name in ("", "s", "t"):
            async with made.place(context := asked(key, name)):
                sessions.add(context.affinity)
    assert len(sessions) == 5
    assert {len(one) for one in sessions} == {0, 32}
    # Those that come side by side are spread; the next one alone is told of its session again.
    async with made.place(first := asked("a", "s")), made.place(second := asked("a", "s")):
        assert (len(first.affinity), second.affinity) == (32, "")
    async with made.place(third := asked("a", "s")):
        assert third.affinity == first.affinity


def test_all_calls_of_a_request_say_its_session() -> None:
    made = service(small := scripted(), scripted())
    with serving(made) as url:
        for headers in ({}, {"x-session-id": "s"}):
            HTTP.post(f"{url}/v1/chat/completions", json=asking(), headers=headers)
    calls = [one.call for worker in made.workers.values() for one in worker.calls]  # type: ignore[attr-defined]
    assert len(small.calls) > 2
    by_request: dict[str, set[str]] = {}
    for call in calls:
        by_request.setdefault(call.request, set()).add(call.session)
    plain, named = by_request.values()
    assert plain == {""}
    assert len(named) == 1
    assert named != plain


def test_an_owner_is_a_key_and_a_user_under_it() -> None:
    owners = {
        owner(key, user) for key in (None, "0a1b2c3d", "11112222") for user in (None, "ann", "bob")
    }
    assert len(owners) == 9
    assert owner("0a1b2c3d", "ann") == owner("0a1b2c3d", "ann")
    assert owner(None) == ""
    assert key_of(owner("0a1b2c3d", "ann")) == key_of(owner("0a1b2c3d", "bob"))
    assert key_of(owner(None, "ann")) == key_of(owner(None)) == ""
    assert len({key_of(owner(key, "ann")) for key in (None, "0a1b2c3d", "11112222")}) == 3
    assert not any("ann" in one or "0a1b2c3d" in one for one in owners)


def test_a_prompt_is_estimated_from_all_that_a_template_may_show() -> None:
    def estimate(size: int, **more: str) -> int:
        arguments = json.dumps({"x": "a" * size})
        call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
        messages = [
            {"role": "user", "content": "12 + 34?"},
            {"role": "assistant", "tool_calls": [call], **more},
            {"role": "tool", "content": "46", "tool_call_id": "c"},
        ]
        return RequestContext(_body(messages=messages), Limits(), {}, "r").estimated_prompt

    assert 1000 <= estimate(3000) <= 1020
    assert estimate(3000, reasoning_content="b" * 3000) == estimate(3000) + 1000


def test_the_prompts_of_a_request_are_counted_together_each_once() -> None:
    body = {"model": "large-only", "prompt": ["a" * 300, "b" * 600], "n": 2}
    asked = parse_request(json.dumps(body).encode(), CompletionRequest)
    context = RequestContext(asked, Limits(), {}, "r")
    assert context.estimated_prompt == 300
    context.place = Place(context.estimated_prompt, 0.0)
    for answer, tokens in zip(context.choices(), (110, 110, 220, 220), strict=True):
        answer.prompt_read(tokens)
    assert context.place.prompt == 330
