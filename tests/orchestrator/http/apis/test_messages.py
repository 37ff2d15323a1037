"""`POST /v1/messages` with the official client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest

from orchestrator.errors import WorkerUnavailable
from orchestrator.http.apis.conversation import signature
from orchestrator.http.auth import Access, Keys
from orchestrator.http.settings import Patience, ServiceLimits
from orchestrator.types import Transcript
from tests.orchestrator.http.tools.test_offered import FORMAT
from tests.orchestrator.http.tools.test_offered import worker as tool_worker
from tests.orchestrator.serving import HTTP, STORY, scripted, service, serving
from tests.workers.scripted import Say, Scripted

ASKED: dict[str, Any] = {"role": "user", "content": "Twice 2+2?"}
ANSWER = "The answer is 8."
CACHED = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
ADD: dict[str, Any] = {
    "name": "add",
    "description": "Adds two numbers.",
    "input_schema": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
    },
}


def client(url: str, **settings: Any) -> anthropic.Anthropic:
    return anthropic.Anthropic(
        base_url=url, **{"api_key": "none", "max_retries": 0, "timeout": 600, **settings}
    )


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving(service()) as url:
        yield url


@pytest.fixture(scope="module")
def tool_url() -> Iterator[str]:
    with serving(service(tool_worker(), tool_worker())) as url:
        yield url


def asking(**body: Any) -> dict[str, Any]:
    return {"model": "large-only", "max_tokens": 100, "messages": [ASKED], **body}


def create(url: str, **body: Any) -> Any:
    with client(url) as api:
        return api.messages.create(**asking(**body))


def streamed(url: str, **body: Any) -> tuple[list[Any], Any]:
    """The raw events of a stream, and the message that the client accumulates from another."""
    with client(url) as api:
        events = list(api.messages.create(**asking(**body), stream=True))
        with api.messages.stream(**asking(**body)) as stream:
            final = stream.get_final_message()
    return events, final


def post(url: str, **body: Any) -> Any:
    return HTTP.post(f"{url}/v1/messages", json=asking(**body))


def heard(worker: Scripted) -> list[tuple[str, str]]:
    return [(one.role, one.content) for one in worker.calls[-1].call.transcript.messages]


def test_the_stream_says_the_same(url: str) -> None:
    whole = create(url, model="specreason")
    events, final = streamed(url, model="specreason")
    kinds = [event.type for event in events]
    once = [kind for kind in kinds if kind != "content_block_delta"]
    block = ["content_block_start", "content_block_stop"]
    assert once == ["message_start", *block, *block, "message_delta", "message_stop"]
    assert [one.to_dict() for one in final.content] == [one.to_dict() for one in whole.content]
    assert final.usage == whole.usage
    assert final.stop_reason == whole.stop_reason
    start, last = events[0], events[-2]
    assert start.message.usage.input_tokens == whole.usage.input_tokens
    assert start.message.content == []
    assert last.model_extra["baton"]["steps"]


def test_a_silent_stream_pings() -> None:
    patience = Patience(ping_s=0.02, headers_s=0.02)
    with serving(service(large=scripted(delay=0.2), patience=patience)) as url:
        text = post(url, stream=True).text
        assert 'event: ping\ndata: {"type":"ping"}\n\n' in text
        assert streamed(url)[1].content[-1].text == ANSWER


def test_a_thought_goes_back_as_it_came_and_in_no_other_way() -> None:
    large = scripted()
    with serving(service(large=large)) as url:
        first = create(url)
        turns = [ASKED, first.to_param(), {"role": "user", "content": "Sure?"}]
        assert create(url, messages=turns).content[-1].text == ANSWER
        earlier = large.calls[-1].call.transcript.messages[1]
        assert (earlier.content, earlier.reasoning) == (ANSWER, STORY[0])
        (thought, text) = first.to_dict()["content"]
        for changed in ({"thinking": "No."}, {"signature": "EqQBCgYIARgC"}, {"signature": None}):
            turns[1] = {"role": "assistant", "content": [{**thought, **changed}, text]}
            with pytest.raises(anthropic.BadRequestError, match="signature") as refused:
                create(url, messages=turns)
            assert refused.value.body["error"]["details"]["param"].startswith(  # type: ignore[index, call-overload]
                "messages[1].content[0]"
            )
    with serving(service(large=(large := scripted()), strict=False)) as url:
        reply = create(url, messages=turns)
        assert "thinking with another signature" in reply.model_extra["baton"]["warnings"][0]
        assert large.calls[-1].call.transcript.messages[1].reasoning == ""


def test_a_thought_may_be_hidden_or_left_out(url: str) -> None:
    hidden = create(url, thinking={"type": "adaptive", "display": "omitted"})
    assert (hidden.content[0].thinking, hidden.content[0].signature) == ("", signature(""))
    _, final = streamed(url, thinking={"type": "adaptive", "display": "omitted"})
    assert [one.to_dict() for one in final.content] == [one.to_dict() for one in hidden.content]
    pair = [Scripted(story=("", ANSWER)) for _ in range(2)]
    with serving(service(*pair)) as plain:
        (text,) = create(plain, thinking={"type": "disabled"}).content
    assert text.text == ANSWER


def test_the_thought_is_capped_by_its_budget_and_the_effort(url: str) -> None:
    budget = create(url, thinking={"type": "enabled", "budget_tokens": 3})
    assert budget.usage.output_tokens_details.thinking_tokens == 3
    assert budget.model_extra["baton"]["forced"]
    low = create(url, max_tokens=8, output_config={"effort": "low"})
    assert low.usage.output_tokens_details.thinking_tokens == 2


@pytest.mark.parametrize("stream", [False, True])
def test_why_a_message_ended(url: str, stream: bool) -> None:
    def ended(**body: Any) -> tuple[str, str | None]:
        reply = streamed(url, **body)[1] if stream else create(url, **body)
        return reply.stop_reason, reply.stop_sequence

    assert ended(max_tokens=6) == ("max_tokens", None)
    assert ended(stop_sequences=["8"]) == ("stop_sequence", "8")
    assert ended(stop_sequences=["8", "9"]) == ("stop_sequence", None)  # by the worker's word
    assert ended(stop_sequences=["9"]) == ("end_turn", None)
    assert ended() == ("end_turn", None)


def test_the_system_prompt_comes_first_in_both_forms() -> None:
    large = scripted()
    blocks = [{"type": "text", "text": "Be brief.", **CACHED}, {"type": "text", "text": "Be kind."}]
    with serving(service(large=large)) as url:
        for system, shown in (("Be brief.", "Be brief."), (blocks, "Be brief.\nBe kind.")):
            create(url, system=system)
            assert heard(large) == [("system", shown), ("user", ASKED["content"])]


def test_an_answer_continues_the_assistants_last_turn() -> None:
    large = scripted()
    begun = {"role": "assistant", "content": "The answer"}
    with serving(service(large=large)) as url:
        (text,) = create(url, messages=[ASKED, begun]).content
        _, final = streamed(url, messages=[ASKED, begun])
    assert text.text == final.content[0].text
    assert large.calls[-1].call.transcript.answer.text() == "The answer"
    assert heard(large) == [("user", ASKED["content"])]


@pytest.mark.parametrize("stream", [False, True])
def test_an_agent_loop(stream: bool) -> None:
    large = tool_worker()
    with serving(service(tool_worker(), large)) as url:
        turns: list[Any] = [{"role": "user", "content": "What is 2 + 3?"}]
        body: Any = {"tools": [ADD], "messages": turns}
        first = streamed(url, **body)[1] if stream else create(url, **body)
        thought, text, call = first.content
        assert first.stop_reason == "tool_use"
        assert (thought.type, text.text) == ("thinking", "Let me see.")
        assert (call.name, call.input) == ("add", {"a": 2, "b": 3})
        result = {"type": "tool_result", "tool_use_id": call.id, "content": "5"}
        after = [{**result, **CACHED}, {"type": "text", "text": ""}]
        turns += [first.to_param(), {"role": "user", "content": after}]
        second = create(url, tools=[ADD], messages=turns)
    assert second.content[-1].text == "It is 5."
    messages = large.calls[-1].call.transcript.messages
    assert [one.role for one in messages] == ["tools", "user", "assistant", "tool"]
    assert messages[2].reasoning == thought.thinking
    assert json.loads(messages[2].calls[0].arguments) == {"a": 2, "b": 3}
    assert messages[3].name == "add"


@pytest.mark.parametrize(
    ("result", "shown"),
    [
        ({"content": "5"}, "5"),
        ({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, "a\nb"),
        ({"content": "no such file", "is_error": True}, "Error: no such file"),
        ({}, ""),
        ({"content": None}, ""),
    ],
)
def test_a_models_view_of_a_result(result: dict[str, Any], shown: str) -> None:
    large = tool_worker()
    call = {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {"a": 1}}
    block = {"type": "tool_result", "tool_use_id": "toolu_1", **result}
    turns = [ASKED, {"role": "assistant", "content": [call]}, {"role": "user", "content": [block]}]
    with serving(service(tool_worker(), large)) as url:
        assert post(url, messages=turns, tools=[ADD]).status_code == 200
    assert heard(large)[-1] == ("tool", shown)


BOTH = """Both.
<tool_call>
{"name": "add", "arguments": {"a": 2, "b": 3}}
</tool_call>
<tool_call>
{"name": "look_up", "arguments": {"key": "x"}}
</tool_call>"""
LOOK_UP = {"name": "look_up", "input_schema": {"type": "object"}}


@pytest.mark.parametrize("delay", [0.0, 0.002])  # in one batch, and piece by piece
def test_parallel_calls_are_a_block_each(delay: float) -> None:
    large = Scripted(story=("I call both.", BOTH), call_format=FORMAT, delay=delay)
    with serving(service(tool_worker(), large)) as url:
        body = {"tools": [ADD, LOOK_UP]}
        for reply in (create(url, **body), streamed(url, **body)[1]):
            _, text, *calls = reply.content
            assert text.text == "Both."
            named = [(call.name, call.input) for call in calls]
            assert named == [("add", {"a": 2, "b": 3}), ("look_up", {"key": "x"})]
            assert len({call.id for call in calls}) == 2
        alone = {"type": "auto", "disable_parallel_tool_use": True}
        assert len(create(url, **body, tool_choice=alone).content) == 3


def test_half_a_surrogate_pair_in_a_call_is_an_answer_and_goes_back() -> None:
    call = '<tool_call>\n{"name": "add", "arguments": {"a": "x\\ud83d"}}\n</tool_call>'
    large = Scripted(story=("Go.", call), call_format=FORMAT)
    with serving(service(tool_worker(), large)) as url:
        first = create(url, tools=[ADD])
        assert first.content[-1].input == {"a": "x?"}
        result = {"type": "tool_result", "tool_use_id": first.content[-1].id, "content": "5"}
        turns = [ASKED, first.to_param(), {"role": "user", "content": [result]}]
        assert create(url, messages=turns, tools=[ADD]).stop_reason == "tool_use"


def test_an_earlier_call_holds_what_a_model_escaped() -> None:
    """A stream passes a call's JSON on as it was written, and the client sends back its reading."""
    large = tool_worker()
    called = {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {"a": ["x\ud83d\0"]}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "5"}
    turns = [
        ASKED,
        {"role": "assistant", "content": [called]},
        {"role": "user", "content": [result]},
    ]
    headers = {"content-type": "application/json"}
    with serving(service(tool_worker(), large)) as url:
        body = json.dumps(asking(messages=turns, tools=[ADD]))
        reply = HTTP.post(f"{url}/v1/messages", content=body, headers=headers)
        assert reply.status_code == 200, reply.text
    (call,) = large.calls[-1].call.transcript.messages[2].calls
    assert call.arguments == '{"a": ["x\\ud83d\\u0000"]}'


