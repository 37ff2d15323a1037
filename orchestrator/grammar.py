"""An answer's constraint as a grammar in Lark's notation, for the library llguidance.

White space before an answer is free if clients do not see it: models are trained to begin with
some. JSON is written on one line, with a blank after commas and colons, and integers without bounds
stay within those that JSON readers keep exact (RFC 8259, section 6). With free white space or
digits a model may write them without end.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache, partial
from math import inf
from typing import Any, Final

from jsonschema_rs import Draft202012Validator, RegexOptions
from llguidance import LLMatcher, LLTokenizer

from orchestrator.call_markup import COUNT, ID
from orchestrator.errors import InvalidRequest
from orchestrator.held_schema import MAX_SOURCE, Held, held
from orchestrator.json_rule import LIMITS as LIMITS
from orchestrator.json_rule import fault_of, json_rule
from orchestrator.json_rule import reason as reason
from orchestrator.json_schema import (
    FORMATS,
    References,
    modern,
    name_of,
    properties_of,
    subschemas,
    value_form,
)
from orchestrator.types import ArgumentFormat, CallFormat, Constraint

MAX_FITTING = 1 << 14  # bytes of a value that is compared with a schema
_MOST_READ: Final = 1 << 19  # characters of all tools' schemas
_ANY_OBJECT: Final = {"type": "object"}
_SOME_FORM: Final = CallFormat("<call>", " ", "</call>", "</call><call>")
"""A form of calls to check grammars with, before that of the models is known."""
_WHITE: Final = "WHITE: /[ \\n]{1,4}/\n"
_FREE_VALUES: Final = (("value",), ("%json {}",))
"""The values of an argument in tags without a usable schema: any text, or any value if marked."""


def lark(
    constraint: Constraint,
    calls: CallFormat | None = None,
    literal: Callable[[str], str] = json.dumps,
) -> str:
    """Return the grammar of an answer.

    Args:
        calls: how the model writes calls, if there are tools.
        literal: returns the notation of a text that may hold control tokens of the model.

    Raises:
        InvalidRequest: it is too large, or no grammar can enforce the schema.
    """
    source = constraint.source
    if len(source) > MAX_SOURCE:
        raise InvalidRequest(
            f"the grammar has {len(source)} characters; at most {MAX_SOURCE} are allowed"
        )
    before = "" if constraint.exact else "WHITE? "
    match constraint.kind:
        case "json_schema":
            schema = held(source)
            if schema.faults:
                raise InvalidRequest(schema.faults[0])
            return f"start: {before}body\nbody: {json_rule(schema.schema)}\n{_WHITE}"
        case "regex":
            return f"start: {before}body\nbody: /{_escaped(source)}/\n{_WHITE}"
        case "grammar":
            return source
    assert calls is not None
    return _tools(json.loads(source), calls, literal)


def check(constraint: Constraint, place: str) -> None:
    """Refuse a constraint that has no valid grammar.

    Raises:
        InvalidRequest: names `place` and the fault.
    """
    if fault := _fault_of(constraint):
        raise InvalidRequest(f"{place}: {fault}", param=place, code="invalid_value")


def tool_rules(
    tools: Sequence[Mapping[str, Any]], *, required: bool, parallel: bool, answer: str | None
) -> Constraint:
    """Return the constraint of an answer that may call tools.

    Args:
        tools: name, JSON Schema of the arguments (`parameters`) and `strict` of each, and its
            `place` in the request. Parts of a schema that no grammar can enforce are left out,
            unless it is `strict`. If all are too large together, the others allow any object.
        required: whether the answer must call one.
        parallel: whether it may make several calls.
        answer: JSON Schema, as JSON, of an answer without calls; None: any text.

    Raises:
        InvalidRequest: a strict schema cannot be enforced, by itself or together with the others.
    """
    found, left = list[Held](), _MOST_READ
    for tool in tools:
        why = "there is no room for it beside the schemas of the tools before it"
        source = json.dumps(tool["parameters"])
        left -= len(source)
        one = held(source) if left > 0 else Held({}, (why,))
        found.append(one)
        if tool["strict"] and one.faults:
            place = tool["place"]
            raise InvalidRequest(f"{place}: {one.faults[0]}", param=place, code="invalid_value")
    schemas = [_of_an_object(one.schema) for one in found]

    def rules() -> Constraint:
        listed = [[tool["name"], schema] for tool, schema in zip(tools, schemas, strict=True)]
        named = {"tools": listed, "required": required, "parallel": parallel, "answer": answer}
        return Constraint("tools", json.dumps(named))

    if tools and _fault_of(rules(), _SOME_FORM):
        schemas = [
            schema if tool["strict"] else _ANY_OBJECT
            for tool, schema in zip(tools, schemas, strict=True)
        ]
        if wrong := _fault_of(rules(), _SOME_FORM):
            raise InvalidRequest(
                f"tools: the schemas of the strict ones are too large together: {wrong}",
                param="tools",
                code="invalid_value",
            )
    return rules()


def _of_an_object(schema: Any) -> Any:
    """Return a schema of arguments that asks for an object, if it did not say so itself."""
    said = {"type", "$ref", "const", "enum", "allOf", "anyOf"}
    return schema if said & schema.keys() else {**_ANY_OBJECT, **schema}


def fits(value: Any, schema: Any) -> bool:
    """Return whether a value is valid by a schema; False if the schema is invalid, or the value too
    long to check while other requests wait."""
    return _is_valid(value, json.dumps(schema), MAX_FITTING)


def holds(constraint: Constraint, text: str) -> bool:
    """Return whether an answer written without the grammar matches a schema or a regular
    expression; JSON may have any layout and order. Call it in a thread: long ones take a while."""
    if constraint.kind == "json_schema":
        try:
            return _is_valid(json.loads(text), constraint.source)
        except (ValueError, RecursionError):
            return False
    rule = f"/{_escaped(constraint.source)}/"
    ways = (text,) if constraint.exact else (text, text.lstrip(), text.strip())
    return any(_matches(one, rule) for one in ways)


def _is_valid(value: Any, schema: str, longest: float = inf) -> bool:
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
        return len(text) <= longest and _validator(schema).is_valid(value)
    except (ValueError, RecursionError):
        return False


@lru_cache(maxsize=64)
def _validator(schema: str) -> Draft202012Validator:
    """Return the validator of a schema, which is given as JSON.

    Raises:
        ValueError: it is no schema.
    """
    return Draft202012Validator(
        modern(json.loads(schema)),
        formats={name: partial(_has_format, name) for name in FORMATS},
        validate_formats=True,
        pattern_options=RegexOptions(),  # in linear time
        offline=True,
    )


def _has_format(name: str, text: str) -> bool:
    """Return whether a text has a format, by the grammars' rules."""
    written = json.dumps(text, ensure_ascii=False)
    return _matches(written, json_rule({"type": "string", "format": name}))


