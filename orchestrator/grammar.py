"""What an answer must match, as a grammar in Lark's notation (that of the library llguidance).

The white space before an answer, which nobody is shown, is free: models are trained to begin with
some. JSON is written on one line, with a blank behind commas and colons, and whole numbers without
bounds stay within those that JSON's readers keep exact (RFC 8259, section 6): a model that may
write any white space between two values, or any number of digits, may write nothing else any more.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from llguidance import LLMatcher, LLParserLimits

from orchestrator.errors import InvalidRequest
from orchestrator.types import CallFormat, Constraint

LIMITS: Final = LLParserLimits(max_items_in_row=4000, initial_lexer_fuel=2_000_000)
MAX_SOURCE: Final = 1 << 17  # characters of a grammar
_LAYOUT: Final = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_EXACT: Final = 2**53 - 1
_SCHEMAS: Final = {"items", "prefixItems", "additionalProperties", "anyOf", "oneOf", "allOf"}
_NAMED_SCHEMAS: Final = {"properties", "patternProperties", "$defs", "definitions"}
_WHITE: Final = "WHITE: /[ \\n]{1,4}/\n"


def lark(
    constraint: Constraint,
    calls: CallFormat | None = None,
    literal: Callable[[str], str] = json.dumps,
) -> str:
    """The grammar of an answer.

    Args:
        calls: how the model writes calls, where there are tools.
        literal: the notation of a text that may hold control tokens of the model.

    Raises:
        InvalidRequest: it is too large.
    """
    source = constraint.source
    if len(source) > MAX_SOURCE:
        raise InvalidRequest(
            f"the grammar has {len(source)} characters; at most {MAX_SOURCE} are allowed"
        )
    match constraint.kind:
        case "json_schema":
            return f"start: WHITE? body\nbody: {_json(json.loads(source))}\n{_WHITE}"
        case "regex":
            return f"start: WHITE? body\nbody: /{_escaped(source)}/\n{_WHITE}"
        case "grammar":
            return source
    assert calls is not None
    return _tools(json.loads(source), calls, literal)


def check(constraint: Constraint, place: str) -> None:
    """Refuse what is no grammar, or one that an answer cannot be held to.

    Raises:
        InvalidRequest: names `place`, and what is wrong with it.
    """
    try:
        fault = _fault(lark(constraint))
    except InvalidRequest as error:
        fault = str(error)
    if fault:
        raise InvalidRequest(f"{place}: {fault}", param=place, code="invalid_value")


def tool_rules(
    tools: Sequence[Mapping[str, Any]], *, required: bool, parallel: bool, answer: str | None
) -> Constraint:
    """The constraint of an answer that may call tools.

    Args:
        tools: name, JSON Schema of the arguments (`parameters`) and `strict` of each, and its
            `place` in the request. A schema that no text can be held to stands for any object,
            unless it is `strict`.
        required: whether it must.
        parallel: whether it may make several calls.
        answer: JSON Schema, as JSON, of an answer without calls; None: any text.

    Raises:
        InvalidRequest: a strict schema cannot be held to.
    """
    listed = []
    for tool in tools:
        schema = tool["parameters"]
        fault = _fault(f"start: {_json(schema)}")
        if fault and tool["strict"]:
            place = tool["place"]
            raise InvalidRequest(f"{place}: {fault}", param=place, code="invalid_value")
        listed.append([tool["name"], {"type": "object"} if fault else schema])
    rules = {"tools": listed, "required": required, "parallel": parallel, "answer": answer}
    return Constraint("tools", json.dumps(rules))


def is_free(constraint: Constraint) -> bool:
    """Whether it lets an answer be any text, beside calls of tools."""
    if constraint.kind != "tools":
        return False
    rules = json.loads(constraint.source)
    return not rules["required"] and rules["answer"] is None


def _tools(rules: Mapping[str, Any], calls: CallFormat, literal: Callable[[str], str]) -> str:
    """The grammar of an answer by `tool_rules`."""
    tools = rules["tools"]
    each = [
        f"call{i}: {json.dumps(name)} {_literal(calls.middle, literal)} {_json(schema)}"
        for i, (name, schema) in enumerate(tools)
    ]
    any_call = " | ".join(f"call{i}" for i in range(len(tools)))
    more = f"({_literal(calls.between, literal)} call)*" if calls.between else ""
    if not rules["parallel"]:
        more = ""
    end = _literal(calls.after, literal)
    lines = [f"call: {any_call}", *each]
    if rules["required"]:
        lines.append(f"start: WHITE? {_literal(calls.before, literal)} call {more} {end}")
    elif calls.trigger:
        # Free text, held to nothing, up to what begins a call.
        begun, rest = calls.trigger, calls.before.lstrip().removeprefix(calls.trigger)
        lines.append(f"calls: {_literal(rest, literal)} call {more} {end}")
        if literal(begun).startswith("<"):
            head = f"head: TEXT {literal(begun)}"
        else:
            head = f"head[lazy]: TEXT {literal(begun)}"
        if rules["answer"] is None:
            lines += ["start: head calls | TEXT", head, "TEXT: /(.|\\n)*/"]
        else:
            lines.append(f"start: WHITE? ({literal(begun)} calls | answer)")
    else:
        lines.append(f"calls: {_literal(calls.before, literal)} call {more} {end}")
        lines.append("start: WHITE? " + ("(calls | answer)" if rules["answer"] else "calls | TEXT"))
        lines.append("TEXT: /\\s*[^{\\s](.|\\n)*/")
    if rules["answer"] is not None:
        lines.append(f"answer: {_json(json.loads(rules['answer']))}")
    return "\n".join([*lines, _WHITE])


def _literal(text: str, literal: Callable[[str], str]) -> str:
    return literal(text) if text else ""


def _json(schema: Any) -> str:
    """The body of a rule: JSON that matches a schema."""
    schema = _bounded(schema)
    if isinstance(schema, dict):
        schema = {**schema, "x-guidance": _LAYOUT}
    return f"%json {json.dumps(schema)}"


def _bounded(schema: Any) -> Any:
    """A schema in which every whole number has bounds: a model may write digits for ever."""
    if isinstance(schema, list):
        return [_bounded(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = dict(schema)
    for name in found.keys() & _SCHEMAS:
        found[name] = _bounded(found[name])
    for name in found.keys() & _NAMED_SCHEMAS:
        if isinstance(found[name], dict):
            found[name] = {key: _bounded(one) for key, one in found[name].items()}
    kinds = found.get("type")
    if "integer" in (kinds if isinstance(kinds, list) else [kinds]):
        found |= _exact_bounds(found)
    return found


def _exact_bounds(schema: dict[str, Any]) -> dict[str, int]:
    """The bounds that a schema of whole numbers lacks; none beyond those that it has."""
    low = [schema[name] for name in ("minimum", "exclusiveMinimum") if name in schema]
    high = [schema[name] for name in ("maximum", "exclusiveMaximum") if name in schema]
    lacking: dict[str, int] = {}
    if schema.keys() & {"enum", "const"} or not all(map(_is_number, low + high)):
        return lacking  # what is no number the library refuses
    if not low and all(one > -_EXACT for one in high):
        lacking["minimum"] = -_EXACT
    if not high and all(one < _EXACT for one in low):
        lacking["maximum"] = _EXACT
    return lacking


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)


def _fault(grammar: str) -> str:
    """What is wrong with a grammar; empty for nothing."""
    fault = LLMatcher.validate_grammar(grammar, limits=LIMITS)
    return "" if fault.startswith("WARNING") else first_line(fault) if fault else ""


def first_line(text: str) -> str:
    """Of the library's messages, which go on with a picture of the grammar."""
    return text.strip().partition("\n")[0][:300]


def _escaped(regex: str) -> str:
    """A regular expression between slashes, on one line."""
    return re.sub(r"\\(.)|/|\n", _escape, regex, flags=re.DOTALL)


def _escape(found: re.Match[str]) -> str:
    if found[1] is not None:
        return "\\n" if found[1] == "\n" else found[0]
    return "\\n" if found[0] == "\n" else "\\/"