def test_a_call_that_a_cap_cuts_has_no_input() -> None:
    large = Scripted(story=("Go.", BOTH), call_format=FORMAT)
    with serving(service(tool_worker(), large)) as url:
        policy = {"answer_reserve": 0}
        reply = post(url, tools=[ADD, LOOK_UP], max_tokens=9, policy=policy).json()
    assert reply["stop_reason"] == "max_tokens"
    assert reply["content"][-1]["input"] == {}


@pytest.mark.parametrize(
    ("choice", "required", "named"),
    [
        ({"type": "auto"}, False, ["add", "look_up"]),
        ({"type": "any"}, True, ["add", "look_up"]),
        ({"type": "tool", "name": "look_up"}, True, ["look_up"]),
        ({"type": "none"}, None, []),
    ],
)
def test_the_choice_of_tools_reaches_the_writer(
    choice: dict[str, Any], required: bool | None, named: list[str]
) -> None:
    large = tool_worker()
    with serving(service(tool_worker(), large)) as url:
        create(url, tools=[ADD, LOOK_UP], tool_choice=choice)
    held = large.calls[-1].call.constraint
    assert (held is None) == (required is None)
    if held is not None:
        rules = json.loads(held.source)
        assert rules["required"] is required
        assert [name for name, _ in rules["tools"]] == named


