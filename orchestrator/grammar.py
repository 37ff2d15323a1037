"""What an answer must match, as a grammar in Lark's notation (that of the library llguidance).

The white space before an answer is free where nobody is shown it: models are trained to begin with
some. JSON is written on one line, with a blank behind commas and colons, and whole numbers without
bounds stay within those that JSON's readers keep exact (RFC 8259, section 6): a model that may
write any white space between two values, or any number of digits, may write nothing else any more.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cache, lru_cache
from itertools import zip_longest
from typing import Any, Final
from urllib.parse import unquote

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from orchestrator.errors import InvalidRequest
from orchestrator.types import ArgumentFormat, CallFormat, Constraint

LIMITS: Final = LLParserLimits(max_items_in_row=4000, initial_lexer_fuel=2_000_000)
MAX_SOURCE: Final = 1 << 17  # characters of a grammar
MAX_FITTING = 1 << 14  # characters of a value that is compared with a schema
_LAYOUT: Final = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_EXACT: Final = 2**53 - 1
_SCHEMAS: Final = {"items", "prefixItems", "additionalProperties", "anyOf", "oneOf", "allOf"}
_NAMED_SCHEMAS: Final = {"properties", "patternProperties", "$defs", "definitions"}
_MOST_BRANCHES: Final = 512  # of a schema, looked at for each property
_LOCAL: Final = re.compile(r'"\$ref": "(#[^"]*)"')
_UNIONS: Final = ("anyOf", "oneOf")
TYPES: Final[Mapping[type, str]] = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    list: "array",
    dict: "object",
    type(None): "null",
}
"""What a JSON Schema calls the type of a value."""
_REMARKS: Final = {"title", "description", "default", "examples", "$comment", "deprecated"}
_ANY_OBJECT: Final = {"type": "object"}
_SOME_FORM: Final = CallFormat("<call>", " ", "</call>", "</call><call>")
"""Of calls, where it is not known which the models have."""
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
    before = "" if constraint.exact else "WHITE? "
    match constraint.kind:
        case "json_schema":
            return f"start: {before}body\nbody: {_json(json.loads(source))}\n{_WHITE}"
        case "regex":
            return f"start: {before}body\nbody: /{_escaped(source)}/\n{_WHITE}"
        case "grammar":
            return source
    assert calls is not None
    return _tools(json.loads(source), calls, literal)


def check(constraint: Constraint, place: str) -> None:
    """Refuse what is no grammar, or one that an answer cannot be held to.

    Raises:
        InvalidRequest: names `place`, and what is wrong with it.
    """
    if fault := _fault_of(constraint):
        raise InvalidRequest(f"{place}: {fault}", param=place, code="invalid_value")


def tool_rules(
    tools: Sequence[Mapping[str, Any]], *, required: bool, parallel: bool, answer: str | None
) -> Constraint:
    """The constraint of an answer that may call tools.

    Args:
        tools: name, JSON Schema of the arguments (`parameters`) and `strict` of each, and its
            `place` in the request. A schema that no text can be held to stands for any object,
            unless it is `strict`; so do all that are not, where they are too large together.
        required: whether it must.
        parallel: whether it may make several calls.
        answer: JSON Schema, as JSON, of an answer without calls; None: any text.

    Raises:
        InvalidRequest: a strict schema cannot be held to, by itself or together with the others.
    """
    schemas = [_bare(tool["parameters"]) for tool in tools]

    def rules() -> Constraint:
        listed = [[tool["name"], schema] for tool, schema in zip(tools, schemas, strict=True)]
        named = {"tools": listed, "required": required, "parallel": parallel, "answer": answer}
        return Constraint("tools", json.dumps(named))

    def fault() -> str:
        return _fault_of(rules(), _SOME_FORM) if tools else ""

    if fault():
        for i, tool in enumerate(tools):
            if wrong := _fault(f"start: {_json(schemas[i])}"):
                if tool["strict"]:
                    place = tool["place"]
                    raise InvalidRequest(f"{place}: {wrong}", param=place, code="invalid_value")
                schemas[i] = _ANY_OBJECT
        if fault():
            schemas = [
                schema if tool["strict"] else _ANY_OBJECT
                for tool, schema in zip(tools, schemas, strict=True)
            ]
            if wrong := fault():
                raise InvalidRequest(
                    f"tools: the schemas of the strict ones are too large together: {wrong}",
                    param="tools",
                    code="invalid_value",
                )
    return rules()


def fits(value: Any, schema: Any) -> bool:
    """Whether a value that was read from JSON is one that a text held to the schema may be, in
    whatever order its members stand; False where nothing can be held to the schema, or where the
    value is too long to be looked at while other requests wait."""
    try:
        size = len(json.dumps(value, ensure_ascii=False))
        return size <= MAX_FITTING and _fits(value, schema)
    except RecursionError:
        return False


def holds(constraint: Constraint, text: str) -> bool:
    """Whether a whole answer that something else wrote matches a schema or a regular expression.
    JSON may be laid out and ordered in any way. Long ones take a while: call it in a thread."""
    if constraint.kind == "json_schema":
        try:
            return _fits(json.loads(text), json.loads(constraint.source))
        except (ValueError, RecursionError):
            return False
    rule = f"/{_escaped(constraint.source)}/"
    ways = (text,) if constraint.exact else (text, text.lstrip(), text.strip())
    return any(_matches(one, rule) for one in ways)


def _fits(value: Any, schema: Any) -> bool:
    # A grammar knows one order of members: the value's own may be it, or that of its schema. Of
    # whole numbers it knows no other writing.
    rule, whole = _json_rule(schema), _whole_numbers(value)
    return any(
        _matches(_laid_out(one, order, order, {}), rule)
        for one in ([value] if repr(whole) == repr(value) else [value, whole])
        for order in (None, schema)
    )


def _whole_numbers(value: Any) -> Any:
    """The same value, 5.0 written 5."""
    if isinstance(value, list):
        return [_whole_numbers(one) for one in value]
    if isinstance(value, dict):
        return {name: _whole_numbers(one) for name, one in value.items()}
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _matches(text: str, rule: str) -> bool:
    state = _whole(rule).deep_copy()
    tokens = _tokenizer().tokenize_bytes(text.encode(errors="surrogatepass"))
    return state.try_consume_tokens(tokens) == len(tokens) and state.is_accepting()


@cache
def _tokenizer() -> LLTokenizer:
    """Of texts as bytes, for which no model is needed."""
    return LLTokenizer("byte")


@lru_cache(maxsize=32)
def _whole(rule: str) -> LLMatcher:
    return LLMatcher(_tokenizer(), f"start: {rule}", limits=LIMITS, log_level=0)


def _laid_out(value: Any, schema: Any, root: Any, known: dict[int, list[dict[str, Any]]]) -> str:
    """A value's JSON as grammars want it, its members as its schema lists them.

    `known` are the branches of the schemas within `root`, by their identity.
    """
    if isinstance(value, float):  # bounded numbers may have no exponent
        return format(Decimal(repr(value)), "f")
    if not isinstance(value, list | dict):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if id(schema) not in known:
        known[id(schema)] = _branches(schema, root)
    branches = known[id(schema)]
    if isinstance(value, list):
        first: list[Any] = next(
            (one["prefixItems"] for one in branches if "prefixItems" in one), []
        )
        items = next((one["items"] for one in branches if "items" in one), None)
        each = zip_longest(value, first[: len(value)], fillvalue=items)
        return f"[{', '.join(_laid_out(*one, root, known) for one in each)}]"
    listed = max(
        map(properties_of, branches), key=lambda one: len(one.keys() & value.keys()), default={}
    )
    others = next(
        (one for one in (one.get("additionalProperties") for one in branches) if one), None
    )
    required = [name for one in branches for name in one.get("required", ())]
    names = [name for name in dict.fromkeys([*listed, *required, *value]) if name in value]
    members = (
        f"{json.dumps(name, ensure_ascii=False)}: "
        + _laid_out(value[name], listed.get(name, others), root, known)
        for name in names
    )
    return f"{{{', '.join(members)}}}"


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
        f"call{i}: {json.dumps(name)} {_literal(calls.middle, literal)} "
        + (_tagged(schema, calls.each, literal) if calls.each else _json(schema))
        for i, (name, schema) in enumerate(tools)
    ]
    if calls.each:
        each += [
            _up_to("value", calls.each.after, literal),
            _up_to("name", calls.each.middle, literal),
        ]
    if calls.ID in calls.after + (calls.between or ""):
        each.append("ID: /[a-zA-Z0-9]{9}/")
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
        lines.append(f"answer: {_json(json.loads(rules['answer']))}")
    return "\n".join([*lines, "TEXT: /(.|\\n)*/", _WHITE])


def _up_to(rule: str, mark: str, literal: Callable[[str], str]) -> str:
    """The rule of a free text up to a mark, whose first part may be a control token."""
    end = literal(mark)
    return f"{rule}{'' if end.startswith('<') else '[lazy]'}: TEXT {end}"


def _tagged(schema: Any, form: ArgumentFormat, literal: Callable[[str], str]) -> str:
    """The arguments of a call, each in tags: a text is held to an enumeration alone, every other
    value to its schema, unless nothing can be held to that apart from the rest. No text of the
    schema's stands for a control token."""
    begin, middle, end = map(literal, (form.before, form.middle, form.after))
    rules, room = [], MAX_SOURCE
    for name, one in properties_of(schema).items():
        value = _value(one, schema) if room > 0 else ""
        room -= len(value)
        if value.startswith("%json") and _fault(f"start: {value}"):
            value = ""
        rule = f"{begin} {json.dumps(name)} {middle} " + (f"{value} {end}" if value else "value")
        rules.append(rule if name in schema.get("required", ()) else f"({rule})?")
    return " ".join(rules) if rules else f"({begin} name value)*"


