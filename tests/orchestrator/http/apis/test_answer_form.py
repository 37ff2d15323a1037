"""What requests may say of their answer's form, and what of it reaches the workers."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.errors import InvalidRequest
from orchestrator.types import Constraint
from tests.orchestrator.serving import asked, client, service, serving
from tests.workers.scripted import Scripted

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
NAMED: Any = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA, "strict": True}}
HELD = Constraint("json_schema", json.dumps(SCHEMA))
OBJECT = Constraint("json_schema", '{"type": "object"}')
NOTHING = dict.fromkeys(
    ("json", "regex", "grammar", "json_object", "whitespace_pattern", "structural_tag")
)
FLAGS = {
    "disable_fallback": False,
    "disable_any_whitespace": True,
    "disable_additional_properties": False,
}


def vllm(**form: Any) -> dict[str, Any]:
    return {"structured_outputs": form}


def openai(kind: str, **more: Any) -> dict[str, Any]:
    return {"response_format": {"type": kind, **more}}


GOOD: list[tuple[dict[str, Any], Constraint | None]] = [
    ({}, None),
    (openai("text"), None),
    (openai("json_object"), OBJECT),
    ({"response_format": NAMED}, HELD),
    (
        openai("json_schema", json_schema={"name": "a", "schema": {}}),
        Constraint("json_schema", "{}"),
    ),
    (vllm(json=json.dumps(SCHEMA)), HELD),
    (vllm(json=SCHEMA), HELD),
    (vllm(json_object=True), OBJECT),
    (vllm(regex="[0-9]+/[0-9]+"), Constraint("regex", "[0-9]+/[0-9]+")),
    (vllm(choice=["yes", "no.", "a/b\n "]), Constraint("regex", "yes|no\\.|a/b\n ")),
    (vllm(grammar='start: "a"+'), Constraint("grammar", 'start: "a"+')),
    (vllm(choice=["a"], **NOTHING, **FLAGS), Constraint("regex", "a")),
]
BAD: list[tuple[dict[str, Any], str]] = [
    (openai("xml"), "response_format.type"),
    (openai("json_schema"), "response_format"),
    (openai("text", json_schema=NAMED["json_schema"]), "response_format"),
    (openai("json_schema", json_schema={"schema": {"type": "strin"}}), "response_format"),
    ({"response_format": NAMED, **vllm(regex="a")}, "structured_outputs.regex"),
    (vllm(regex="(?=a)"), "structured_outputs.regex"),
    (vllm(regex="("), "structured_outputs.regex"),
    (vllm(json="{"), "structured_outputs.json"),
    (vllm(json="[" * 5000), "structured_outputs.json"),
    (vllm(json='{"items": ' * 600 + "{}" + "}" * 600), "structured_outputs.json"),
    (vllm(json='{"enum": ["\\ud800"]}'), "structured_outputs.json"),
    (vllm(json='{"enum": [NaN]}'), "structured_outputs.json"),
    (vllm(choice=[]), "structured_outputs.choice"),
    (vllm(choice=[""]), "structured_outputs.choice[0]"),
    (vllm(grammar="start: nothing"), "structured_outputs.grammar"),
    (vllm(grammar="x" * 200_000), "structured_outputs.grammar"),
    (
        vllm(json=SCHEMA, disable_additional_properties=True),
        "structured_outputs.disable_additional_properties",
    ),
    (vllm(jso=SCHEMA), "structured_outputs.jso"),
]


@pytest.mark.parametrize(("body", "constraint"), GOOD, ids=range(len(GOOD)))
def test_what_an_answer_must_match(body: dict[str, Any], constraint: Constraint | None) -> None:
    assert asked(**body).limits.constraint == constraint
    completion = asked("completions", model="large-only", prompt="Hi", **body)
    assert completion.limits.constraint == (constraint and replace(constraint, exact=True))


@pytest.mark.parametrize(("body", "place"), BAD, ids=range(len(BAD)))
def test_what_no_answer_can_match_is_refused_by_name(body: dict[str, Any], place: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        asked(**body)
    assert caught.value.param == place


def test_the_thought_is_free_and_every_writer_of_the_answer_is_held_to_it() -> None:
    small, large = (Scripted(story=("Well.\n\nYes.", '{"a": 1}')) for _ in range(2))
    with serving(service(small, large)) as url, client(url) as official:
        answer = official.chat.completions.create(
            model="specreason",
            messages=[{"role": "user", "content": "Hi"}],
            response_format=NAMED,
        )
    assert answer.choices[0].message.content == '{"a": 1}'
    for call in (*small.calls, *large.calls):
        held = call.call.constraint is not None
        assert held == call.call.transcript.closed