def test_examples_of_input_are_shown_to_the_model() -> None:
    large = tool_worker()
    with serving(service(tool_worker(), large)) as url:
        create(url, tools=[{**ADD, "input_examples": [{"a": 1, "b": 2}]}])
    (listed,) = json.loads(large.calls[-1].call.transcript.messages[0].content)
    assert listed["function"]["parameters"]["examples"] == [{"a": 1, "b": 2}]


def test_the_form_of_the_answer_reaches_its_writer() -> None:
    large = scripted()
    schema = {"type": "object", "properties": {}}
    with serving(service(large=large)) as url:
        create(url, output_config={"format": {"type": "json_schema", "schema": schema}})
    held = large.calls[-1].call.constraint
    assert held is not None
    assert (held.kind, json.loads(held.source)) == ("json_schema", schema)


def test_tokens_are_counted_as_the_answer_counts_them(url: str) -> None:
    with client(url) as api:
        for model in ("baton", "small-only", "large-only"):
            counted = api.messages.count_tokens(model=model, messages=[ASKED], system="Be brief.")  # type: ignore[list-item]
            reply = create(url, model=model, system="Be brief.")
            assert counted.input_tokens == reply.usage.input_tokens
        with pytest.raises(anthropic.NotFoundError):
            api.messages.count_tokens(model="gpt", messages=[ASKED])  # type: ignore[list-item]


