"""Values of JSON Schemas, valid and not, and what a reference says of them."""

from __future__ import annotations

import copy
import json
import random
import re
from collections import Counter
from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address
from typing import Any
from uuid import UUID

import numpy as np
import regex
from jsonschema import Draft7Validator, Draft202012Validator, FormatChecker, ValidationError
from jsonschema.validators import extend
from llguidance import LLMatcher, LLTokenizer

from orchestrator.grammar import holds, lark
from orchestrator.held_schema import held
from orchestrator.json_rule import LIMITS
from orchestrator.json_schema import modern, properties_of
from orchestrator.types import Constraint

_CLASSES = {
    r"\d": "0-9",
    r"\w": "a-zA-Z0-9_",
    r"\s": r"\t\n\v\f\r \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff",
}


def _written_out(token: re.Match[str]) -> str:
    """JavaScript's short classes, and its end of a text."""
    if token[0].startswith("["):
        return re.sub(r"\\.", lambda one: _CLASSES.get(one[0], one[0]), token[0])
    alone = {short: f"[{long}]" for short, long in _CLASSES.items()}
    return {**alone, "$": r"\Z"}.get(token[0], token[0])


def _pattern(_validator: Any, pattern: str, given: Any, _schema: Any) -> Iterator[ValidationError]:
    """JavaScript's expressions by another library than the one under test."""
    ours = re.sub(r"\\.|\[(?:\\.|[^\]\\])*\]|\$", _written_out, pattern)
    if isinstance(given, str) and not regex.search(ours, given, regex.V0):
        yield ValidationError(f"{given!r} does not match {pattern!r}")


DIALECTS: dict[str, Any] = {
    "2020-12": extend(Draft202012Validator, {"pattern": _pattern}),
    "draft-07": extend(Draft7Validator, {"pattern": _pattern}),
    "openapi-3.0": extend(Draft7Validator, {"pattern": _pattern}),
}
FORMATS = FormatChecker(formats=())


def _format(name: str, parse: Any) -> None:
    FORMATS.checks(name, raises=ValueError)(
        lambda given: not isinstance(given, str) or parse(given) or True
    )


def _matched(pattern: str) -> Any:
    def parse(given: str) -> None:
        if not re.fullmatch(pattern, given):
            raise ValueError

    return parse


_format("uuid", lambda given: (UUID(given), _matched("[0-9a-fA-F-]{36}")(given)))
_format("date", lambda given: (date.fromisoformat(given), _matched(".{10}")(given)))
_format("ipv4", IPv4Address)
_format("ipv6", IPv6Address)
_format("email", _matched(r"[^@]+@(\[[^\]@]*\]|[^@\[\]]+)"))
_PART = r"(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})"  # of a path (RFC 3986)
_HOST = rf"(?:\[[^\]]*\]|(?:(?![:@]){_PART})*)"
_PATH = (
    rf"(?://(?:(?:(?!@){_PART})*@)?{_HOST}(?::\d*)?(?:/{_PART}*)*|/?(?:{_PART}+(?:/{_PART}*)*)?)"
)
_REST = rf"(?:\?(?:{_PART}|[/?])*)?(?:#(?:{_PART}|[/?])*)?"
_format("uri", _matched(rf"[a-zA-Z][a-zA-Z0-9+.-]*:{_PATH}{_REST}"))
_format("hostname", _matched("[a-zA-Z0-9][a-zA-Z0-9.-]*"))
_format("duration", _matched(r"P(?=.)(\d+W|(\d+Y)?(\d+M)?(\d+D)?(T(?=.)(\d+H)?(\d+M)?(\d+S)?)?)"))
_HOUR = r"([01]\d|2[0-3]):[0-5]\d"
_TIME = rf"{_HOUR}:([0-5]\d|60)(\.\d+)?([zZ]|[+-]{_HOUR})"
_format(
    "date-time",
    lambda given: (date.fromisoformat(given[:10]), _matched(rf".{{10}}[tT]{_TIME}")(given)),
)
_format("time", _matched(_TIME))


def reference(schema: Any, dialect: str) -> Any:
    """A validator of another library than the one under test."""
    return DIALECTS[dialect](_without_openapi(schema), format_checker=FORMATS)


