"""Who asks, and what is known of a request before it is answered."""

from __future__ import annotations

import json
from typing import Any

from orchestrator.http.answering import Answer
from orchestrator.http.ask import Incoming
from orchestrator.http.auth import Caller
from orchestrator.loop.request import Hurry
from orchestrator.worker import key_of
from tests.orchestrator.serving import HTTP, asked, asking, scripted, service, serving


def test_what_a_client_names_is_a_unit_of_its_key() -> None:
    one, other = (Incoming("r", Caller(key)) for key in ("a", "b"))
    assert one.unit("session 1") != other.unit("session 1")
    assert one.unit(None) is None


def owner(key: str | None, user: str | None = None) -> str:
    return Incoming("r", Caller(key)).owner(asked(user=user).labels.user)


async def test_workers_are_told_of_a_session_by_what_no_other_key_can_name() -> None:
    made = service()

    def place(key: str | None, session: str) -> Any:
        return made.live.place(asked(), Incoming("r", Caller(key), {"x-session-id": session}))

    sessions = set[str]()
    for key in (None, "a"):
        for name in ("", "s", "t"):
            async with place(key, name) as (_, affinity):
                sessions.add(affinity)
    assert len(sessions) == 5
    assert {len(one) for one in sessions} == {0, 32}
    # Those that come side by side are spread; the next one alone is told of its session again.
    async with place("a", "s") as (_, first), place("a", "s") as (_, second):
        assert (len(first), second) == (32, "")
    async with place("a", "s") as (_, third):
        assert third == first


def test_all_calls_of_a_request_say_its_session() -> None:
    made = service(small := scripted(), scripted())
    with serving(made) as url:
        for headers in ({}, {"x-session-id": "s"}):
            HTTP.post(f"{url}/v1/chat/completions", json=asking(), headers=headers)
    calls = [one.call for worker in made.pools.workers.values() for one in worker.calls]  # type: ignore[attr-defined]
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
        return asked(messages=messages).estimated_prompt

    assert 1000 <= estimate(3000) <= 1020
    assert estimate(3000, reasoning_content="b" * 3000) == estimate(3000) + 1000


async def test_the_prompts_of_a_request_are_counted_together_each_once() -> None:
    made = service()
    prompts = ["a" * 300, "b b" * 200]
    ask = asked("completions", model="large-only", prompt=prompts, n=2)
    assert ask.estimated_prompt == 300
    async with made.admit(ask, Incoming("r")) as (choices, place):
        assert [choice.reads_prompt for choice in choices] == [True, False, True, False]
        read = 0
        for choice in choices:
            answer = Answer(made, choice, place, Hurry())
            async for _ in answer.events():
                pass
            read += answer.response.prompt.prompt * choice.reads_prompt
        assert place.prompt == read != 300