@pytest.mark.parametrize(
    "given",
    [
        {"messages": [ASKED, {"role": "assistant", "content": "The answer"}]},
        {"output_config": {"effort": "low"}},
        {"thinking": {"type": "disabled"}},
    ],
)
def test_the_prompt_that_is_counted_is_the_one_that_is_answered(given: dict[str, Any]) -> None:
    read: list[Transcript] = []

    class Reading(Scripted):
        def _prompt_length(self, transcript: Transcript) -> int:
            read.append(transcript)
            return super()._prompt_length(transcript) + len(transcript.effort)

    with serving(service(large=Reading(story=STORY))) as url, client(url) as api:
        asked: Any = {"model": "large-only", "messages": [ASKED], **given}
        counted = api.messages.count_tokens(**asked)
        assert create(url, **given).usage.input_tokens == counted.input_tokens
    assert read[0] == read[1]


def test_a_string_that_two_segments_make_is_named() -> None:
    parts = [Say("A thought.", "think_end"), Say("It is ", "until"), Say("8. So", "eos")]
    pair = [Scripted(lines=parts), scripted()]
    with serving(service(*pair)) as url:
        reply = create(url, model="small-only", stop_sequences=["9", "is 8"])
    assert (reply.stop_reason, reply.stop_sequence) == ("stop_sequence", "is 8")
    assert reply.content[-1].text == "It"