def _without_openapi(schema: Any) -> Any:
    """OpenAPI 3.0's words for what may be null too, and for exclusive bounds, in JSON Schema's."""
    if isinstance(schema, list):
        return [_without_openapi(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: _without_openapi(one) for name, one in schema.items()}
    for name, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if found.get(name) is True:
            found[name] = found.pop(bound)
    if found.pop("nullable", None) is True:
        definitions = {name: found.pop(name) for name in ("components",) if name in found}
        return {"anyOf": [found, {"type": "null"}], **definitions}
    return found


@lru_cache(maxsize=1)
def _bytes() -> LLTokenizer:
    return LLTokenizer("byte")


def matcher(source: str) -> LLMatcher:
    """At the beginning of an answer."""
    grammar = lark(Constraint("json_schema", source, exact=True))
    state = LLMatcher(_bytes(), grammar, limits=LIMITS, log_level=0)
    assert not state.is_error(), state.get_error()
    return state


def lets_through(state: LLMatcher, text: str) -> bool:
    tokens = _bytes().tokenize_bytes(text.encode())
    state = state.deep_copy()
    return state.try_consume_tokens(tokens) == len(tokens) and state.is_accepting()


def walked(state: LLMatcher, rng: random.Random, most: int = 400) -> str | None:
    """A text that the grammar lets through, by random steps; None where it took too many."""
    state, written = state.deep_copy(), bytearray()
    while len(written) < most:
        if state.is_accepting() and (state.is_stopped() or rng.random() < 0.5):
            return written.decode()
        bits = np.frombuffer(state.compute_bitmask(), dtype=np.uint8)
        allowed = np.unpackbits(bits, bitorder="little")[:256].nonzero()[0].tolist()
        assert allowed or state.is_accepting(), f"nothing may follow {written!r}"
        if not allowed:
            return written.decode()
        closing = [byte for byte in b'"}],' if byte in allowed]
        eager = 0.3 if len(written) < most // 4 else 0.9
        byte = rng.choice(closing if closing and rng.random() < eager else allowed)
        assert state.try_consume_tokens([byte]) == 1
        written.append(byte)
    return None


def corruptions(value: Any, rng: random.Random) -> Iterator[Any]:
    """Values that differ from one in one place."""
    places = list(_places(value))
    for path in rng.sample(places, min(len(places), 6)):
        for other in _others(_at(value, path), rng):
            changed = copy.deepcopy(value)
            if not path:
                yield other
                continue
            _at(changed, path[:-1])[path[-1]] = other
            yield changed


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    members = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, one in members:
        yield from _places(one, (*path, key))


def _at(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        value = value[key]
    return value


def _others(value: Any, rng: random.Random) -> list[Any]:
    found: list[Any] = [
        rng.choice([None, True, 0, -7, 2.5, "", "x y", [], {}, [1, "a"], {"zz": 1}])
    ]
    if isinstance(value, dict):
        found.append({name: value[name] for name in reversed(value)})
        found.append({**value, "other": 1})
        if value:
            gone = rng.choice(list(value))
            found.append({name: one for name, one in value.items() if name != gone})
    elif isinstance(value, list):
        found += [value[:-1], [*value, *value[-1:]], [*value, 1], value[::-1]]
    elif isinstance(value, bool):
        found.append(not value)
    elif isinstance(value, int | float):
        found += [-value, value + 1, value - 1, value * 5, float(value)]
    elif isinstance(value, str):
        found += [value + "a", value[:-1], value.upper()]
    return found


def compared(schema: Any, dialect: str, rng: random.Random, walks: int) -> Counter[str]:
    """Compare what a grammar lets through, and what `holds` says, with the reference.

    Returns:
        How many values of each kind there were; with what is wrong, the first fault is raised.
    """
    source = json.dumps(schema)
    if held(source).faults:
        return Counter(refused=1)
    found, valid, state = Counter(accepted=1), reference(schema, dialect).is_valid, matcher(source)
    form = Constraint("json_schema", source, exact=True)
    for _ in range(walks):
        text = walked(state, rng)
        value = None if text is None else json.loads(text)
        if text is None or not _is_finite(value):
            found["unfinished"] += 1
            continue
        if "Extended_Pictographic" in source and not valid(value):
            found["of another Unicode"] += 1  # its table became smaller with Unicode 17
            continue
        found["written"] += 1
        assert valid(value), f"written, but not valid: {text}"
        assert holds(form, text), f"written, but does not hold: {text}"
        for other in filter(_is_finite, corruptions(value, rng)):
            right, spaced = valid(other), json.dumps(other, ensure_ascii=False)
            compact = json.dumps(other, separators=(",", ":"))
            found["valid" if right else "not valid"] += 1
            assert {holds(form, spaced), holds(form, compact)} == {right}, f"{right}: {spaced}"
            written = laid_out(other, schema)
            if right and not _is_exact(other):
                continue
            assert lets_through(state, written) == right, f"{right}: {written}"
            assert right or not lets_through(state, spaced), f"not valid: {spaced}"
    return found


def _is_finite(value: Any) -> bool:
    return "Infinity" not in json.dumps(value)


def _is_exact(value: Any) -> bool:
    """Whether its numbers are not beyond the whole ones that grammars write."""
    if isinstance(value, list | dict):
        return all(map(_is_exact, value.values() if isinstance(value, dict) else value))
    return not isinstance(value, int | float) or abs(value) < 2**53


def laid_out(value: Any, schema: Any) -> str:
    """A value's JSON as grammars want it, its members as its schema lists them."""
    root = modern(schema)
    return _laid_out(value, [root], root.get("$defs", {}) if isinstance(root, dict) else {})


def _laid_out(value: Any, schemas: list[Any], defs: dict[str, Any]) -> str:
    if isinstance(value, float):  # bounded numbers may have no exponent
        return format(Decimal(repr(int(value) if value.is_integer() else value)), "f")
    if not isinstance(value, list | dict):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    parts = list(_parts(value, schemas, defs))
    listed = (one for part in parts for one in (part.get("const"), *part.get("enum", ())))
    value = next(
        (one for one in listed if Draft202012Validator({"const": one}).is_valid(value)), value
    )
    if isinstance(value, list):
        each = ((one, [_item(i, part) for part in parts]) for i, one in enumerate(value))
        return f"[{', '.join(_laid_out(one, said, defs) for one, said in each)}]"
    named = [name for part in parts for name in _names(part)]
    required = [name for part in parts for name in part.get("required", ())]
    for part in parts:
        depending = part.get("dependentRequired", {}).items()
        required += [other for name, others in depending if name in value for other in others]
    names = [name for name in dict.fromkeys([*named, *required, *value]) if name in value]
    members = (
        f"{_laid_out(name, [], defs)}: "
        + _laid_out(value[name], [_member(name, part) for part in parts], defs)
        for name in names
    )
    return f"{{{', '.join(members)}}}"


def _parts(value: Any, schemas: list[Any], defs: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Every schema that says something of a value."""
    left, seen = schemas[::-1], set[str]()
    while left:
        one = left.pop()
        if not isinstance(one, dict):
            continue
        yield one
        name = one.get("$ref", "").removeprefix("#/$defs/")
        if name in defs and name not in seen:
            seen.add(name)
            left.append(defs[name])
        left += reversed(one.get("allOf", ()))
        for choice in (*one.get("oneOf", ()), *one.get("anyOf", ())):
            whole = {**choice, "$defs": defs} if isinstance(choice, dict) else choice
            if Draft202012Validator(whole).is_valid(value):
                left.append(choice)
                break


def _names(schema: dict[str, Any]) -> list[str]:
    named = list(properties_of(schema))
    listed = schema.get("propertyNames")
    return [*named, *(listed.get("enum", ()) if isinstance(listed, dict) else ())]


def _member(name: str, schema: dict[str, Any]) -> Any:
    patterns = schema.get("patternProperties", {}).items()
    matching = next((one for pattern, one in patterns if regex.search(pattern, name)), None)
    return properties_of(schema).get(name, matching or schema.get("additionalProperties"))


def _item(place: int, schema: dict[str, Any]) -> Any:
    first = schema.get("prefixItems", ())
    return first[place] if place < len(first) else schema.get("items")
