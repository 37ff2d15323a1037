"""A text that follows a matcher matches its grammar, over any vocabulary."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from orchestrator.errors import InvalidRequest
from orchestrator.grammar import check, lark, tool_rules
from orchestrator.types import CallFormat, Constraint, Message, Segment, Transcript
from workers.text.grammar import GrammarCompiler, Matcher
from workers.text.prompt import PromptRenderer

QUESTION = (Message("user", "Hi"),)
ANSWER = Transcript(QUESTION, closed=True)
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "count": {"type": "integer"},
        "kind": {"enum": ["a", "b", None]},
        "more": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
    },
    "required": ["name", "count", "kind", "more"],
    "additionalProperties": False,
}
JSON = Constraint("json_schema", json.dumps(SCHEMA))


@pytest.fixture
def grammars(prompts: PromptRenderer) -> GrammarCompiler:
    tokenizer = prompts.tokenizer
    return GrammarCompiler(prompts, tokenizer.controls, len(tokenizer.pieces) + 5)


def follows(matcher: Matcher, ids: Any) -> bool:
    return all(matcher.allowed()[i] and matcher.accept(i) for i in ids)


def ends(matcher: Matcher, prompts: PromptRenderer) -> bool:
    return bool(matcher.allowed()[prompts.tokenizer.eos_id])


@pytest.mark.parametrize(
    ("constraint", "good", "bad"),
    [
        (
            JSON,
            ['\n\n{"name": "é", "count": -3, "kind": null, "more": [true, false]}'],
            ['{"name": "a", "count": 1.5', '{"name":"a"', '{"name": "too long a name"', "Sure: {"],
        ),
        (Constraint("regex", "[0-9]+/[0-9]+"), ["1/2", "\n12/34"], ["a", "1\n"]),
        (Constraint("regex", r"yes|no\."), ["yes", "no."], ["nox", "ye "]),
        (Constraint("regex", "https?:\\/\\/x/y"), ["http://x/y"], ["http:\\/"]),
        (Constraint("regex", "a\nb|c\\\nd"), ["a\nb", "c\nd"], ["a\\", "c\\"]),
        (Constraint("grammar", 'start: "a"+ "b"'), ["aab"], ["b", "\na"]),
        (
            Constraint("json_schema", '{"type": "integer"}'),
            ["0", "-9007199254740991"],
            ["90071992547409921", "1."],
        ),
    ],
)
def test_texts_that_fit_and_texts_that_do_not(
    grammars: GrammarCompiler,
    prompts: PromptRenderer,
    constraint: Constraint,
    good: list[str],
    bad: list[str],
) -> None:
    for text in good:
        matcher = grammars.matcher(constraint, ANSWER)
        assert not ends(matcher, prompts)
        assert follows(matcher, prompts.tokenizer.encode(text)), text
        assert ends(matcher, prompts), text
    for text in bad:
        assert not follows(grammars.matcher(constraint, ANSWER), prompts.tokenizer.encode(text))


@pytest.mark.parametrize("seed", range(25))
def test_whatever_is_drawn_is_valid(
    grammars: GrammarCompiler, prompts: PromptRenderer, seed: int
) -> None:
    rng, matcher, ids = random.Random(seed), grammars.matcher(JSON, ANSWER), list[int]()
    while not ends(matcher, prompts):
        ids.append(rng.choice(matcher.allowed().nonzero()[0].tolist()))
        assert ids[-1] not in prompts.tokenizer.controls
        assert matcher.accept(ids[-1])
    answer = json.loads(prompts.tokenizer.decode(ids))
    assert answer.keys() == SCHEMA["properties"].keys()  # type: ignore[attr-defined]
    assert isinstance(answer["count"], int)


def test_tokens_that_are_taken_back(grammars: GrammarCompiler, prompts: PromptRenderer) -> None:
    matcher = grammars.matcher(JSON, ANSWER)
    before = matcher.allowed().tolist()
    ids = prompts.tokenizer.encode('{"name": "x')
    assert follows(matcher, ids)
    matcher.rollback(len(ids))
    assert matcher.allowed().tolist() == before
    refused = prompts.tokenizer.encode("Sure")[0]
    assert not matcher.accept(refused)
    assert not matcher.accept(prompts.tokenizer.eos_id)
    assert matcher.allowed().tolist() == before


def test_it_goes_on_behind_what_is_written(
    grammars: GrammarCompiler, prompts: PromptRenderer
) -> None:
    begun = ANSWER.extend(Segment("small", '{"name": "x", ', (1, 2), (), "another"))
    matcher = grammars.matcher(JSON, begun)
    assert follows(matcher, prompts.tokenizer.encode('"count": 1, "kind": "a", "more": []}'))
    assert ends(matcher, prompts)
    with pytest.raises(InvalidRequest, match="does not fit"):
        grammars.matcher(JSON, ANSWER.extend(Segment("policy", "Answer: ")))


@pytest.mark.parametrize(
    "constraint",
    [
        Constraint("regex", "("),
        Constraint("json_schema", '{"type": "strin"}'),
        Constraint("grammar", "start: x"),
        Constraint("grammar", "x" * 200_000),
    ],
)
def test_what_is_no_grammar_is_refused(grammars: GrammarCompiler, constraint: Constraint) -> None:
    with pytest.raises(InvalidRequest):
        grammars.matcher(constraint, ANSWER)
    with pytest.raises(InvalidRequest) as caught:
        check(constraint, "place")
    assert caught.value.param == "place"


# Tools ------------------------------------------------------------------------------------

TAGGED = CallFormat(
    '<call>\n{"name": "', '", "arguments": ', "}\n</call>", '}\n</call>\n<call>\n{"name": "'
)
BARE = CallFormat('{"name": "', '", "parameters": ', "}")
MARKED = CallFormat("<think>", "<|im_start|>", "", "<think>")  # with control tokens of the tests'
TOOLS: list[dict[str, Any]] = [
    {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}},
     "required": ["a"], "additionalProperties": False}, "strict": False, "place": "p"},
    {"name": "other", "parameters": {"type": "object"}, "strict": False, "place": "q"},
]  # fmt: skip
ONE = '<call>\n{"name": "add", "arguments": {"a": 1}}\n</call>'
TWO = ONE + '\n<call>\n{"name": "other", "arguments": {"x": [1]}}\n</call>'


def rules(**settings: Any) -> Constraint:
    return tool_rules(TOOLS, **{"required": False, "parallel": True, "answer": None, **settings})


@pytest.mark.parametrize(
    ("form", "constraint", "good", "bad"),
    [
        (TAGGED, rules(), [ONE, TWO, f"Well. {ONE}", "No {call} <cal"], ["<call>x", f"{ONE}x"]),
        (TAGGED, rules(required=True), [ONE, TWO], ["Well", f"{ONE}\n\n"]),
        (TAGGED, rules(required=True, parallel=False), [ONE], [TWO]),
        (
            TAGGED,
            rules(answer='{"type": "integer"}'),
            [ONE, "12"],
            ["Well", "<call>\n12"],
        ),
        (
            BARE,
            rules(),
            ['{"name": "add", "parameters": {"a": 1}}', "Well {"],
            ['{"a', '{"name": "sub'],
        ),
        (BARE, rules(required=True), ['{"name": "other", "parameters": {}}'], ["Well"]),
    ],
)
def test_calls_are_held_to_their_form(
    prompts: PromptRenderer, form: CallFormat, constraint: Constraint, good: Any, bad: Any
) -> None:
    prompts.__dict__["calls"] = form
    tokenizer = prompts.tokenizer
    grammars = GrammarCompiler(prompts, tokenizer.controls, len(tokenizer.pieces))
    transcript = Transcript((Message("tools", "[]"), *QUESTION), closed=True)
    for text in good:
        matcher = grammars.matcher(constraint, transcript)
        assert follows(matcher, tokenizer.encode(text)), text
        assert ends(matcher, prompts), text
    for text in bad:
        assert not follows(grammars.matcher(constraint, transcript), tokenizer.encode(text)), text
    del prompts.__dict__["calls"]


def test_control_tokens_of_a_call_are_tokens(prompts: PromptRenderer) -> None:
    prompts.__dict__["calls"] = MARKED
    tokenizer = prompts.tokenizer
    grammars = GrammarCompiler(prompts, tokenizer.controls, len(tokenizer.pieces))
    transcript = Transcript((Message("tools", "[]"), *QUESTION), closed=True)
    for text in ('<think>add<|im_start|>{"a": 1}', "Well.<think>other<|im_start|>{}"):
        markup, plain = tokenizer.encode_markup(text), tokenizer.encode(text)
        assert follows(grammars.matcher(rules(), transcript), markup)
        matcher = grammars.matcher(rules(required=True), transcript)
        assert not follows(matcher, plain)
    assert prompts.ends(tokenizer.controls, transcript) == tokenizer.controls - set(
        tokenizer.encode_markup("<think><|im_start|>")
    )
    del prompts.__dict__["calls"]


def test_a_schema_that_nothing_can_be_held_to_stands_for_any_object_unless_strict() -> None:
    odd = {
        "name": "odd",
        "parameters": {"type": "object", "not": {}},
        "strict": False,
        "place": "tools[7].parameters",
    }
    loose = tool_rules([odd], required=True, parallel=True, answer=None)
    assert json.loads(loose.source)["tools"] == [["odd", {"type": "object"}]]
    with pytest.raises(InvalidRequest) as caught:
        tool_rules([{**odd, "strict": True}], required=True, parallel=True, answer=None)
    assert caught.value.param == "tools[7].parameters"


def test_whole_numbers_without_bounds_get_some_wherever_they_stand() -> None:
    schema = {
        "properties": {
            "type": {"type": ["integer", "null"]},
            "b": {"type": "integer", "minimum": 3},
            "c": {"type": "integer", "exclusiveMaximum": 7.5},
            "d": {"type": "integer", "minimum": 2**60},
            "e": {"type": "integer", "maximum": "x"},
        },
        "items": [{"anyOf": [{"type": "integer"}]}],
        "const": {"type": "integer"},
    }
    grammar = lark(Constraint("json_schema", json.dumps(schema)))
    text = grammar[grammar.index("{") : grammar.rindex("}") + 1]
    found = json.loads(text.split("\nWHITE")[0])
    assert found["properties"]["type"]["maximum"] == 2**53 - 1
    assert found["properties"]["b"] == {"type": "integer", "minimum": 3, "maximum": 2**53 - 1}
    assert found["properties"]["c"]["minimum"] == -(2**53) + 1
    for name in "de":
        assert found["properties"][name] == schema["properties"][name]
    assert found["items"][0]["anyOf"][0]["minimum"] == -(2**53) + 1
    assert found["const"] == {"type": "integer"}