def test_models_are_listed(url: str) -> None:
    with client(url) as api:
        listed = list(api.models.list())
        assert {"baton", "large-only"} <= {one.id for one in listed}
        assert api.models.retrieve("baton").display_name == "baton"
        assert listed[0].created_at.tzinfo is not None


def test_errors_are_the_clients_own(url: str) -> None:
    with client(url) as api:
        with pytest.raises(anthropic.NotFoundError) as missing:
            create(url, model="gpt")
        with pytest.raises(anthropic.BadRequestError) as wrong:
            api.messages.create(**asking(), extra_body={"temprature": 1})
    assert missing.value.type == "not_found_error"
    assert missing.value.error_code == "model_not_found"
    assert missing.value.request_id == missing.value.body["request_id"]  # type: ignore[index, call-overload]
    assert wrong.value.type == "invalid_request_error"
    assert "temprature is unknown here" in str(wrong.value)


def test_a_prompt_that_is_too_long_is_named_as_agents_expect() -> None:
    with (
        serving(service(scripted(context=1), scripted(context=1))) as url,
        pytest.raises(anthropic.BadRequestError, match="prompt is too long: ") as refused,
    ):
        create(url)
    assert refused.value.error_code == "context_length_exceeded"


def test_a_service_without_workers_or_places_is_overloaded() -> None:
    down = scripted(down=WorkerUnavailable("gone"))
    with serving(service(down, down)) as url:
        with pytest.raises(anthropic.ServiceUnavailableError) as failed:
            create(url)
        assert failed.value.type == "overloaded_error"
    limits = ServiceLimits(concurrent=1, wait_s=0)
    made = service(large=scripted(delay=5), limits=limits)
    with (
        serving(made) as url,
        HTTP.stream("POST", f"{url}/v1/messages", json=asking(stream=True)),
        pytest.raises(anthropic.RateLimitError) as refused,
    ):
        create(url)
    assert refused.value.type == "rate_limit_error"
    assert int(refused.value.response.headers["retry-after"]) >= 1


def test_a_key_may_come_in_either_header() -> None:
    with serving(service(access=Access(Keys(["sk-user"]), Keys(["sk-admin"])))) as url:
        for way in ({"api_key": "sk-user"}, {"api_key": None, "auth_token": "sk-user"}):
            with client(url, **way) as api:
                trace = api.messages.create(**asking()).id
                assert api.messages.count_tokens(model="baton", messages=[ASKED])  # type: ignore[list-item]
        keyed = {"x-api-key": "sk-user"}
        assert HTTP.get(f"{url}/v1/traces/{trace}", headers=keyed).status_code == 200
        wrong = {"x-api-key": "sk-user", "authorization": "Bearer sk-wrong"}
        assert HTTP.post(f"{url}/v1/messages", json=asking(), headers=wrong).status_code == 401
        with (
            client(url, api_key="sk-wrong") as api,
            pytest.raises(anthropic.AuthenticationError) as refused,
        ):
            api.messages.create(**asking())
        assert refused.value.type == "authentication_error"
        assert refused.value.request_id
        with client(url, api_key="sk-user") as api, pytest.raises(anthropic.PermissionDeniedError):
            api.post("/v1/policies", cast_to=object, body={})


def test_who_asks_and_in_which_session_is_recorded() -> None:
    made = service()
    with serving(made) as url:
        session = {"x-claude-code-session-id": "one"}
        with client(url) as api:
            reply = api.messages.create(
                **asking(metadata={"user_id": "ann"}), extra_headers=session
            )
        record = HTTP.get(f"{url}/v1/traces/{reply.id}").json()
    assert record["user"] == "ann"