def _value(schema: Any, root: Any) -> str:
    """What a value in tags must match; empty for any text."""
    form = value_form(schema, root)
    if form.closed and form.listed:
        texts = (
            one if isinstance(one, str) else json.dumps(one, ensure_ascii=False)
            for one in form.listed
        )
        return f"({' | '.join(map(json.dumps, texts))})"
    if not form.types or "string" in form.types:
        return ""
    return _json(_taken_out(schema, root))


@dataclass(frozen=True, slots=True)
class ValueForm:
    """What a JSON Schema says of a value, whichever of its branches holds.

    Attributes:
        types: those that it names; none where it, or one of its branches, names none.
        listed: the values that it names one by one.
        closed: whether there are no others.
    """

    types: frozenset[str]
    listed: Sequence[Any]
    closed: bool


def value_form(schema: Any, root: Any) -> ValueForm:
    """What a JSON Schema says of a value; `root`: the schema that its references point into."""
    types, listed, free, closed = set[str](), list[Any](), False, True
    for one in _branches(schema, root):
        named = one.get("type")
        named = named if isinstance(named, list) else [named]
        kinds = {kind for kind in named if isinstance(kind, str)}
        values = one["enum"] if isinstance(one.get("enum"), list) else None
        if "const" in one:
            values = [one["const"]]
        elif values is None and kinds == {"null"}:
            values = [None]
        kinds = kinds or {TYPES[type(value)] for value in values or ()}
        types |= kinds | ({"integer"} if "number" in kinds else set())
        listed += values or ()
        free, closed = free or not kinds, closed and values is not None
    return ValueForm(frozenset() if free else frozenset(types), listed, closed)


