"""A text that follows a matcher matches its grammar, over any vocabulary."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from orchestrator.errors import InvalidRequest
from orchestrator.grammar import check, lark, tool_rules
from orchestrator.held_schema import held
from orchestrator.json_rule import fault_of
from orchestrator.json_schema import References, value_form
from orchestrator.types import ArgumentFormat, CallFormat, Constraint, Message, Segment, Transcript
from workers.text.grammar import GrammarCompiler, Matcher
from workers.text.prompt import PromptRenderer

QUESTION = (Message("user", "Hi"),)
ANSWER = Transcript(QUESTION, closed=True)
ASKED = Transcript((Message("tools", "[]"), *QUESTION), closed=True)
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


def fits_alone(
    prompts: PromptRenderer, matcher: Callable[[], Matcher], good: list[str], bad: list[str]
) -> None:
    """The good texts fit whole, and the bad ones do not."""
    for text in good:
        held = matcher()
        assert follows(held, prompts.tokenizer.encode(text)), text
        assert ends(held, prompts), text
    for text in bad:
        assert not follows(matcher(), prompts.tokenizer.encode(text)), text


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
    assert not ends(grammars.matcher(constraint, ANSWER), prompts)
    fits_alone(prompts, lambda: grammars.matcher(constraint, ANSWER), good, bad)


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
LISTED = CallFormat(
    '[CALLS] [{"name": "', '", "arguments": ', ', "id": "\0"}]', ', "id": "\0"}, {"name": "'
)
IN_TAGS = CallFormat(
    "<call>\n<function=",
    ">\n",
    "</function>\n</call>",
    "</function>\n</call>\n<call>\n<function=",
    each=ArgumentFormat("<parameter=", ">\n", "\n</parameter>\n"),
)
SEARCH: dict[str, Any] = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "kind": {"enum": ["near", "<far>"]},
        "most": {"$ref": "#/$defs/size"},
        "by": {"type": "array", "items": {"type": "integer"}},
    },
    "required": ["text"],
    "additionalProperties": False,
    "$defs": {"size": {"type": "integer"}},
}


def tagged(**arguments: str) -> str:
    each = "".join(f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in arguments.items())
    return f"<call>\n<function=search>\n{each}</function>\n</call>"


ONE = '<call>\n{"name": "add", "arguments": {"a": 1}}\n</call>'
TWO = ONE + '\n<call>\n{"name": "other", "arguments": {"x": [1]}}\n</call>'


def rules(**settings: Any) -> Constraint:
    return tool_rules(TOOLS, **{"required": False, "parallel": True, "answer": None, **settings})


def searching(
    parameters: Any = SEARCH, *, strict: bool = True, required: bool = True, place: str = "p"
) -> Constraint:
    tool = {"name": "search", "parameters": parameters, "strict": strict, "place": place}
    return tool_rules([tool], required=required, parallel=True, answer=None)


@pytest.fixture
def calling(
    prompts: PromptRenderer, monkeypatch: pytest.MonkeyPatch
) -> Callable[[CallFormat, Constraint], Matcher]:
    """What a model that writes calls in some form may answer."""

    def matcher(form: CallFormat, constraint: Constraint) -> Matcher:
        monkeypatch.setitem(prompts.__dict__, "calls", form)
        tokenizer = prompts.tokenizer
        grammars = GrammarCompiler(prompts, tokenizer.controls, len(tokenizer.pieces))
        return grammars.matcher(constraint, ASKED)

    return matcher


def other(inside: str = "") -> str:
    return f"<call>\n<function=other>\n{inside}</function>\n</call>"


@pytest.mark.parametrize(
    ("form", "constraint", "good", "bad"),
    [
        (TAGGED, rules(), [ONE, TWO, f"Well. {ONE}", "No {call} <cal"], ["<call>x", f"{ONE}x"]),
        (TAGGED, rules(required=True), [ONE, TWO], ["Well", f"{ONE}\n\n"]),
        (TAGGED, rules(required=True, parallel=False), [ONE], [TWO]),
        (TAGGED, rules(answer='{"type": "integer"}'), [ONE, "12"], ["Well", "<call>\n12"]),
        (BARE, rules(), ['{"name": "add", "parameters": {"a": 1}}', "Well {"],
         ['{"a', '{"name": "sub']),
        (BARE, rules(required=True), ['{"name": "other", "parameters": {}}'], ["Well"]),
        (LISTED, rules(),
         ['So. [CALLS] [{"name": "add", "arguments": {"a": 1}, "id": "a2C4e6g8i"}]',
          '[CALLS] [{"name": "add", "arguments": {"a": 1}, "id": "123456789"}, '
          '{"name": "other", "arguments": {}, "id": "987654321"}]'],
         ['[CALLS] [{"name": "add", "arguments": {"a": 1}, "id": "a2C4e6g8i0"}]']),
        (IN_TAGS, searching(),
         [tagged(text='a </p> "b"\nc'), tagged(text="a", kind="<far>", by="[1, 2]"),
          tagged(text="a") + "\n" + tagged(text="b")],
         [tagged(), tagged(text="a", other="b"), tagged(text="a", kind="other"),
          tagged(text="a", by="[x]"), "Well."]),
        (IN_TAGS, searching(required=False),
         [tagged(text="a"), "Well. " + tagged(text="a"), "<call", "Well."],
         [tagged(text="a") + "x", "<call>x"]),
        (IN_TAGS, rules(required=True, parallel=False),
         [other(), other("<parameter=x>\n1\n</parameter>\n")], [tagged(text="a")]),
    ],
)  # fmt: skip
def test_calls_are_held_to_their_form(
    prompts: PromptRenderer,
    calling: Any,
    form: CallFormat,
    constraint: Constraint,
    good: list[str],
    bad: list[str],
) -> None:
    fits_alone(prompts, lambda: calling(form, constraint), good, bad)


def test_control_tokens_of_a_call_are_tokens(prompts: PromptRenderer, calling: Any) -> None:
    tokenizer = prompts.tokenizer
    for text in ('<think>add<|im_start|>{"a": 1}', "Well.<think>other<|im_start|>{}"):
        assert follows(calling(MARKED, rules()), tokenizer.encode_markup(text))
        assert not follows(calling(MARKED, rules(required=True)), tokenizer.encode(text))
    assert prompts.ends(tokenizer.controls, ASKED) == tokenizer.controls - set(
        tokenizer.encode_markup("<think><|im_start|>")
    )


@pytest.mark.parametrize(
    ("name", "schema"),
    [("a", {"enum": ["<|im_end|>"]}), ("a", {"const": "x<|im_end|>"}), ("<|im_end|>", {})],
)
def test_a_schema_cannot_ask_for_a_control_token(
    prompts: PromptRenderer, calling: Any, name: str, schema: dict[str, Any]
) -> None:
    value = schema.get("enum", [schema.get("const", "x")])[0]
    given, tokenizer = tagged(**{name: value}), prompts.tokenizer
    parameters = {"type": "object", "properties": {name: schema}, "required": [name]}
    held_to = searching(parameters, strict=False)
    assert tokenizer.encode(given) != tokenizer.encode_markup(given)
    assert follows(calling(IN_TAGS, held_to), tokenizer.encode(given))
    assert not follows(calling(IN_TAGS, held_to), tokenizer.encode_markup(given))


NODE: dict[str, Any] = {
    "type": "object",
    "properties": {"children": {"type": "array", "items": {"$ref": "#"}}},
    "required": ["children"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("parameters", "good", "bad"),
    [
        ({"properties": {"a/b": {"type": "integer"}, "b": {"$ref": "#/properties/a~1b"}}},
         [{"b": "7"}], [{"b": "x"}]),
        ({"properties": {"b": {"type": "array", "items": {"$ref": "#/properties/size"}},
                         "size": {"type": "integer"}}},
         [{"b": "[1, 2]"}], [{"b": "[true]"}]),
        ({"$id": "https://x/y", "$defs": {"a": {"$ref": "#/definitions/b"}},
          "definitions": {"b": {"type": "boolean"}}, "properties": {"b": {"$ref": "#/$defs/a"}}},
         [{"b": "true"}], [{"b": "1"}]),
        (NODE, [{"children": '[{"children": []}]'}], [{"children": "[1]"}]),
        ({"properties": {"b": {"enum": []}}}, [{"b": "x"}], []),
        ({"properties": {"b": {"type": "integer", "enum": []}}}, [{"b": "x"}], []),
        ({"properties": {"b": {"$ref": "#/properties/b"}}}, [{"b": "x"}], []),
        ({"$defs": {"kind": {"enum": ["near", "far"]}},
          "properties": {"b": {"anyOf": [{"$ref": "#/$defs/kind"}, {"type": "null"}]}}},
         [{"b": "near"}, {"b": "null"}], [{"b": "other"}, {"b": '"near"'}]),
        ({"properties": {"b": {"anyOf": [{"type": "string"}, {"type": "null"}]}}},
         [{"b": "12"}, {"b": "null"}], []),
        ({"properties": {"b": {"oneOf": [{"type": "integer"}, {"type": "null"}]}}},
         [{"b": "12"}, {"b": "null"}], [{"b": "x"}]),
        ({"properties": {"b": {"const": [1, {"a": "é"}]}}},
         [{"b": '[1, {"a": "é"}]'}], [{"b": "1"}]),
    ],
)  # fmt: skip
def test_a_value_in_tags_is_held_to_the_schema_of_its_property(
    prompts: PromptRenderer, calling: Any, parameters: dict[str, Any], good: Any, bad: Any
) -> None:
    held_to = searching(
        {"type": "object", "additionalProperties": False, **parameters}, strict=False
    )
    for arguments in (*good, *bad):
        ids = prompts.tokenizer.encode(tagged(**arguments))
        assert follows(calling(IN_TAGS, held_to), ids) == (arguments in good), arguments


def test_what_values_are_held_to_takes_no_more_room_than_a_grammar_may() -> None:
    parameters = {
        "type": "object",
        "$defs": {"large": {"enum": [f"{i:06}" for i in range(2000)]}},
        "properties": {f"a{i}": {"$ref": "#/$defs/large"} for i in range(400)},
    }
    assert len(lark(searching(parameters, strict=False), IN_TAGS)) < 400_000


def test_a_value_carries_those_definitions_alone_that_it_names() -> None:
    sizes = {f"d{i}": {"type": "integer", "maximum": i} for i in range(300)}
    sizes["d0"] = {"type": "array", "items": {"$ref": "#/$defs/d1"}}
    named = {f"p{i}": {"$ref": f"#/$defs/d{i}"} for i in range(300)}
    parameters = {"type": "object", "$defs": sizes, "properties": named}
    grammar = lark(searching(parameters), IN_TAGS)
    assert len(grammar) < 100_000
    assert grammar.count("%json") == 300


def test_a_schema_of_very_many_branches_says_nothing() -> None:
    few, many = ({"anyOf": [{"type": "integer"}] * count} for count in (100, 10_000))
    assert value_form(few, References(few)).types == {"integer"}
    assert value_form(many, References(many)).types == set()


def test_a_schema_that_nothing_can_be_held_to_stands_for_any_object_unless_strict() -> None:
    odd, place = {"type": "object", "not": {}}, "tools[7].parameters"
    loose = searching(odd, strict=False, place=place)
    assert json.loads(loose.source)["tools"] == [["search", {"type": "object"}]]
    with pytest.raises(InvalidRequest) as caught:
        searching(odd, place=place)
    assert caught.value.param == place


def test_schemas_that_are_too_large_together_stand_for_any_object_unless_strict() -> None:
    about = {f"a{k}": {"enum": [f"{i:09}" for i in range(90)]} for k in range(30)}

    def tools(*strict: int) -> Any:
        return [
            {"name": f"tool{i}", "strict": i in strict, "place": f"tools[{i}]",
             "parameters": {"type": "object",
                            "properties": {f"{name}_{i}": one for name, one in about.items()}}}
            for i in range(9)
        ]  # fmt: skip

    held_to = tool_rules(tools(3), required=True, parallel=True, answer=None)
    named = json.loads(held_to.source)["tools"]
    assert [name for name, schema in named if schema != {"type": "object"}] == ["tool3"]
    with pytest.raises(InvalidRequest, match=r"tools: .*strict ones.*too large") as caught:
        tool_rules(tools(*range(9)), required=True, parallel=True, answer=None)
    assert caught.value.param == "tools"


def test_words_about_a_schema_are_no_part_of_its_grammar() -> None:
    said = {"title": "t", "description": "d", "default": {"a": 1}, "examples": [1]}

    def schema(**words: Any) -> dict[str, Any]:
        fields = {"description": {"type": "string", **words}, "a": {"enum": ["title"], **words}}
        return {"type": "object", "properties": fields, **words}

    assert json.loads(searching(schema(**said)).source)["tools"] == [["search", schema()]]


def test_whole_numbers_without_bounds_get_some_wherever_they_stand() -> None:
    most = 2**53 - 1
    schema = {
        "properties": {
            "type": {"type": ["integer", "null"]},
            "b": {"type": "integer", "minimum": 3},
            "c": {"type": "integer", "exclusiveMaximum": 7.5},
            "d": {"type": "integer", "minimum": -(2**63), "maximum": 2**64 - 1},
        },
        "prefixItems": [{"anyOf": [{"type": "integer"}]}],
        "default": {"type": "integer"},
    }
    found = held(json.dumps(schema)).schema
    assert found["properties"]["type"]["maximum"] == most
    assert found["properties"]["b"] == {"type": "integer", "minimum": 3, "maximum": most}
    assert found["properties"]["c"]["minimum"] == -most
    assert found["properties"]["d"] == {"type": "integer", "minimum": -most, "maximum": most}
    assert found["prefixItems"][0]["anyOf"][0]["minimum"] == -most
    assert "default" not in found


def test_a_reference_among_an_arguments_values_is_a_value() -> None:
    listed = {"type": "object", "properties": {"y": {"enum": [{"$ref": "#/$defs/none"}]}}}
    schema = {"type": "object", "properties": {"x": listed}, "required": ["x"]}
    calls = CallFormat("<call>", "", "</call>", each=ArgumentFormat("<", ">", "</>"))
    assert not fault_of(lark(searching(schema), calls))