def test_what_is_not_supported_is_left_out_with_a_warning() -> None:
    image = {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}}
    text = {"type": "text", "text": "Twice 2+2?"}
    search = {"type": "web_search_20250305", "name": "web_search"}
    with serving(service(tool_worker(), tool_worker(), strict=False)) as url:
        body = {"messages": [{"role": "user", "content": [image, text]}], "tools": [search, ADD]}
        reply = create(url, **body, container="c")
    (warning,) = reply.model_extra["baton"]["warnings"]
    for name in ("messages[0].content[0] (image)", "tools[0] (web_search_20250305)", "container"):
        assert name in warning


ADVISOR: dict[str, Any] = {
    "type": "advisor_20260301",
    "name": "advisor",
    "model": "large-only",
    "caching": {"type": "ephemeral", "ttl": "5m"},
}


def advised(**tool: Any) -> Any:
    """A message of a pair whose small model doubts its first answer."""
    small = Scripted([Say("It is 9.", "eos", -2.0), "It is 8."], thinks=False)
    large = Scripted([Say("Add, then double.", "eos")], scores=[9], thinks=False)
    with serving(service(small, large)) as url, client(url) as api:
        return api.beta.messages.create(
            **asking(model="small-only", tools=[{**ADVISOR, **tool}]),
            betas=["advisor-tool-2026-03-01"],
        )


def test_the_advisor_tool_asks_for_the_policy() -> None:
    reply = advised(max_uses=1, max_tokens=20)
    assert [(block.type, getattr(block, "thinking", None)) for block in reply.content] == [
        ("thinking", "Add, then double."),
        ("text", None),
    ]
    assert reply.content[1].text == "It is 8."
    told = reply.model_extra["baton"]
    assert told["policy"] == "advisor"
    assert "large" in {step["author"] for step in told["steps"]}


def test_an_advisor_that_may_not_be_used_advises_nothing() -> None:
    reply = advised(max_uses=0)
    assert [block.text for block in reply.content] == ["It is 9."]


def advice(**content: Any) -> list[Any]:
    """The two blocks of an advice, as Anthropic's service writes them."""
    ask = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "advisor", "input": {}}
    return [ask, {"type": "advisor_tool_result", "tool_use_id": "srvtoolu_1", "content": content}]


SAID_BY_ADVISORS: dict[str, tuple[dict[str, Any], str]] = {
    "read": ({"type": "advisor_result", "text": "Add.", "stop_reason": "end_turn"}, "Add."),
    "redacted": ({"type": "advisor_redacted_result", "encrypted_content": "EqQB"}, ""),
    "failed": ({"type": "advisor_tool_result_error", "error_code": "overloaded"}, ""),
}


@pytest.mark.parametrize(("content", "read"), SAID_BY_ADVISORS.values(), ids=SAID_BY_ADVISORS)
def test_an_earlier_advice_is_read_as_a_thought(content: dict[str, Any], read: str) -> None:
    large = scripted()
    with serving(service(large=large)) as url:
        text = {"type": "text", "text": ANSWER}
        earlier = said(*advice(**content), text, role="assistant")
        create(url, messages=[ASKED, earlier, {"role": "user", "content": "Sure?"}])
    told = large.calls[-1].call.transcript.messages[1]
    assert (told.content, told.reasoning, told.calls) == (ANSWER, read, ())


