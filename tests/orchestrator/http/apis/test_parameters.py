"""The pure parts of the HTTP surface, on many inputs."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.errors import ConfigError, InvalidRequest
from orchestrator.http.apis import chat, responses
from orchestrator.http.apis.chat import ChatRequest
from orchestrator.http.apis.completions import CompletionRequest
from orchestrator.http.apis.messages import MessagesRequest
from orchestrator.http.apis.parameters import UNSUPPORTED
from orchestrator.http.apis.responses import ResponsesRequest
from orchestrator.http.ask import Ask
from orchestrator.http.auth import Keys
from orchestrator.http.body import parse_request
from orchestrator.http.rendering import Stripped
from orchestrator.http.settings import HttpSettings
from orchestrator.types import GREEDY
from tests.orchestrator.serving import asking

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=10,
)
NAMES = sorted({*ChatRequest.model_fields, *UNSUPPORTED})
STEADY = settings(max_examples=50)
STRICT, LENIENT = HttpSettings(), HttpSettings(strict=False)


def read(body: dict[str, Any], http: HttpSettings = STRICT, parse: Any = chat.parse) -> Ask:
    ask: Ask = parse(json.dumps(body).encode(), http)
    return ask


def names(ask: Ask) -> frozenset[str]:
    assert ask.tools is not None
    return ask.tools.names


@STEADY
@given(st.lists(st.text(" \n\tab")))
def test_stripping_in_pieces(pieces: list[str]) -> None:
    strip = Stripped()
    assert "".join(strip.feed(piece) for piece in pieces) == "".join(pieces).strip()


@STEADY
@given(st.dictionaries(st.sampled_from(NAMES), JSON, max_size=4))
def test_any_body_is_understood_or_refused(body: dict[str, object]) -> None:
    whole = {"model": "baton", "messages": [{"role": "user", "content": "hi"}], **body}
    with suppress(InvalidRequest):
        ask = read(whole)
        assert ask.conversations[0]
        assert ask.sampling.over(GREEDY).temperature >= 0


@STEADY
@given(st.binary())
def test_any_bytes_are_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        parse_request(body, ChatRequest)


@pytest.mark.parametrize("crowd", [[1] * 20_001, ["a"] * 20_001, [[1] * 15_000, [1] * 15_000]])
def test_crowded_bodies_are_refused_before_they_are_validated(crowd: list[Any]) -> None:
    whole = {"model": "baton", "messages": [{"role": "user", "content": crowd}]}
    with pytest.raises(InvalidRequest, match="messages: too many values"):
        parse_request(json.dumps(whole).encode(), ChatRequest)


def test_a_prompt_of_token_ids_may_be_long() -> None:
    whole = {"model": "large-only", "prompt": [[1] * 30_000]}
    asked, _ = parse_request(json.dumps(whole).encode(), CompletionRequest)
    assert asked.prompt == ((1,) * 30_000,)


DEFAULTS: dict[str, Any] = {
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "use_beam_search": False,
    "length_penalty": 1.0,
    "stop_token_ids": [],
    "bad_words": [],
    "skip_special_tokens": True,
    "spaces_between_special_tokens": True,
    "return_token_ids": False,
    "return_tokens_as_token_ids": False,
    "separate_reasoning": True,
    "request_id": "r-1",
    **dict.fromkeys(("structured_outputs", "documents")),
    **dict.fromkeys(("cache_salt", "vllm_xargs", "allowed_token_ids", "logits_processors")),
}
"""What vLLM's and SGLang's clients send where they ask for nothing."""


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (ChatRequest, {"messages": [{"role": "user", "content": "hi"}]}),
        (CompletionRequest, {"prompt": "hi"}),
        (ResponsesRequest, {"input": "hi"}),
    ],
)
def test_defaults_of_other_servers_pass(kind: Any, body: dict[str, Any]) -> None:
    plain = {"model": "m", **body}
    asked, warnings = parse_request(json.dumps({**plain, **DEFAULTS}).encode(), kind)
    assert (asked, warnings) == parse_request(json.dumps(plain).encode(), kind)
    for name, value in {"min_p": 0.1, "use_beam_search": True, "cache_salt": "x"}.items():
        with pytest.raises(InvalidRequest, match=name):
            parse_request(json.dumps({**plain, name: value}).encode(), kind)


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (ChatRequest, {"messages": [{"role": "user", "content": "hi"}]}),
        (CompletionRequest, {"prompt": "hi"}),
        (ResponsesRequest, {"input": "hi"}),
        (MessagesRequest, {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9}),
    ],
)
def test_null_means_not_given(kind: Any, body: dict[str, Any]) -> None:
    plain = {"model": "m", **body}
    asked = parse_request(json.dumps(plain).encode(), kind)
    for name, field in kind.model_fields.items():
        nulled = json.dumps({**plain, name: None}).encode()
        if field.is_required():
            with pytest.raises(InvalidRequest, match=name):
                parse_request(nulled, kind)
        else:
            assert parse_request(nulled, kind) == asked
    assert parse_request(json.dumps({**plain, "anything": None}).encode(), kind) == asked


WITHIN: dict[str, Any] = {
    "model": "m",
    "stream": True,
    "stream_options": {"chatty": 1},
    "messages": [
        {"role": "system", "content": "be brief", "mood": 1},
        {
            "role": "user",
            "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two", "x": {}}],
        },
    ],
    "tools": [{"type": "function", "function": {"name": "add", "y": None}, "z": 1}],
    "tool_choice": {"type": "function", "function": {"name": "add"}, "w": 1},
}
PLACES = [
    "messages[0].mood",
    "messages[1].content[1].x",
    "stream_options.chatty",
    "tool_choice.w",
    "tools[0].function.y",
    "tools[0].z",
]


def test_what_is_unknown_within_is_refused_by_name() -> None:
    one = {**asking(), "messages": [{"role": "user", "content": "hi", "nam": "a"}]}
    with pytest.raises(InvalidRequest, match="unknown parameter; did you mean name") as caught:
        read(one)
    assert caught.value.param == "messages[0].nam"


def test_what_is_unknown_within_is_left_out_where_the_deployment_says_so() -> None:
    ask = read(WITHIN, LENIENT)
    (warning,) = ask.labels.warnings
    said = warning.removesuffix(" are unknown here, and left out").split(", ")
    assert sorted(said) == PLACES
    assert [message.content for message in ask.conversations[0][1:]] == ["be brief", "one\ntwo"]
    assert names(ask) == {"add"}
    items = [{"role": "user", "content": "hi", "mood": "glad", "n": [1]}]
    body = {"model": "m", "input": items}
    warnings = read(body, LENIENT, responses.parse).labels.warnings
    assert warnings == ("input[0].mood, input[0].n are unknown here, and left out",)
    with pytest.raises(InvalidRequest) as caught:  # what is wrong stays wrong
        read(WITHIN | {"n": 0}, LENIENT)
    assert caught.value.param == "n"
    far = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "a"}]}
    far["tools"][0]["x"] = 1  # type: ignore[index]
    tools = [{"type": "function", "name": "a"}]
    body |= {"input": "hi", "tools": tools, "tool_choice": far}
    warnings = read(body, LENIENT, responses.parse).labels.warnings
    assert warnings == ("tool_choice.tools[0].x is unknown here, and left out",)


HOSTED = [
    {"type": "web_search"},
    {"type": "function", "function": {"name": "add"}, "extra": 1},
    {"type": "mcp", "server_label": "files", "server_url": "https://x"},
    {"type": "function", "function": {"name": "look_up"}},
]


def test_tools_that_are_no_functions_are_named_or_left_out() -> None:
    body = asking() | {"tools": HOSTED}
    with pytest.raises(
        InvalidRequest, match=r"^tools\[0\]: tools of the type web_search"
    ) as caught:
        read(body)
    assert (caught.value.param, caught.value.code) == ("tools[0]", "unsupported_parameter")
    ask = read(body, LENIENT)
    assert ask.labels.warnings == (
        "tools[0] (web_search), tools[1].extra, tools[2] (mcp) are unknown here, and left out",
    )
    assert names(ask) == {"add", "look_up"}
    flat = [{"type": "function", "name": "add"}, {"type": "custom", "name": "x"}]
    items = {"model": "m", "input": "hi", "tools": flat}
    with pytest.raises(InvalidRequest, match=r"^tools\[1\]: tools of the type custom are not"):
        read(items, parse=responses.parse)
    ask = read(items, LENIENT, responses.parse)
    assert names(ask) == {"add"}
    assert ask.labels.warnings == ("tools[1] (custom) is unknown here, and left out",)


ALLOWED_CHAT = {
    "type": "allowed_tools",
    "allowed_tools": {
        "mode": "required",
        "tools": [{"type": "function", "function": {"name": "add"}}, {"type": "web_search"}],
    },
}
ALLOWED_RESPONSES = {
    "type": "allowed_tools",
    "mode": "required",
    "tools": [{"type": "function", "name": "add"}, {"type": "web_search"}],
}


@pytest.mark.parametrize(
    ("parse", "body", "place"),
    [
        (
            chat.parse,
            asking() | {"tools": HOSTED, "tool_choice": ALLOWED_CHAT},
            "tool_choice.allowed_tools.tools[1]",
        ),
        (
            responses.parse,
            {
                "model": "m",
                "input": "hi",
                "tools": [{"type": "function", "name": "add"}, {"type": "web_search"}],
                "tool_choice": ALLOWED_RESPONSES,
            },
            "tool_choice.tools[1]",
        ),
    ],
)
def test_allowed_tools_may_be_functions_alone(parse: Any, body: Any, place: str) -> None:
    given = body | {"tools": [tool for tool in body["tools"] if tool["type"] == "function"][:1]}
    given["tools"][0].pop("extra", None)
    with pytest.raises(InvalidRequest) as caught:
        read(given, parse=parse)
    assert (caught.value.param, caught.value.code) == (place, "unsupported_parameter")
    ask = read(body, LENIENT, parse)
    assert f"{place} (web_search)" in ask.labels.warnings[0]
    assert names(ask) == {"add"}


def test_of_many_unknown_names_none_hides_another() -> None:
    messages = [{"role": "user", "content": "hi", "time": 1} for _ in range(40)]
    body = {**asking(), "messages": messages, "stream": True, "stream_options": {"chatty": 1}}
    warnings = read(body, LENIENT).labels.warnings
    assert warnings == ("stream_options.chatty, messages[*].time are unknown here, and left out",)
    many = {f"a{i}": 1 for i in range(20)}
    with pytest.raises(InvalidRequest, match="a5 and 4 more are unknown here"):
        read(asking() | many)


@pytest.mark.parametrize("name", ["x[0]", "str", "int"])
def test_a_name_that_reads_like_a_place_is_left_out_and_nothing_around_it(name: str) -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}
    body = asking() | {"response_format": schema | {name: 1}}
    ask = read(body, LENIENT)
    assert ask.labels.warnings == (f"response_format.{name} is unknown here, and left out",)
    assert ask.limits.constraint is not None


def test_hints_and_what_a_client_made_of_a_reply_pass() -> None:
    call = {"name": "add", "arguments": "{}", "parsed_arguments": {"a": 1}}
    turns = [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "a", "prompt_cache_breakpoint": {"mode": "explicit"}},
                {"type": "text", "text": "b", "cache_control": {"type": "ephemeral"}},
            ],
        },
        {
            "role": "assistant",
            "content": "{}",
            "parsed": {"a": 1},
            "tool_calls": [{"id": "c", "type": "function", "function": call}],
        },
        {"role": "tool", "content": "5", "tool_call_id": "c"},
    ]
    options = {"include_obfuscation": True}
    body = {"model": "m", "messages": turns, "stream": True, "stream_options": options}
    assert [message.content for message in read(body).conversations[0]] == ["a\nb", "{}", "5"]


def test_keys() -> None:
    keys = Keys(["sk-a", "sk-b"])
    assert keys.owner("Bearer sk-a") != keys.owner("bearer sk-b")
    for header in (None, "", "Bearer", "Bearer ", "Bearer sk-", "Basic sk-a", "sk-a", "Bearer é"):
        assert keys.owner(header) is None
    assert not Keys()
    for wrong in ("", " ", "a b", "schlüssel", "a\n"):
        with pytest.raises(ConfigError):
            Keys([wrong])