def _matches(text: str, rule: str) -> bool:
    state = _whole(rule).deep_copy()
    tokens = _tokenizer().tokenize_bytes(text.encode(errors="surrogatepass"))
    return state.try_consume_tokens(tokens) == len(tokens) and state.is_accepting()


@cache
def _tokenizer() -> LLTokenizer:
    return LLTokenizer("byte")


@lru_cache(maxsize=32)
def _whole(rule: str) -> LLMatcher:
    return LLMatcher(_tokenizer(), f"start: {rule}", limits=LIMITS, log_level=0)


def is_free(constraint: Constraint) -> bool:
    """Return whether the constraint lets an answer be any text, beside calls of tools."""
    if constraint.kind != "tools":
        return False
    rules = json.loads(constraint.source)
    return not rules["required"] and rules["answer"] is None


def _tools(rules: Mapping[str, Any], calls: CallFormat, literal: Callable[[str], str]) -> str:
    """Return the grammar for the constraint of `tool_rules`."""
    tools = rules["tools"]
    each = [
        f"call{i}: {json.dumps(name)} {_literal(calls.middle, literal)} "
        + (_tagged(schema, calls.each, literal) if calls.each else json_rule(schema))
        for i, (name, schema) in enumerate(tools)
    ]
    if calls.each:
        each += _free_parts(calls, literal)
    around = "".join((calls.before, calls.middle, calls.after, calls.between or ""))
    for mark, name, pattern in ((calls.ID, "ID", ID), (calls.COUNT, "COUNT", COUNT)):
        if mark in around:
            each.append(f"{name}: /{pattern}/")
    any_call = " | ".join(f"call{i}" for i in range(len(tools)))
    more = f"({_literal(calls.between, literal)} call)*" if calls.between else ""
    if not rules["parallel"]:
        more = ""
    end = _literal(calls.after, literal)
    lines = [f"call: {any_call}", *each]
    if rules["required"]:
        lines.append(f"start: WHITE? {_literal(calls.before, literal)} call {more} {end}")
    elif calls.trigger:
        # Free text up to the markup that begins a call.
        begun, rest = calls.trigger, calls.before.lstrip().removeprefix(calls.trigger)
        lines.append(f"calls: {_literal(rest, literal)} call {more} {end}")
        head = _up_to("head", begun, literal)
        if rules["answer"] is None:
            lines += ["start: head calls | TEXT", head]
        else:
            lines.append(f"start: WHITE? ({literal(begun)} calls | answer)")
    else:
        lines.append(f"calls: {_literal(calls.before, literal)} call {more} {end}")
        lines.append("start: WHITE? " + ("(calls | answer)" if rules["answer"] else "calls | SAID"))
        lines.append("SAID: /\\s*[^{\\s](.|\\n)*/")
    if rules["answer"] is not None:
        lines.append(f"answer: {json_rule(held(rules['answer']).schema)}")
    return "\n".join([*lines, "TEXT: /(.|\\n)*/", _WHITE])