LONG = "You are an interactive agent that helps users with software engineering tasks. " * 400
SYSTEM = [
    {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.0;"},
    {"type": "text", "text": "You are Claude Code.", "cache_control": {"type": "ephemeral"}},
    {"type": "text", "text": LONG, "cache_control": {"type": "ephemeral", "ttl": "1h"}},
]
TOOLS = [{**ADD, "name": f"mcp__a_server_with_a_long_name__and_a_tool_{n}"} for n in range(40)]
TOOLS[-1] = {**TOOLS[-1], "cache_control": {"type": "ephemeral"}}
CALL = {"type": "tool_use", "id": "toolu_01", "name": "add", "input": {"a": 1, "b": 2}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_01", "content": "3"}
THOUGHT = {"type": "thinking", "thinking": "Add.", "signature": signature("Add.")}
REMINDER = {"type": "text", "text": "<system-reminder>\nToday is Monday.\n</system-reminder>"}
KEEP_ALL = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}


def said(*blocks: Any, role: str = "user") -> dict[str, Any]:
    return {"role": role, "content": [*blocks]}


def turns(*blocks: Any, called: Any = (CALL,)) -> dict[str, Any]:
    """A question, an answer that calls tools, and what comes back."""
    return {"messages": [ASKED, said(*called, role="assistant"), said(*blocks)]}


SHAPES: dict[str, tuple[dict[str, Any], str | None]] = {
    "system-blocks": ({"system": SYSTEM}, None),
    "dozens-of-tools": ({"tools": TOOLS, "system": SYSTEM}, None),
    "thinking-enabled": ({"thinking": {"type": "enabled", "budget_tokens": 31999}}, None),
    "thinking-summarized": ({"thinking": {"type": "adaptive", "display": "summarized"}}, None),
    "context-management": ({"context_management": KEEP_ALL}, None),
    "top-level-cache": ({"cache_control": {"type": "ephemeral"}}, None),
    "reminders": ({"messages": [said(REMINDER, {**REMINDER, **CACHED})]}, None),
    "consecutive-turns": ({"messages": [ASKED, ASKED, {**ASKED, "content": "Well?"}]}, None),
    "system-turn": ({"messages": [ASKED, {"role": "system", "content": "Go on."}, ASKED]}, None),
    "result": ({**turns(RESULT), "tools": [ADD]}, None),
    "result-and-text": ({**turns(RESULT, REMINDER), "tools": [ADD]}, None),
    "parallel-calls": (
        turns(RESULT, {**RESULT, "tool_use_id": "b"}, called=(CALL, {**CALL, "id": "b"})),
        None,
    ),
    "thought-and-call": (turns(RESULT, called=(THOUGHT, CALL)), None),
    "call-as-the-api-gives-it": (
        turns(RESULT, called=({**CALL, "caller": {"type": "direct"}, **CACHED},)),
        None,
    ),
    "tool-extras": (
        {"tools": [{**ADD, "type": "custom", "strict": True, "eager_input_streaming": True}]},
        None,
    ),
    "deferred-tool": ({"tools": [{**ADD, "defer_loading": True}]}, None),
    "no-tools": ({"tools": [], "system": "Summarize the session in 5 words."}, None),
    "prefill": ({"messages": [ASKED, {"role": "assistant", "content": "{"}]}, None),
    "quota-probe": ({"max_tokens": 1}, None),
    "tiers": ({"service_tier": "auto", "inference_geo": "eu", "speed": "standard"}, None),
    "diagnostics": ({"diagnostics": {"previous_message_id": None}}, None),
    "sampling": ({"temperature": 1.0, "top_p": 0.9, "top_k": 40}, None),
    "nulls": ({"context_management": None, "container": None, "speed": None}, None),
    "empty-lists": ({"mcp_servers": [], "stop_sequences": [], "tools": []}, None),
    "image": ({"messages": [said({"type": "image", "source": {}})]}, "messages[0].content[0]"),
    "document": ({"messages": [said({"type": "document"})]}, "messages[0].content[0]"),
    "image-in-a-result": (
        turns({**RESULT, "content": [{"type": "image", "source": {}}]}),
        "messages[2].content[0].content[0]",
    ),
    "tool-reference": (
        turns({**RESULT, "content": [{"type": "tool_reference", "tool_name": "add"}]}),
        "messages[2].content[0].content[0]",
    ),
    "redacted-thinking": (
        turns(RESULT, called=({"type": "redacted_thinking", "data": "x"}, CALL)),
        "messages[1].content[0]",
    ),
    "advisor-of-another-name": ({"tools": [{**ADVISOR, "model": "claude-opus"}]}, "tools[0].model"),
    "advisor-beside-another": ({"tools": [ADVISOR]}, "model"),
    "server-tool": ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0]"),
    "tool-search": (
        {"tools": [{"type": "tool_search_tool_regex_20251119", "name": "t"}, ADD]},
        "tools[0]",
    ),
    "server-tool-use": (
        turns(RESULT, called=({"type": "server_tool_use", "id": "s", "name": "x", "input": {}},)),
        "messages[1].content[0]",
    ),
    "advice-in-a-users-turn": (
        {"messages": [ASKED, said(*advice(type="advisor_result", text="Add."))]},
        "messages[1].content[0]",
    ),
    "advice-of-another-kind": (
        turns(called=(*advice(type="advisor_image"), REMINDER)),
        "messages[1].content[1].content.type",
    ),
    "clear-tool-uses": (
        {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}},
        "context_management.edits[0]",
    ),
    "mcp-servers": ({"mcp_servers": [{"type": "url", "url": "x", "name": "y"}]}, "mcp_servers"),
    "container": ({"container": "c"}, "container"),
    "task-budget": ({"output_config": {"task_budget": {}}}, "output_config.task_budget"),
    "no-max-tokens": ({"max_tokens": None}, "max_tokens"),
    "no-prompt-to-cache": ({"max_tokens": 0}, "max_tokens"),
    "budget-without-thinking": (
        {"thinking": {"type": "disabled", "budget_tokens": 5}},
        "thinking.budget_tokens",
    ),
    "no-budget": ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
    "unknown-choice": ({"tool_choice": {"type": "tool", "name": "x"}}, "tool_choice"),
    "unnamed-choice": ({"tools": [ADD], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
    "two-tools-of-a-name": ({"tools": [ADD, ADD]}, "tools"),
    "bad-schema": (
        {"tools": [{**ADD, "strict": True, "input_schema": {"not": {}}}]},
        "tools[0].input_schema",
    ),
    "result-without-call": (
        turns({**RESULT, "tool_use_id": "x"}),
        "messages[2].content[0].tool_use_id",
    ),
    "call-by-the-user": ({"messages": [said(CALL)]}, "messages[0].content[0]"),
    "open-call": ({"messages": [ASKED, said(CALL, role="assistant")]}, "messages[1].content"),
    "thought-in-a-prefill": (
        {"messages": [ASKED, said(THOUGHT, {"type": "text", "text": "It"}, role="assistant")]},
        "messages[1].content",
    ),
    "empty": ({"messages": [{"role": "user", "content": ""}]}, "messages[0].content"),
    "no-blocks": ({"messages": [said()]}, "messages[0].content"),
    "no-turns": ({"messages": []}, "messages"),
    "only-a-prefill": ({"messages": [{"role": "assistant", "content": "Hi"}]}, "messages"),
    "no-type": ({"messages": [said({"text": "hi"})]}, "messages[0].content[0]"),
    "tool-role": ({"messages": [ASKED, {"role": "tool", "content": "3"}]}, "messages[1].role"),
}  # fmt: skip
BETAS = {
    "anthropic-version": "2023-06-01",
    "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14,effort-2025-11-24",
}


@pytest.mark.parametrize("name", SHAPES)
def test_what_claude_code_sends_is_accepted_or_refused_by_name(tool_url: str, name: str) -> None:
    body, refused = SHAPES[name]
    shape = asking(**{"max_tokens": 32_000, "stream": refused is None, **body})
    reply = HTTP.post(f"{tool_url}/v1/messages?beta=true", json=shape, headers=BETAS)
    if refused is None:
        assert reply.status_code == 200, reply.text
        assert reply.text.endswith('event: message_stop\ndata: {"type":"message_stop"}\n\n')
        return
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["details"]["param"].startswith(refused)
    assert error["message"].startswith(refused)
