"""The requests of the golden transcripts, each with the workers that answer it.

Workers are scripted, so a transcript is the same on every machine: what is held is all that lies
between HTTP and the workers' port (schemas, policies, the step loop, rendering, errors).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from orchestrator.errors import WorkerUnavailable
from orchestrator.http.service import Service
from orchestrator.types import StopCriteria, Transcript
from tests.orchestrator.http.tools.test_offered import worker as tool_worker
from tests.orchestrator.serving import scripted, service
from tests.workers.scripted import Say, Scripted

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
MESSAGES = "/v1/messages"
QUESTION = "Twice 2+2?"
KEPT = (
    "small-only", "large-only", "coin", "specreason", "learned-gate", "cascade",
    "speculative-thinking", "bild", "advisor",
)  # fmt: skip
ADD = {
    "name": "add",
    "description": "Adds two numbers.",
    "parameters": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
    },
}
TOOL = {"type": "function", "function": ADD}
FORM = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}


@dataclass(frozen=True, slots=True)
class Case:
    """One request: its name, path and body, and a service that answers it."""

    name: str
    path: str
    body: dict[str, Any]
    service: Callable[[], Service] = service
    headers: dict[str, str] = field(default_factory=dict)


def _form(transcript: Transcript, criteria: StopCriteria) -> str:
    return '{"sum": 4}' if transcript.closed else "Two and two."


def _tools() -> Service:
    return service(tool_worker(), tool_worker())


def _forms() -> Service:
    return service(Scripted(_form), Scripted(_form))


def _doubted() -> Service:
    """The large model rejects the second draft and is less likely to write any of them."""
    small = Scripted(
        [
            "Two and two is 4.\n\n",
            Say("Wait, twice is 9.", "think_end", -2.0),
            "It is 9.",
            "It is 8.",
        ]
    )
    large = Scripted(["Twice that is 8.\n\n", Say("So 8.", "think_end"), "It is 8."], scores=(9, 2))
    return service(small, large)


def _plain() -> Service:
    return service(scripted(thinks=False), scripted(thinks=False))


def _advised() -> Service:
    """The small model doubts its first answer; the pair has no thought."""
    small = Scripted([Say("It is 9.", "eos", -2.0), "It is 8."], thinks=False)
    return service(small, Scripted([Say("Add, then double.", "eos")], scores=[9], thinks=False))


def _dead() -> Service:
    return service(
        scripted(down=WorkerUnavailable("gone")), scripted(down=WorkerUnavailable("gone"))
    )


def _dies() -> Service:
    return service(scripted(deaths={0: 3, 1: 0, 2: 0}), scripted(down=WorkerUnavailable("gone")))


def _short() -> Service:
    return service(scripted(context=1), scripted(context=1))


def _lenient() -> Service:
    return service(strict=False)


def chat(**more: Any) -> dict[str, Any]:
    return {"model": "specreason", "messages": [{"role": "user", "content": QUESTION}], **more}


def _chat_cases() -> list[Case]:
    called = {
        "role": "assistant", "content": None,
        "tool_calls": [{"id": "call_1", "type": "function",
                        "function": {"name": "add", "arguments": '{"a": 2, "b": 3}'}}],
    }  # fmt: skip
    after = [{"role": "user", "content": QUESTION}, called,
             {"role": "tool", "tool_call_id": "call_1", "content": "5"}]  # fmt: skip
    parts = [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": [{"type": "text", "text": QUESTION}]},
        {"role": "assistant", "content": "8."},
        {"role": "user", "content": "Sure?"},
    ]
    schema = {"type": "json_schema", "json_schema": {"name": "sum", "schema": FORM, "strict": True}}
    whole: list[tuple[str, dict[str, Any], Callable[[], Service]]] = [
        ("plain", {}, service),
        ("history", {"messages": parts}, service),
        ("no-thought", {}, _plain),
        ("doubted", {}, _doubted),
        ("advised", {"model": "advisor"}, _advised),
        ("two", {"n": 2}, service),
        ("stop", {"stop": ["8"]}, service),
        ("capped", {"max_tokens": 6}, service),
        ("budget", {"policy": {"budget": 3}}, service),
        ("logprobs", {"model": "large-only", "logprobs": True}, service),
        ("effort", {"reasoning_effort": "low"}, service),
        ("form", {"response_format": schema}, _forms),
        ("tools", {"tools": [TOOL]}, _tools),
        ("after-a-call", {"messages": after, "tools": [TOOL]}, _tools),
    ]
    cases = []
    for name, more, made in whole:
        cases.append(Case(f"chat-{name}", CHAT, chat(**more), made))
        usage = {"stream": True, "stream_options": {"include_usage": True}}
        cases.append(Case(f"chat-{name}-stream", CHAT, chat(**more, **usage), made))
    return cases


def _error_cases() -> list[Case]:
    bad: list[tuple[str, dict[str, Any], Callable[[], Service]]] = [
        ("unknown-parameter", {"temprature": 1}, service),
        ("unknown-model", {"model": "gpt"}, service),
        ("bad-value", {"temperature": 5}, service),
        ("bad-type", {"messages": "hello"}, service),
        ("no-messages", {"messages": []}, service),
        ("policy-parameter", {"policy": {"treshold": 5}}, service),
        ("tools-unsupported", {"tools": [TOOL]}, service),
        ("bad-schema", {"response_format": {"type": "json_schema"}}, service),
        ("too-long", {}, _short),
        ("workers-down", {}, _dead),
        ("dies", {"model": "small-only"}, _dies),
        ("dies-stream", {"model": "small-only", "stream": True}, _dies),
        ("lenient", {"temprature": 1}, _lenient),
    ]
    return [Case(f"error-{name}", CHAT, chat(**more), made) for name, more, made in bad]


def _other_cases() -> list[Case]:
    text: dict[str, Any] = {"model": "large-only", "prompt": "Twice 2+2 is"}
    asked: dict[str, Any] = {"model": "specreason", "input": QUESTION}
    tools = [{"type": "function", **ADD}]
    form = {"format": {"type": "json_schema", "name": "sum", "schema": FORM, "strict": True}}
    rows: list[tuple[str, str, dict[str, Any], Callable[[], Service]]] = [
        ("completions-plain", COMPLETIONS, text, service),
        ("completions-capped", COMPLETIONS, {**text, "max_tokens": 2}, service),
        (
            "completions-form",
            COMPLETIONS,
            {**text, "structured_outputs": {"regex": "[a-z .]+"}},
            service,
        ),
        ("responses-plain", RESPONSES, asked, service),
        ("responses-instructions", RESPONSES, {**asked, "instructions": "Be short."}, service),
        ("responses-capped", RESPONSES, {**asked, "max_output_tokens": 6}, service),
        ("responses-tools", RESPONSES, {**asked, "tools": tools}, _tools),
        ("responses-form", RESPONSES, {**asked, "text": form}, _forms),
    ]
    said: dict[str, Any] = chat(max_tokens=100)
    called = {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {"a": 2, "b": 3}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "5"}
    after = [*said["messages"], {"role": "assistant", "content": [called]},
             {"role": "user", "content": [result]}]  # fmt: skip
    taken = {"name": "add", "input_schema": ADD["parameters"]}
    rows += [
        ("messages-plain", MESSAGES, said, service),
        ("messages-system", MESSAGES, {**said, "system": "Be short."}, service),
        ("messages-capped", MESSAGES, {**said, "max_tokens": 6}, service),
        ("messages-stop", MESSAGES, {**said, "stop_sequences": ["8"]}, service),
        ("messages-no-thought", MESSAGES, said, _plain),
        ("messages-tools", MESSAGES, {**said, "tools": [taken]}, _tools),
        ("messages-after-a-call", MESSAGES, {**said, "tools": [taken], "messages": after}, _tools),
        ("messages-dies", MESSAGES, {**said, "model": "small-only"}, _dies),
    ]
    cases = []
    for name, path, body, made in rows:
        cases += [Case(name, path, body, made),
                  Case(f"{name}-stream", path, {**body, "stream": True}, made)]  # fmt: skip
    refused: list[tuple[str, str, dict[str, Any]]] = [
        ("completions-unknown-parameter", COMPLETIONS, {**text, "temprature": 1}),
        ("responses-unknown-parameter", RESPONSES, {**asked, "temprature": 1}),
        ("messages-unknown-parameter", MESSAGES, {**said, "temprature": 1}),
        ("messages-unknown-model", MESSAGES, {**said, "model": "gpt"}),
        ("responses-stored", RESPONSES, {**asked, "previous_response_id": "resp_1"}),
    ]
    return cases + [Case(f"error-{name}", path, body) for name, path, body in refused]


def _policy_cases() -> list[Case]:
    return [
        Case(f"policy-{name}-{kind}", CHAT, chat(model=name, stream=True, seed=1), made)
        for name in KEPT
        for kind, made in (("agreed", service), ("doubted", _doubted))
    ]


CASES = _chat_cases() + _error_cases() + _other_cases() + _policy_cases()
