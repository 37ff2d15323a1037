"""Every way to be refused, as clients see it."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import json
import logging
import socket
import weakref
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from starlette.routing import Route

from orchestrator.errors import BatonError, Overloaded, Unsupported, WorkerError, WorkerUnavailable
from orchestrator.http import body
from orchestrator.http.apis.parameters import UNSUPPORTED
from orchestrator.http.app import create_app
from orchestrator.http.auth import OPEN_FILES, OPEN_PATHS, READ_METHODS, USER_PATHS, Access, Keys
from orchestrator.http.errors import HttpError, http_error
from orchestrator.http.settings import Patience, ServiceLimits
from orchestrator.worker import Delta
from tests.orchestrator.serving import (
    HTTP,
    STORY,
    asking,
    client,
    post,
    scripted,
    service,
    serving,
    until,
)
from tests.workers.scripted import Say, Scripted
from workers.remote.errors import Absent, Declined

FORM = {"message", "type", "param", "code"}
CALLED = {"id": "1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
ADD = {"type": "function", "function": {"name": "add"}}
ASKED: list[Any] = [{"role": "user", "content": "Twice 2+2?"}]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving(service(limits=ServiceLimits(max_tokens_cap=4096))) as url:
        yield url


def test_a_request_that_names_no_cap_has_none_above_the_most() -> None:
    """The service lowered the most that may be named, and not the usual."""
    made = service(scripted(), limits=ServiceLimits(max_tokens_cap=2))
    with serving(made) as url:
        body = {"model": "small-only", "messages": ASKED}
        usage = HTTP.post(f"{url}/v1/chat/completions", json=body).json()["usage"]
    assert usage["completion_tokens"] <= 2


def error(reply: httpx.Response, status: int) -> Any:
    """The error of a reply, after looking at its form."""
    assert reply.status_code == status, reply.text
    assert reply.headers["content-type"] == "application/json"
    assert reply.headers["x-request-id"]
    body = reply.json()["error"]
    if reply.json().keys() == {"type", "error", "request_id"}:  # that of messages
        body |= {"code": body["details"]["error_code"], "param": body.pop("details")["param"]}
    else:
        assert reply.json().keys() == {"error"}
    assert body.keys() == FORM
    assert body["message"]
    assert body["type"]
    return body


def turns(*roles: str, content: Any = "hello") -> dict[str, Any]:
    return {"messages": [{"role": role, "content": content} for role in roles]}


WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"temprature": 1}, "temprature", "unknown_parameter"),
    ({"temperature": 2.1}, "temperature", "invalid_value"),
    ({"temperature": "0.5"}, "temperature", "invalid_type"),
    ({"temperature": True}, "temperature", "invalid_type"),
    ({"temperature": 10**400}, "temperature", "invalid_type"),
    ({"top_p": 0}, "top_p", "invalid_value"),
    ({"top_p": 1.5}, "top_p", "invalid_value"),
    ({"top_k": -2}, "top_k", "invalid_value"),
    ({"seed": 2**63}, "seed", "invalid_value"),
    ({"seed": 1.5}, "seed", "invalid_type"),
    ({"max_tokens": 0}, "max_tokens", "invalid_value"),
    ({"max_tokens": 4097}, "max_tokens", "invalid_value"),
    ({"max_completion_tokens": 10**30}, "max_completion_tokens", "invalid_value"),
    ({"max_tokens": 5, "max_completion_tokens": 6}, "max_completion_tokens", "invalid_value"),
    ({"n": 17}, "n", "invalid_value"),
    ({"n": 0}, "n", "invalid_value"),
    ({"n": True}, "n", "invalid_type"),
    ({"n": "2"}, "n", "invalid_type"),
    ({"best_of": 2}, "best_of", "unsupported_parameter"),
    ({"priority": "high"}, "priority", "invalid_type"),
    ({"priority": 2**31}, "priority", "invalid_value"),
    ({"stop": ""}, "stop[0]", "invalid_value"),
    ({"stop": ["x"] * 17}, "stop", "invalid_value"),
    ({"stop": 5}, "stop", "invalid_type"),
    ({"stream": "yes"}, "stream", "invalid_type"),
    ({"stream_options": {"include_usage": True}}, "stream_options", "invalid_value"),
    (
        {"stream": True, "stream_options": {"chatty": True}},
        "stream_options.chatty",
        "unknown_parameter",
    ),
    ({"logprobs": True, "stop": ["x"]}, "logprobs", "invalid_value"),
    ({"logprobs": True, "tools": [ADD]}, "logprobs", "invalid_value"),
    ({"top_logprobs": 1}, "top_logprobs", "invalid_value"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "invalid_value"),
    ({"logprobs": True, "top_logprobs": -1}, "top_logprobs", "invalid_value"),
    ({"logprobs": True, "top_logprobs": True}, "top_logprobs", "invalid_type"),
    ({"logprobs": 1}, "logprobs", "invalid_type"),
    ({"logprobs": "true"}, "logprobs", "invalid_type"),
    ({"stream_options": {"include_events": True}}, "stream_options", "invalid_value"),
    ({"reasoning_effort": "much"}, "reasoning_effort", "invalid_value"),
    ({"thinking_token_budget": -2}, "thinking_token_budget", "invalid_value"),
    ({"thinking_token_budget": "9"}, "thinking_token_budget", "invalid_type"),
    ({"policy": {"answer_reserve": -1}}, "policy.answer_reserve", "invalid_value"),
    ({"response_format": {"type": "xml"}}, "response_format.type", "invalid_value"),
    ({"tools": [{"type": "function"}]}, "tools[0].function", "missing_required_parameter"),
    ({"logit_bias": {"5": 1}}, "logit_bias", "unsupported_parameter"),
    ({"frequency_penalty": 0.5}, "frequency_penalty", "unsupported_parameter"),
    ({"chat_template": "{{ evil }}"}, "chat_template", "unknown_parameter"),
    ({"metadata": {"k": 1}}, "metadata.k", "invalid_type"),
    ({"metadata": {str(i): "" for i in range(17)}}, "metadata", "invalid_value"),
    ({"user": "u" * 257}, "user", "invalid_value"),
    ({"messages": []}, "messages", "invalid_value"),
    ({"messages": "hi"}, "messages", "invalid_type"),
    ({"messages": [{"role": "user"}]}, "messages[0].content", "missing_required_parameter"),
    (turns("user", "assistant"), "messages", "invalid_value"),
    ({**turns("user", "assistant"), "continue_final_message": False}, "messages", "invalid_value"),
    ({**turns("assistant"), "continue_final_message": True}, "messages", "invalid_value"),
    (
        {
            "messages": [
                {"role": "user", "content": "2+2?"},
                {"role": "assistant", "content": "It is", "tool_calls": [CALLED]},
            ],
            "continue_final_message": True,
        },
        "messages[1].tool_calls",
        "invalid_value",
    ),
    (
        {**turns("user"), "continue_final_message": True},
        "continue_final_message",
        "invalid_value",
    ),
    (
        {
            **turns("user", "assistant"),
            "continue_final_message": True,
            "add_generation_prompt": True,
        },
        "add_generation_prompt",
        "invalid_value",
    ),
    ({"chat_template_kwargs": {"loud": True}}, "chat_template_kwargs.loud", "unknown_parameter"),
    ({"ignore_eos": True}, "ignore_eos", "unsupported_parameter"),
    ({"model": "bild", "ignore_eos": True}, "ignore_eos", "unsupported_parameter"),
    ({"min_tokens": 5}, "min_tokens", "unsupported_parameter"),
    ({"model": "large-only", "min_tokens": -1}, "min_tokens", "invalid_value"),
    ({"model": "large-only", "min_tokens": 1.5}, "min_tokens", "invalid_type"),
    ({"model": "large-only", "min_tokens": 2**40}, "min_tokens", "invalid_value"),
    ({"model": "large-only", "min_tokens": 9, "max_tokens": 8}, "min_tokens", "invalid_value"),
    (
        {
            "model": "large-only",
            "min_tokens": 1,
            "response_format": {"type": "json_object"},
        },
        "min_tokens",
        "invalid_value",
    ),
    (turns("robot"), "messages[0].role", "invalid_value"),
    (turns("function", "user"), "messages[0].role", "invalid_value"),
    (turns("tool", "user"), "messages[0].tool_call_id", "invalid_value"),
    (turns("user", content=""), "messages[0].content", "invalid_value"),
    (turns("user", content=None), "messages[0].content", "invalid_type"),
    (turns("user", content=[]), "messages[0].content", "invalid_value"),
    (
        turns("user", content=[{"type": "image_url", "image_url": {"url": "x"}}]),
        "messages[0].content[0].type",
        "unsupported_parameter",
    ),
    (turns("user", content="a\0b"), "messages[0].content", "invalid_value"),
    (turns("user", content="half \ud83d"), "messages[0].content", "invalid_value"),
    ({"messages": [{**ASKED[0], "name": 5}]}, "messages[0].name", "invalid_type"),
    ({"user": "\udc00"}, "user", "invalid_value"),
    ({"policy": "specreason"}, "policy", "invalid_type"),
    ({"policy": {"treshold": 5}}, "policy.treshold", "unknown_parameter"),
    ({"policy": {"a-b": 5}}, "policy.a-b", "unknown_parameter"),
    ({"policy": {"threshold": 11}}, "policy.threshold", "invalid_value"),
    ({"policy": {"threshold": "5"}}, "policy.threshold", "invalid_type"),
    ({"policy": {"budget": 0}}, "policy.budget", "invalid_value"),
    ({"policy": {"budget": True}}, "policy.budget", "invalid_type"),
    ({"policy": {"budget": "9"}, "reasoning_effort": "low"}, "policy.budget", "invalid_type"),
    ({"policy": {"name": "nonesuch"}}, "policy.name", "invalid_value"),
    ({"policy": {"name": ["a"]}}, "policy.name", "invalid_value"),
    ({"model": "large-only", "policy": {"name": "specreason"}}, "policy.name", "invalid_value"),
    ({"model": "large-only", "policy": {"threshold": 5}}, "policy.threshold", "unknown_parameter"),
    ({"model": 7}, "model", "invalid_type"),
]


@pytest.mark.parametrize(("body", "param", "code"), WRONG, ids=lambda value: str(value)[:40])
def test_refused_by_name(url: str, body: dict[str, Any], param: str, code: str) -> None:
    data = json.dumps(asking(**body))  # escapes lone surrogates, as a hostile client would
    reply = HTTP.post(f"{url}/v1/chat/completions", content=data, headers=JSON)
    found = error(reply, 400)
    assert (found["param"], found["code"]) == (param, code)
    assert found["type"] == "invalid_request_error"
    assert param in found["message"]


JSON = {"content-type": "application/json"}


def test_all_that_is_refused_is_named_at_once_the_most_telling_first(url: str) -> None:
    body = {"temprature": 1, "best_of": 2, "functions": [{"name": "a"}], "zeal": 1, "seed": 1}
    found = error(post(url, body), 400)
    assert (found["param"], found["code"]) == ("functions", "unsupported_parameter")
    assert (
        found["message"]
        == "functions, best_of are not supported here; temprature, zeal are unknown here"
    )
    found = error(post(url, dict.fromkeys(map(str, range(40)), 1)), 400)
    assert len(found["message"]) < 200


def test_a_policys_parameter_is_looked_up_where_it_belongs(url: str) -> None:
    """Users try the parameter of a policy that they read about on the model that they have."""

    def said(**body: Any) -> str:
        return str(error(post(url, body), 400)["message"])

    here = "policy.rollback: unknown parameter of specreason"
    assert said(policy={"rollback": 1.5}) == (
        f"{here}, which baton stands for; it is a parameter of bild"
    )
    assert said(model="specreason", policy={"rollback": 1.5}) == (
        f"{here}; it is a parameter of bild"
    )
    assert said(policy={"name": "specreason", "rollback": 1.5}) == (
        f"{here}; it is a parameter of bild"
    )
    assert said(model="bild", policy={"rolback": 1.5}) == (
        "policy.rolback: unknown parameter of bild; did you mean rollback?"
    )
    assert said(budget=256) == "budget is unknown here; it goes under policy"


def test_a_path_allows_all_of_its_methods(url: str) -> None:
    for method, path, allowed in (
        ("DELETE", "/v1/policies/active", "GET, HEAD, PUT"),
        ("GET", "/v1/chat/completions", "POST"),
        ("POST", "/health", "GET, HEAD"),
    ):
        reply = HTTP.request(method, url + path)
        assert error(reply, 405)["code"] == "method_not_allowed"
        assert reply.headers["allow"] == allowed


def test_head_is_get_without_a_body(url: str) -> None:
    for path in ("/health", "/ready", "/v1/models", "/v1/models/baton", "/metrics", "/v1/policies"):
        head, get = HTTP.head(url + path), HTTP.get(url + path)
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-type"] == get.headers["content-type"]


def test_cross_origin_requests_are_a_setting() -> None:
    ask = {"origin": "https://page.example", "access-control-request-method": "POST"}
    path, allowed = "/v1/chat/completions", "access-control-allow-origin"
    with serving(service()) as url:
        assert allowed not in HTTP.options(url + path, headers=ask).headers
        assert allowed not in HTTP.get(f"{url}/health", headers=ask).headers
    access = Access(Keys(["sk-one"]))
    with serving(service(access=access, cors_origins=["https://page.example"])) as url:
        preflight = HTTP.options(url + path, headers=ask)  # a browser sends no key with it
        assert (preflight.status_code, preflight.headers[allowed]) == (200, ask["origin"])
        refused = HTTP.get(f"{url}/v1/models", headers=ask)
        assert (refused.status_code, refused.headers[allowed]) == (401, ask["origin"])
        other = HTTP.get(f"{url}/health", headers={"origin": "https://other.example"})
        assert allowed not in other.headers


@pytest.mark.parametrize("admins", [Keys(), Keys(["sk-admin"])], ids=["open", "admin-key"])
def test_pages_of_other_origins_administer_with_an_admin_key_alone(admins: Keys) -> None:
    page = "https://page.example"
    made = service(access=Access(admins=admins), cors_origins=[page])
    with serving(made) as url:
        for method, path in (
            ("PUT", "/v1/policies/active"),
            ("POST", "/v1/policies"),
            ("POST", "/v1/experiments/a/stop"),
            ("GET", "/v1/policies"),
            ("POST", "/v1/completions"),
            ("POST", "/v1/requests/a/answer"),
        ):
            ask = {"origin": page, "access-control-request-method": method}
            status = HTTP.options(url + path, headers=ask).status_code
            is_use = method == "GET" or path in ("/v1/completions", "/v1/requests/a/answer")
            assert (status == 200) == (is_use or bool(admins))
        reply = HTTP.get(f"{url}/health", headers={"origin": page})
        exposed = reply.headers["access-control-expose-headers"]
        assert "x-should-retry" in exposed
        assert "x-ratelimit-remaining-requests" in exposed


@pytest.mark.parametrize("name", sorted(UNSUPPORTED))
def test_unsupported_unless_it_asks_for_nothing(url: str, name: str) -> None:
    assert error(post(url, {name: {"some": "thing"}}), 400)["param"] == name
    for harmless in (None, *UNSUPPORTED[name]):
        reply = post(url, {name: harmless, "model": "nonesuch"})
        assert error(reply, 404)["code"] == "model_not_found"


def test_the_best_of_as_many_as_are_shown_are_all_of_them(url: str) -> None:
    reply = post(url, {"n": 2, "best_of": 2, "model": "large-only"})
    assert len(reply.json()["choices"]) == 2
    for wrong in ({"n": 2, "best_of": 3}, {"n": None, "best_of": 2}, {"n": 1, "best_of": True}):
        assert error(post(url, wrong), 400)["param"] == "best_of"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "the body is empty"),
        (b" ", "the body is empty"),
        (b"{", "not valid JSON at character 1"),
        (b"[]", "must be a JSON object"),
        (b'"text"', "must be a JSON object"),
        (b"null", "must be a JSON object"),
        (b"\xff\xfe", "not UTF-8 text at byte 0"),
        (b'{"a": "\xff"}', "not UTF-8 text at byte 7"),
        (b'{"model": "baton", "temperature": NaN}', "not valid JSON"),
        (b'{"model": "baton", "temperature": -Infinity}', "not valid JSON"),
        (b'{"model": "baton", "temperature": 1e999}', "not valid JSON"),
        (b'{"model": "baton", "seed": ' + b"9" * 5000 + b"}", "not valid JSON"),
        (b'{"messages": ' + b"[" * 100_000, "not valid JSON"),
        (b'{"messages": "\x00"}', "not valid JSON"),
    ],
    ids=lambda value: repr(value[:30]),
)
def test_malformed_json(url: str, body: bytes, said: str) -> None:
    reply = HTTP.post(f"{url}/v1/chat/completions", content=body, headers=JSON)
    found = error(reply, 400)
    assert found["code"] == "invalid_json"
    assert said in found["message"]


def test_nesting_and_crowds(url: str) -> None:
    deep: Any = 1
    for _ in range(200):
        deep = [deep]
    assert error(post(url, {"policy": {"threshold": deep}}), 400)["param"] == "policy"
    assert error(post(url, {"stop": ["x"] * 50_000}), 400)["param"] == "stop"
    assert error(post(url, {"policy": {"\0": 1}}), 400)["param"] == "policy"


def test_content_type(url: str) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        reply = HTTP.post(
            f"{url}/v1/chat/completions",
            content=json.dumps(asking()),
            headers={"content-type": kind},
        )
        assert error(reply, 400)["code"] == "invalid_content_type"


def test_body_size(url: str) -> None:
    large = b'{"model": "' + b"x" * (50 << 20) + b'"}'
    assert error(HTTP.post(f"{url}/v1/chat/completions", content=large, headers=JSON), 413)

    def pieces() -> Iterator[bytes]:  # no Content-Length to judge by
        for _ in range(100):
            yield b" " * (64 << 10)

    reply = HTTP.post(f"{url}/v1/chat/completions", content=pieces(), headers=JSON)
    assert error(reply, 413)["code"] == "request_too_large"


@pytest.mark.parametrize(
    "path",
    [
        "chat/completions",
        "completions",
        "responses",
        "feedback",
        "experiments",
        "policies",
        "policies/rollback",
    ],
)
def test_bodies_are_read_beside_the_event_loop(
    url: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A megabyte of JSON takes a while, in which nobody else would be answered."""
    held_up = list[bool]()

    class Watched(json.JSONDecoder):
        def decode(self, *args: Any, **more: Any) -> Any:
            held_up.append(_is_on_a_loop())
            return super().decode(*args, **more)

    monkeypatch.setattr(body, "FINITE_JSON", Watched())
    assert HTTP.post(f"{url}/v1/{path}", json={"x": 1}).status_code in (400, 404, 409)
    assert held_up == [False]