def _up_to(rule: str, mark: str, literal: Callable[[str], str]) -> str:
    """Return the rule of a free text up to a mark, whose first part may be a control token."""
    end = literal(mark)
    return f"{rule}{'' if end.startswith('<') else '[lazy]'}: TEXT {end}"


def _free_parts(calls: CallFormat, literal: Callable[[str], str]) -> list[str]:
    """Return the rules of the names and values of arguments in tags."""
    assert calls.each is not None
    form = calls.each
    key = _escaped(re.escape(form.middle.strip()[:1]))
    rules = [f'KEY: /[^<>"\\n{key}]{{1,64}}/']
    if form.quotes is None:
        return [*rules, _up_to("value", form.after, literal)]
    quoted = _up_to("quoted", form.quotes[1] + form.after, literal)
    return [*rules, f"value: /[^<]*/ {literal(form.after)}", quoted]


def _tagged(schema: Any, form: ArgumentFormat, literal: Callable[[str], str]) -> str:
    """Return the rule of a call's arguments, each in tags. A string must match only its schema's
    enumeration, any other value its whole schema, if a grammar can enforce that by itself. Texts of
    the schema never become control tokens."""
    begin, rules, room = literal(form.before), [], MAX_SOURCE
    references = References(schema)
    for name, one in properties_of(schema).items():
        values = _values(one, references, form) if room > 0 else _FREE_VALUES
        room -= sum(len(value) for ways in values for value in ways)
        rule = f"{begin} {json.dumps(name)} {_valued(values, form, literal)}"
        rules.append(rule if name in schema.get("required", ()) else f"({rule})?")
    free = f"({begin} KEY {_valued(_FREE_VALUES, form, literal)})*"
    return " ".join(rules) if rules else free


def _valued(
    values: tuple[Sequence[str], Sequence[str]], form: ArgumentFormat, literal: Callable[[str], str]
) -> str:
    """Return the rule of an argument's value in its tags: strings, and other values."""
    texts, others = values
    end, ways = literal(form.after), list[str]()
    if not form.other:
        texts, others = texts if "value" in texts else (*texts, *others), ()
    for middle, ones in ((form.middle, texts), (form.other, others)):
        named = " | ".join(one for one in ones if one != "value")
        tails = [f"({named}) {end}"] if named else []
        if ones:
            tails += ["value"] if "value" in ones else []
            if form.quotes and "value" in ones:
                tails.append(f"{literal(form.quotes[0])} quoted")
            ways.append(f"{literal(middle)} ({' | '.join(tails)})")
    return f"({' | '.join(ways)})"


def _values(
    schema: Any, references: References, form: ArgumentFormat
) -> tuple[Sequence[str], Sequence[str]]:
    """Return the rules of a value in tags: of strings, if `value` is any, and of others."""
    said = value_form(schema, references)
    if said.closed and said.listed:
        texts = [json.dumps(one) for one in said.listed if isinstance(one, str)]
        others = [one for one in said.listed if not isinstance(one, str)]
        return texts, [json.dumps(json.dumps(one, ensure_ascii=False)) for one in others]
    if said.types and "string" not in said.types:
        rule = json_rule(_taken_out(schema, references.root))
        return _FREE_VALUES if fault_of(f"start: {rule}") else ([], [rule])
    if said.types == {"string"}:
        return ["value"], []
    return _FREE_VALUES


def _taken_out(schema: Any, root: Any) -> Any:
    """Return a part of the schema `root` as a schema, with only the definitions that it reaches."""
    known, defs, left = root.get("$defs", {}), dict[str, Any](), [schema]
    while left:
        one = left.pop()
        if isinstance(one, dict):
            left += [each for _, each in subschemas(one)]
            name = name_of(one)
            if name in known and name not in defs:
                defs[name] = known[name]
                left.append(defs[name])
    return {**schema, "$defs": defs} if defs else schema


def _literal(text: str, literal: Callable[[str], str]) -> str:
    """Return the notation of the markup around a call, which may hold an id or a number."""
    names = {CallFormat.ID: "ID", CallFormat.COUNT: "COUNT"}
    parts = re.split(f"([{''.join(names)}])", text)
    return " ".join(names.get(part) or literal(part) for part in parts if part)


def _fault_of(constraint: Constraint, calls: CallFormat | None = None) -> str:
    """Return the fault of a constraint's grammar; empty if there is none."""
    try:
        return fault_of(lark(constraint, calls))
    except InvalidRequest as error:
        return str(error)


def _escaped(regex: str) -> str:
    """Escape a regular expression for slashes around it, on one line."""
    escapes = {"/": r"\/", "\n": r"\n", "\\\n": r"\n"}
    return re.sub(r"(?s)\\.|/|\n", lambda found: escapes.get(found[0], found[0]), regex)