def _branches(schema: Any, root: Any) -> list[dict[str, Any]]:
    """The schemas of which a value matches one, each reference followed once; of very many, the
    first, and one that says nothing."""
    found, left, seen = list[dict[str, Any]](), [schema], set[str]()
    for _ in range(_MOST_BRANCHES):
        if not left:
            return found
        one = left.pop()
        one = one if isinstance(one, dict) else {}
        ref, inner = one.get("$ref"), next((one[name] for name in _UNIONS if name in one), None)
        every = one.get("allOf")
        if one.keys() & {"type", "enum", "const"}:
            found.append(one)
        elif isinstance(ref, str):
            left += [] if ref in seen else [_target(root, ref)]
            seen.add(ref)
        elif isinstance(inner, list):
            left += reversed(inner)
        elif isinstance(every, list) and (saying := [each for each in every if _names(each)]):
            left += reversed(saying)
        else:
            found.append(one)
    return [*found, {}]


def _names(schema: Any) -> bool:
    """Whether a schema says of which type a value is."""
    return isinstance(schema, dict) and bool(
        schema.keys() & {"type", "enum", "const", "$ref", "allOf", *_UNIONS}
    )


def _target(root: Any, ref: str) -> Any:
    """What a reference within a schema points to (RFC 6901); None where it is nothing there."""
    if not ref.startswith("#"):
        return None
    for part in unquote(ref[1:]).split("/")[1:]:
        part = part.replace("~1", "/").replace("~0", "~")
        if isinstance(root, list) and part.isdecimal() and int(part) < len(root):
            root = root[int(part)]
        else:
            root = root.get(part) if isinstance(root, dict) else None
    return root