def _is_on_a_loop() -> bool:
    try:
        return asyncio.get_running_loop().is_running()
    except RuntimeError:
        return False


def test_a_body_that_does_not_come() -> None:
    begun = "POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
    with serving(service(patience=Patience(body_s=0.1))) as url:
        place = url.removeprefix("http://").split(":")
        with socket.create_connection((place[0], int(place[1]))) as connection:
            connection.sendall(f"{begun}content-length: 9\r\n\r\n{{".encode())
            reply = b"".join(iter(lambda: connection.recv(4096), b"")).decode()
    assert reply.startswith("HTTP/1.1 408")
    assert json.loads(reply.partition("\r\n\r\n")[2])["error"]["code"] == "request_timeout"


def test_routes_that_are_not(url: str) -> None:
    nowhere = error(HTTP.get(f"{url}/nowhere"), 404)
    assert (nowhere["code"], "/docs" in nowhere["message"]) == ("not_found", True)
    assert error(HTTP.get(f"{url}/v1/models/"), 404)
    assert error(HTTP.get(f"{url}/redoc"), 404)
    reply = HTTP.get(f"{url}/v1/chat/completions")
    refused = error(reply, 405)
    assert (refused["code"], refused["message"]) == (
        "method_not_allowed",
        "GET is not allowed here; use POST",
    )
    assert reply.headers["allow"] == "POST"


