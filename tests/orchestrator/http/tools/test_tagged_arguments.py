"""Arguments in tags are read as they were meant, however the answer is cut into pieces."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer

from orchestrator.call_markup import ends_of_values
from orchestrator.grammar import LIMITS, lark, tool_rules
from orchestrator.http.tools import tagged_arguments
from orchestrator.http.tools.call_reader import CallPiece, CallReader
from orchestrator.types import ArgumentFormat, CallFormat

LINES = CallFormat(
    "<tool_call>\n<function=",
    ">\n",
    "</function>\n</tool_call>",
    "</function>\n</tool_call>\n<tool_call>\n<function=",
    each=ArgumentFormat("<parameter=", ">\n", "\n</parameter>\n", python=True),
)
KEYS = CallFormat(
    "<tool_call>",
    "",
    "</tool_call>",
    "</tool_call><tool_call>",
    each=ArgumentFormat("<arg_key>", "</arg_key><arg_value>", "</arg_value>"),
)
MARKED = CallFormat(
    '<calls>\n<invoke name="',
    '">\n',
    "</invoke>\n</calls>",
    '</invoke>\n<invoke name="',
    each=ArgumentFormat(
        '<parameter name="', '" string="true">', "</parameter>\n", '" string="false">'
    ),
)
QUOTED = CallFormat(
    '<function name="',
    '">',
    "</function>",
    '</function>\n<function name="',
    each=ArgumentFormat(
        '<param name="', '">', "</param>", python=True, quotes=("<![CDATA[", "]]>")
    ),
)
FORMATS = {"lines": LINES, "keys": KEYS, "marked": MARKED, "quoted": QUOTED}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        "content": {"type": "string"},
        "n": {"type": "integer"},
        "flag": {"type": "boolean"},
        "none": {"type": ["object", "null"]},
        "list": {"type": "array"},
        "any": {},
    },
    "required": [],
}
NAMES = ("look", "look_up")


def written(calls: CallFormat, *made: tuple[str, dict[str, Any]], python: bool = False) -> str:
    """Calls as a template writes them."""
    form = calls.each
    assert form is not None
    texts = []
    for name, arguments in made:
        text = name + calls.middle
        for key, value in arguments.items():
            said = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            if python and not isinstance(value, str):
                said = str(value)
            if form.quotes and isinstance(value, str) and set("<&\n") & set(value):
                said = form.quotes[0] + value + form.quotes[1]
            middle = form.middle if isinstance(value, str) else form.other or form.middle
            text += form.before + key + middle + said + form.after
        texts.append(text)
    return calls.before + (calls.between or "").join(texts) + calls.after


def read(calls: CallFormat, *pieces: str, schema: Any = SCHEMA) -> tuple[str, list[Any]]:
    reader = CallReader(calls, NAMES, "call_", schemas=dict.fromkeys(NAMES, schema))
    text, found = "", dict[int, list[Any]]()
    for piece in [one for part in pieces for one in reader.feed(part)] + reader.end():
        if isinstance(piece, CallPiece):
            call = found.setdefault(piece.index, [piece.name, ""])
            call[1] += piece.arguments
        else:
            text += piece
    return text.strip(), [(name, json.loads(arguments)) for name, arguments in found.values()]


def both_ways(calls: CallFormat, answer: str, schema: Any = SCHEMA) -> tuple[str, list[Any]]:
    """What is read of it whole, and letter by letter."""
    whole = read(calls, answer, schema=schema)
    assert read(calls, *answer, schema=schema) == whole
    return whole


def test_a_mark_says_whether_a_value_is_a_text() -> None:
    answer = (
        '<calls>\n<invoke name="look">\n<parameter name="n" string="false">3</parameter>\n'
        '<parameter name="any" string="true">3</parameter>\n'
        '<parameter name="path" string="false">4</parameter>\n'  # the schema knows better
        "</invoke>\n</calls>"
    )
    assert both_ways(MARKED, answer) == ("", [("look", {"n": 3, "any": "3", "path": "4"})])


def test_many_properties_leave_no_long_patterns() -> None:
    schema = {"type": "object", "properties": {f"name_{i}": {} for i in range(1000)}}
    said = "".join(f"<arg_key>name_{i}</arg_key><arg_value>{i}</arg_value>" for i in range(3))
    _, calls = read(KEYS, f"<tool_call>look{said}</tool_call>", schema=schema)
    assert calls == [("look", {f"name_{i}": i for i in range(3)})]
    assert ends_of_values.cache_info().maxsize == 64


@pytest.mark.parametrize(
    ("name", "said", "value"),
    [
        ("flag", "True", True),
        ("none", "None", None),
        ("list", "['x', None, {'y': False}]", ["x", None, {"y": False}]),
        ("any", "None", None),
        ("any", "['x']", ["x"]),
        ("any", "(1, 2)", "(1, 2)"),
        ("any", "open('x')", "open('x')"),
        ("path", "True", "True"),
        ("path", '["a"]', '["a"]'),
        ("n", "ten", "ten"),
        ("list", "[" * 5000, "[" * 5000),
        ("n", "9" * 5000, "9" * 5000),
    ],
)
def test_what_python_writes_is_read_by_the_schema(name: str, said: str, value: Any) -> None:
    answer = written(LINES, ("look", {name: said}))
    assert both_ways(LINES, answer) == ("", [("look", {name: value})])


def test_pythons_words_are_texts_where_the_template_writes_json() -> None:
    answer = written(KEYS, ("look", {"any": "None", "list": "['x']"}))
    assert both_ways(KEYS, answer) == ("", [("look", {"any": "None", "list": ["x"]})])


@pytest.mark.parametrize(
    "value",
    [
        "A parameter ends with </parameter> here.",
        "</parameter>",
        "x</parameter></function>y",
        "A call ends with </function>\n</tool_call>, it says.",
        "Write <parameter=path> first.",
        "<parameter=path>\n",  # it is given already
        "  two blanks before, one line behind\n",
        "",
    ],
)
def test_a_value_may_hold_tags(value: str) -> None:
    arguments = {"path": "a", "content": value, "n": 1}
    answer = written(LINES, ("look", arguments), ("look_up", {"content": value}))
    expected = [("look", arguments), ("look_up", {"content": value})]
    assert both_ways(LINES, f"{answer}\nDone.") == ("Done.", expected)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (
            "<parameter=path>\na\n<parameter=content>\nhello\n</parameter>\n",
            {"path": "a", "content": "hello"},
        ),
        ("<parameter=path>\na\n", {"path": "a"}),
        (
            "<parameter=path>a</parameter><parameter=content>b</parameter>",
            {"path": "a", "content": "b"},
        ),
        (
            '<parameter=list>\n["</parameter></function>"]\n</parameter>\n',
            {"list": ["</parameter></function>"]},
        ),
    ],
)
@pytest.mark.parametrize(
    "behind", ["", "\n<tool_call>\n<function=look_up>\n</function>\n</tool_call>"]
)
def test_an_end_tag_may_be_missing(answer: str, expected: Any, behind: str) -> None:
    whole = f"<tool_call>\n<function=look>\n{answer}</function>\n</tool_call>{behind}"
    calls = [("look", expected)] + ([("look_up", {})] if behind else [])
    assert both_ways(LINES, whole) == ("", calls)


@pytest.mark.parametrize(
    ("calls", "ends"),
    [
        (LINES, ["</parameter>\n</tool_call>", "</parameter>\n", "</tool_call>"]),
        (KEYS, ["</arg_value>\n"]),
        (MARKED, ["</parameter>\n</calls>", "</parameter>\n"]),
        (QUOTED, ["</param>\n"]),
    ],
    ids=FORMATS,
)
@pytest.mark.parametrize("behind", ["", "Now I wait.", "\nI call:\n"])
def test_the_first_tags_of_a_calls_end_may_be_missing(
    calls: CallFormat, ends: list[str], behind: str
) -> None:
    form = calls.each
    assert form is not None
    for end in ends:
        made = [("look", {"path": "hello"})]
        if behind and form.after.strip() not in end:
            continue  # nothing says that the call has ended
        whole = written(calls, *made)
        answer = whole[: whole.index("hello") + len("hello")]
        answer += ("\n" if form.after.startswith("\n") else "") + end + behind
        assert both_ways(calls, answer) == (behind.strip(), made)
        more = ("look_up", {"path": "b", "n": 3})
        assert both_ways(calls, answer + written(calls, more)) == (behind.strip(), [*made, more])


@pytest.mark.parametrize(
    "answer",
    [
        "<tool_call>look</tool_call>",
        "<tool_call>look\n</tool_call>",
        "<tool_call>look_up</tool_call>",
        "<tool_call>look\n<arg_key>n</arg_key><arg_value>3</arg_value>\n</tool_call>",
        "<tool_call>look<arg_key>n</arg_key><arg_value>3</arg_value></tool_call>",
    ],
)
@pytest.mark.parametrize("middle", ["", "\n"])
def test_nothing_need_stand_between_a_name_and_what_follows(answer: str, middle: str) -> None:
    form = CallFormat("<tool_call>", middle, "</tool_call>", each=KEYS.each)
    name = "look_up" if "look_up" in answer else "look"
    assert both_ways(form, answer) == ("", [(name, {"n": 3} if "3" in answer else {})])
    assert both_ways(form, answer.replace("look", "lo"))[1] == []


def test_a_value_is_parsed_at_few_of_its_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = list[str]()
    decoded = tagged_arguments._decoded

    def counted(text: str, *, python: bool) -> tuple[Any] | None:
        parsed.append(text)
        return decoded(text, python=python)

    monkeypatch.setattr(tagged_arguments, "_decoded", counted)
    end = "\n</parameter>\n</function>\n</tool_call>"
    begin = "<tool_call>\n<function=look>\n<parameter=list>\n["
    read(LINES, begin + f"[],{end}[]{end}" * 500)
    assert 0 < len(parsed) < 20


ids = {"ids": list(FORMATS)}
words = st.sampled_from(
    [
        "a", "Zoë ", "3", "true", "None", "['x']", '{"a": 1}', '"', "'", "\\", "<", ">", "</", "{",
        "}}", "\n", "  ", "A parameter ends with ", " here.", "```",
        *(
            tag
            for one in FORMATS.values()
            for part in (one.markup, one.before, one.after)
            for tag in re.split(r"(?<=>)|\s", part)
            if tag
        ),
    ]
)  # fmt: skip
texts = st.lists(words, max_size=8).map("".join)
arguments = st.fixed_dictionaries(
    {},
    optional={
        "path": texts,
        "content": texts,
        "n": st.integers(-20, 20),
        "flag": st.booleans(),
        "none": st.none(),
        "list": st.lists(texts | st.integers(0, 9) | st.none(), max_size=2),
    },
)
made = st.lists(st.tuples(st.sampled_from(NAMES), arguments), min_size=1, max_size=3)


def is_ambiguous(calls: CallFormat, arguments: dict[str, Any]) -> bool:
    """Whether a value holds its own end and what follows it: nothing can tell that from its end."""
    form = calls.each
    assert form is not None
    ends = re.compile(ends_of_values(calls, "|".join(SCHEMA["properties"]), "|".join(NAMES)))
    for value in arguments.values():
        said = value if isinstance(value, str) else json.dumps(value)
        if form.quotes and form.quotes[1] in said:
            return True
        found = ends.search(form.middle + said + form.after + form.before)
        if found and found.start() < len(form.middle + said) and not form.quotes:
            return True
    return False


def cut(text: str, sizes: list[int]) -> Iterator[str]:
    for size in sizes:
        yield text[:size]
        text = text[size:]
    yield text


@settings(max_examples=50)
@given(made=made, sizes=st.lists(st.integers(1, 30), max_size=12), python=st.booleans())
@pytest.mark.parametrize("calls", FORMATS.values(), **ids)
def test_calls_are_read_as_they_were_made(
    calls: CallFormat, made: list[Any], sizes: list[int], python: bool
) -> None:
    assume(not any(is_ambiguous(calls, arguments) for _, arguments in made))
    assert calls.each is not None
    answer = written(calls, *made, python=python and calls.each.python)
    assert read(calls, answer) == ("", made)
    assert read(calls, *cut(answer, sizes)) == ("", made)


STRICT = {**SCHEMA, "properties": {k: v for k, v in SCHEMA["properties"].items() if k != "any"}}


@settings(max_examples=25)
@given(made=made)
@pytest.mark.parametrize("calls", FORMATS.values(), **ids)
def test_what_the_grammar_lets_a_model_write_is_read_back(calls: CallFormat, made: Any) -> None:
    made = [(name, {k: one[k] for k in STRICT["properties"] if k in one}) for name, one in made]
    rules = tool_rules(
        [{"name": n, "parameters": STRICT, "strict": True, "place": n} for n in NAMES],
        required=True,
        parallel=True,
        answer=None,
    )
    matcher = LLMatcher(LLTokenizer("byte"), lark(rules, calls), limits=LIMITS, log_level=0)
    answer = written(calls, *made)
    held = all(matcher.try_consume_tokens([byte]) == 1 for byte in answer.encode())
    if held and matcher.is_accepting():
        assume(not any(is_ambiguous(calls, arguments) for _, arguments in made))
        assert read(calls, answer, schema=STRICT) == ("", made)
    else:  # a value that holds its own end is no value there
        form = calls.each
        assert form is not None
        ends = (form.after, "</", "\n") if form.quotes else (form.after,)
        assert any(end in str(v) for end in ends for _, one in made for v in one.values())