def _taken_out(schema: Any, root: Any) -> Any:
    """A schema that stands by itself, taken out of another that its references point into."""
    moved = _moved(schema)
    if moved == schema:
        return schema
    return {**moved, "$defs": {"whole": _moved(_reached(schema, root))}}


def _reached(schema: Any, root: Any) -> dict[str, Any]:
    """What of a whole schema references in a part of it point into, and those in that: the schemas
    that they name, or all of it."""
    found, left = dict[str, dict[str, Any]](), [schema]
    while left:
        for ref in _LOCAL.findall(json.dumps(left.pop())):
            kind, _, name = ref.removeprefix("#/").partition("/")
            name = name.partition("/")[0]
            named = root.get(kind) if kind in _NAMED_SCHEMAS else None
            if not isinstance(named, dict) or name not in named:
                return {key: value for key, value in root.items() if key != "$id"}
            if name not in found.setdefault(kind, {}):
                found[kind][name] = named[name]
                left.append(named[name])
    return found


def _moved(schema: Any) -> Any:
    """A schema whose references point into a definition instead, in which all stands."""
    if not isinstance(schema, dict):
        return schema
    found, ref = _within(schema, _moved), schema.get("$ref")
    if isinstance(ref, str) and (ref == "#" or ref.startswith("#/")):
        found["$ref"] = f"#/$defs/whole{ref[1:]}"
    return found


def properties_of(schema: Any) -> dict[str, Any]:
    """The properties that a JSON Schema names."""
    named = schema.get("properties") if isinstance(schema, dict) else None
    return named if isinstance(named, dict) else {}


def _literal(text: str, literal: Callable[[str], str]) -> str:
    """A text around a call, in which an id may stand."""
    return " ID ".join(literal(part) if part else "" for part in text.split(CallFormat.ID))


def _json(schema: Any) -> str:
    """The body of a rule: JSON that matches a schema, for a model to write."""
    return _json_rule(_bounded(schema))


def _json_rule(schema: Any) -> str:
    if isinstance(schema, dict):
        schema = {**schema, "x-guidance": _LAYOUT}
    return f"%json {json.dumps(schema)}"


def _bounded(schema: Any) -> Any:
    """A schema in which every whole number has bounds: a model may write digits for ever."""
    if not isinstance(schema, dict):
        return schema
    found = _within(schema, _bounded)
    kinds = found.get("type")
    if "integer" in (kinds if isinstance(kinds, list) else [kinds]):
        found |= _exact_bounds(found)
    return found


def _bare(schema: Any) -> Any:
    """A schema without what is written for its readers."""
    if not isinstance(schema, dict):
        return schema
    said = {name: one for name, one in schema.items() if name not in _REMARKS}
    return _within(said, _bare)


def _within(schema: dict[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """A schema, with each of those that stand right in it changed."""
    found = dict(schema)
    for name in found.keys() & _SCHEMAS:
        one = found[name]
        found[name] = [change(each) for each in one] if isinstance(one, list) else change(one)
    for name in found.keys() & _NAMED_SCHEMAS:
        if isinstance(found[name], dict):
            found[name] = {key: change(one) for key, one in found[name].items()}
    return found


def _exact_bounds(schema: dict[str, Any]) -> dict[str, int]:
    """The bounds that a schema of whole numbers lacks; none beyond those that it has."""
    low = [schema[name] for name in ("minimum", "exclusiveMinimum") if name in schema]
    high = [schema[name] for name in ("maximum", "exclusiveMaximum") if name in schema]
    lacking: dict[str, int] = {}
    numbers = all(isinstance(one, int | float) for one in low + high)
    if schema.keys() & {"enum", "const"} or not numbers:
        return lacking  # what is no number the library refuses
    if not low and all(one > -_EXACT for one in high):
        lacking["minimum"] = -_EXACT
    if not high and all(one < _EXACT for one in low):
        lacking["maximum"] = _EXACT
    return lacking


def _fault_of(constraint: Constraint, calls: CallFormat | None = None) -> str:
    """What is wrong with the grammar of a constraint; empty for nothing."""
    try:
        return _fault(lark(constraint, calls))
    except InvalidRequest as error:
        return str(error)


@lru_cache(maxsize=64)  # agents send their tools with every turn; one has 512 KiB at most
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