def test_exceptions_of_the_client(url: str) -> None:
    with client(url) as api:
        with pytest.raises(openai.NotFoundError) as missing:
            api.chat.completions.create(model="nonesuch", messages=ASKED)
        assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
        with pytest.raises(openai.BadRequestError) as refused:
            api.chat.completions.create(
                model="baton", messages=ASKED, extra_body={"policy": {"threshold": 99}}
            )
        assert refused.value.param == "policy.threshold"


@pytest.mark.parametrize(
    ("raised", "status", "code"),
    [
        (WorkerUnavailable("http://10.0.0.7:8001 refused"), 503, "worker_unavailable"),
        (Overloaded("http://10.0.0.7:8001 is full"), 503, "overloaded"),
        (WorkerError("10.0.0.7"), 503, "worker_unavailable"),
        (Absent("10.0.0.7: the model `x` does not exist"), 503, "worker_misconfigured"),
        (Declined("10.0.0.7: `seed` must be a number"), 503, "worker_unavailable"),
        (BatonError("10.0.0.7"), 500, "internal_error"),
        (RuntimeError("secret 10.0.0.7"), 500, "internal_error"),
        (TimeoutError("10.0.0.7"), 500, "internal_error"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_workers_that_fail(
    raised: Exception, status: int, code: str, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(service(scripted(down=raised), scripted(down=raised))) as url:
        for stream in (False, True):
            reply = post(url, {"stream": stream})
            assert error(reply, status)["code"] == code
            assert "10.0.0.7" not in reply.text
            assert ("retry-after" in reply.headers) == (status == 503)
    assert "secret" not in caplog.text


def test_what_a_pair_cannot_do_is_named_with_the_policy() -> None:
    lacking = Unsupported("the model's server does not give log-probabilities")
    with serving(service(scripted(down=lacking), scripted(down=lacking))) as url:
        for stream in (False, True):
            found = error(post(url, {"stream": stream, "model": "specreason"}), 400)
            assert (found["code"], found["param"]) == ("unsupported_policy", "model")
            assert "specreason" in found["message"]
            assert "does not give log-probabilities" in found["message"]


def test_deadline() -> None:
    class Stuck(Scripted):
        """Writes a word and no more."""

        async def generate(self, *args: Any, **more: Any) -> Any:
            async for item in super().generate(*args, **more):
                yield item
                if isinstance(item, Delta):
                    await asyncio.sleep(3600)

    slow = service(large=Stuck(story=STORY), limits=ServiceLimits(deadline_s=1))
    with serving(slow) as url:
        reply = post(url, {"model": "large-only"})
        assert error(reply, 503)["code"] == "deadline_exceeded"
        assert reply.headers["x-should-retry"] == "false"
        reply = post(url, {"model": "large-only", "stream": True})
        assert reply.status_code == 200
        assert broken_off(reply.text)["code"] == "deadline_exceeded"


def test_further_answers_have_no_time_of_their_own() -> None:
    """They wait until the first has read the prompt."""

    class SlowReader(Scripted):
        async def generate(self, call: Any, criteria: Any, *args: Any, **kw: Any) -> Any:
            if criteria.max_tokens == 0:
                await asyncio.sleep(0.6)
            async for item in super().generate(call, criteria, *args, **kw):
                yield item

    slow = service(large=SlowReader(story=("Twice.", "Eight.")), limits=ServiceLimits(deadline_s=1))
    with serving(slow) as url:
        reply = post(url, {"model": "large-only", "n": 2})
        assert error(reply, 503)["code"] == "deadline_exceeded"


def test_a_prompt_that_one_worker_does_not_read_counts_as_the_other_reads_it() -> None:
    made = service(
        scripted(delay=0.2),
        Scripted(down=WorkerUnavailable("gone")),
        access=Access(Keys(["one"])),
        limits=ServiceLimits(prompt_tokens=300),
    )
    body = asking(model="specreason", stream=True)
    body["messages"][0]["content"] = "2+2? " * 400
    with serving(made) as url:
        one = {"authorization": "Bearer one"}
        with HTTP.stream("POST", f"{url}/v1/chat/completions", json=body, headers=one):
            until(lambda: made.live.admission.live == 1)
            (live,) = made.live.admission._requests.values()
            until(lambda: live[0].prompt != 666)
            assert live[0].prompt > 0
        until(lambda: made.live.admission.live == 0)


def broken_off(text: str) -> Any:
    """The error that ends a stream, which then ends in nothing else."""
    *events, last, rest = text.split("\n\n")
    assert rest == ""
    assert "[DONE]" not in text
    assert not any('"finish_reason":"' in event for event in events)
    return json.loads(last.removeprefix("data: "))["error"]


@pytest.mark.parametrize(
    ("raised", "code"),
    [(WorkerUnavailable("gone"), "worker_unavailable"), (TimeoutError("x"), "internal_error")],
)
def test_a_stream_that_breaks_off(raised: Exception, code: str) -> None:
    lines = [Say("A first thought.", "think_end"), raised]
    made = service(large=Scripted(lines=lines))  # type: ignore[arg-type]
    with serving(made) as url:
        text = post(url, {"model": "large-only", "stream": True}).text
        assert "first" in text
        assert broken_off(text)["code"] == code
        trace_id = json.loads(text.split("\n\n")[0].removeprefix("data: "))["id"]
        record = HTTP.get(f"{url}/v1/traces/{trace_id.removeprefix('chatcmpl-')}").json()
        assert record["status"] == "failed"
        assert record["error"]["code"] == code
        assert record["error"].get("worker") == ("large" if code == "worker_unavailable" else None)
        assert record["reasoning_content"] == "A first thought."
    with serving(service(large=Scripted(lines=lines))) as url, client(url) as api:  # type: ignore[arg-type]
        stream = api.chat.completions.create(model="large-only", messages=ASKED, stream=True)
        with pytest.raises(openai.APIError):
            list(stream)


def test_a_key_with_too_many_prompt_tokens_live_is_refused_and_another_is_not() -> None:
    access = Access(Keys(["one", "two"]))
    made = service(scripted(delay=0.2), access=access, limits=ServiceLimits(prompt_tokens=300))
    body = asking(model="small-only", stream=True)
    body["messages"][0]["content"] = "2+2? " * 400  # estimated at 666, and read as fewer or more
    with serving(made) as url:
        one, two = ({"authorization": f"Bearer {key}"} for key in ("one", "two"))
        with HTTP.stream("POST", f"{url}/v1/chat/completions", json=body, headers=one) as reply:
            assert reply.status_code == 200  # alone it may be too long
            until(lambda: made.live.admission.live == 1)
            (live,) = made.live.admission._requests.values()
            read = live[0].prompt
            assert read > 0
            assert read != 666  # what the worker counted
            reply = post(url, body | {"stream": False}, headers=one)
            assert error(reply, 429)["code"] == "rate_limit_exceeded"
            assert int(reply.headers["retry-after"]) >= 1
            assert post(url, {"model": "small-only"}, headers=two).status_code == 200
        until(lambda: made.live.admission.live == 0)


def routes() -> dict[str, set[str]]:
    """Every path of the application with its methods."""
    found: dict[str, set[str]] = {}
    for route in create_app(service()).routes:
        assert isinstance(route, Route)  # one that is mounted would hide others
        found.setdefault(route.path, set()).update(route.methods or ())
    some = {"/v1/chat/completions", "/v1/models", "/metrics", "/v1/policies/active"}
    assert some < found.keys() > OPEN_PATHS
    return found


def test_every_change_wants_an_admin_key() -> None:
    def codes(url: str, key: str) -> dict[str, Any]:
        headers = {"authorization": f"Bearer {key}"}
        changes = {
            f"{method} {path}": HTTP.request(method, url + path, headers=headers)
            for path, methods in (routes() | {"/v1/nowhere": {"DELETE"}}).items()
            for method in methods - READ_METHODS
        }
        return {what: error(reply, reply.status_code)["code"] for what, reply in changes.items()}

    with serving(service(access=Access(Keys(["sk-user"]), Keys(["sk-admin"])))) as url:
        asked = codes(url, "sk-user")
        assert {what.partition(" ")[2] for what, code in asked.items() if code != REFUSED} == {
            *USER_PATHS,
            "/v1/requests/{request_id}/answer",
        }
        assert codes(url, "sk-admin")["PUT /v1/policies/active"] == "invalid_content_type"
        assert REFUSED not in codes(url, "sk-admin").values()
        reply = HTTP.post(f"{url}/v1/policies", headers={"authorization": "Bearer sk-user"})
        assert error(reply, 403)["type"] == "permission_error"
    with serving(service(access=Access(Keys(["sk-user"])))) as url:  # nobody is administrator
        assert codes(url, "sk-user")["POST /v1/policies"] == REFUSED
    with serving(service(access=Access(admins=Keys(["sk-admin"])))) as url:
        assert post(url).status_code == 200
        assert codes(url, "sk-user")["POST /v1/policies"] == "invalid_api_key"


REFUSED = "admin_key_required"


def test_each_role_reads_what_is_its_own() -> None:
    access = Access(Keys(["sk-user"]), Keys(["sk-admin"]), Keys(["sk-eye"]))
    gets = [path for path, methods in routes().items() if "GET" in methods]
    with serving(service(access=access)) as url:
        closed = {"sk-user": set[str](), "sk-admin": set[str](), "sk-eye": set[str]()}
        for key, found in closed.items():
            headers = {"authorization": f"Bearer {key}"}
            for path in gets:
                reply = HTTP.get(url + path, headers=headers)
                if reply.status_code == 403:
                    assert error(reply, 403)["code"] == "observer_key_required"
                    found.add(path)
            asked = post(url, headers=headers)
            if key != "sk-eye":
                assert asked.status_code == 200
                continue
            assert error(asked, 403)["code"] == "api_key_required"
            assert "an API key or an admin key" in error(asked, 403)["message"]
            change = HTTP.post(f"{url}/v1/policies", headers=headers)
            assert error(change, 403)["code"] == REFUSED
        assert closed["sk-admin"] == closed["sk-eye"] == set()
        assert "/metrics" in closed["sk-user"]
        assert {path for path in gets if path.startswith(("/v1/policies", "/v1/experiments"))} == {
            path for path in closed["sk-user"] if path != "/metrics" and "audit" not in path
        }
        assert not closed["sk-user"] & {"/v1/models", "/v1/traces", "/openapi.json", "/docs"}


def test_a_key_may_be_named_by_its_digest() -> None:
    digest = hashlib.sha256(b"sk-user").hexdigest()
    with serving(service(access=Access(Keys([f"sha256:{digest}"])))) as url:
        assert post(url, headers={"authorization": "Bearer sk-user"}).status_code == 200
        for wrong in (f"sha256:{digest}", digest):
            assert post(url, headers={"authorization": f"Bearer {wrong}"}).status_code == 401
    assert Keys(["sk-user"]) == Keys([f"sha256:{digest}"]) != Keys(["sk-other"])


@pytest.mark.parametrize("loopback", [True, False])
def test_a_service_of_this_machine_answers_to_its_name_alone(loopback: bool) -> None:
    own = ("127.0.0.1:8000", "localhost", "LOCALHOST:9", "[::1]:8000", "127.9.9.9")
    other = (
        "evil.example", "localhost.evil.example:8000", "127.0.0.1.nip.io", "10.0.0.7", "[::2]",
        "a:b:c", "",
    )  # fmt: skip
    with serving(service(loopback=loopback)) as url:
        for host in (*own, *other):
            reply = HTTP.get(f"{url}/v1/models", headers={"host": host})
            if loopback and host in other:
                assert error(reply, 421)["code"] == "wrong_host"
            else:
                assert reply.status_code == 200


def test_every_route_wants_a_key() -> None:
    made = service(access=Access(Keys(["sk-one", "sk-two"]), Keys(["sk-admin"])))
    paths = routes() | {"/nowhere": {"GET"}}
    with serving(made) as url:
        for path, methods in paths.items():
            for method in methods:
                for tried in ({}, {"authorization": "Bearer sk-on"}, {"authorization": "sk-one"}):
                    reply = HTTP.request(method, url + path, headers=tried)
                    if path in OPEN_PATHS:
                        assert reply.status_code in (200, 307, 404)  # / and /docs: for browsers
                        continue
                    if path.startswith(OPEN_FILES):
                        assert reply.status_code == 404  # there is no such file
                        continue
                    if method == "HEAD":
                        assert (reply.status_code, reply.content) == (401, b"")
                        continue
                    assert error(reply, 401)["code"] == "invalid_api_key"
                    assert reply.headers["www-authenticate"] == "Bearer"
        for near in ("/health/", "//health", "/health/../metrics", "/ready%2f"):
            assert HTTP.get(url + near).status_code == 401
        with client(url, "sk-two") as api:
            assert api.models.list().data
        with client(url, "sk-three") as api, pytest.raises(openai.AuthenticationError):
            api.models.list()


def test_logs_hold_neither_keys_nor_prompts(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "orchestrator")
    with serving(service(access=Access(Keys(["sk-canary"])))) as url:
        headers = {"authorization": "Bearer sk-canary"}
        trace_id = post(url, headers=headers).json()["baton"]["trace_id"]
        record = HTTP.get(f"{url}/v1/traces/{trace_id}", headers=headers).text
    assert "sk-canary" not in caplog.text + record
    assert "Twice" not in caplog.text
    assert f"key={json.loads(record)['key']}" in caplog.text


def test_what_a_refusal_says_holds_on_to_nothing_that_the_request_had() -> None:
    class Body:
        pass

    def refuse() -> tuple[HttpError, weakref.ref[Body]]:
        body = Body()
        kept = weakref.ref(body)
        try:
            raise HttpError(413, "too large", code="request_too_large")
        except HttpError as error:
            return http_error(error), kept

    gc.disable()  # whose next run may be long after
    try:
        said, body = refuse()
        assert body() is None
        assert (said.status, said.code) == (413, "request_too_large")
    finally:
        gc.enable()
