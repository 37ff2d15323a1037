"""A request's body: read in bounded size and time, parsed as JSON, validated by name.

A parameter that changes an answer is honoured or refused, never silently ignored.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Collection, Mapping, Sequence
from itertools import islice
from typing import Any, ClassVar, Final, TypeVar

from fastapi import Request
from pydantic import BaseModel, ConfigDict, Discriminator, ValidationError

from orchestrator.errors import InvalidRequest
from orchestrator.http.errors import HttpError
from orchestrator.http.settings import HttpSettings
from orchestrator.loop.policy import Policy
from orchestrator.validation import body_path, closest, invalid_request

Json = dict[str, Any]
Body = TypeVar("Body", bound=BaseModel)
Parsed = TypeVar("Parsed", bound="Parameters")

UNSUPPORTED_ITEM: Final = "unsupported_item"
"""Pydantic's type of an error about an item of a list that cannot be honoured."""
_LONGEST_NAME: Final = 128  # characters of a parameter's name or place that an error repeats
_MOST_NAMES: Final = 16  # that an error lists


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"expected a number that JSON can hold, got {text}")
    return number


FINITE_JSON: Final = json.JSONDecoder(parse_float=_finite, parse_constant=_finite)
"""Reads strict JSON: `NaN`, `Infinity` and numbers beyond a float's range are ValueErrors."""
MAX_DEPTH: Final = 32  # levels of nesting of a body
MAX_VALUES: Final = 20_000  # values in a body: bounds the time that validation takes


def read_json(text: str) -> Any:
    """Return the value of a text of strict JSON; None for any other text."""
    try:
        return FINITE_JSON.decode(text)
    except (ValueError, RecursionError):  # bad JSON, NaN, a number of thousands of digits
        return None


class Given(BaseModel):
    """A body of a client, or a part of one: strict types, no unknown keys."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


def by_type(error: str, message: str, default: str | None = None) -> Discriminator:
    """Return what chooses a branch of a union by an object's `type`: the one with the tag `[type]`.

    `default` stands for a type that is not given; `error` and `message` are of any other value.
    """
    return Discriminator(
        lambda given: f"[{given.get('type') or default}]" if isinstance(given, dict) else None,
        custom_error_type=error,
        custom_error_message=message,
    )


def without_nulls(given: object) -> object:
    """Return an object without its null fields: null means not given, as clients send back all
    fields of what they got."""
    if not isinstance(given, dict):
        return given
    return {name: value for name, value in given.items() if value is not None}


class Parameters(Given):
    """The parameters of a request for a text; null means not given.

    Attributes:
        hints: further parameters, which change no answer.
        unsupported: further parameters that Baton lacks, with the values that mean the default.
    """

    # The JSON schema lists no hints, and so allows further names.
    model_config = ConfigDict(json_schema_extra={"additionalProperties": True})

    hints: ClassVar[frozenset[str]] = frozenset()
    unsupported: ClassVar[Mapping[str, tuple[object, ...]]] = {}


async def json_body(request: Request, settings: HttpSettings) -> bytes:
    """Read a whole JSON body, in bounded size and time.

    Other content types are refused: a browser may post those to other origins without permission.

    Raises:
        InvalidRequest: its content type is not JSON.
        HttpError: 413, it is too large; 408, it did not arrive in time.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise InvalidRequest(
            "the body must be JSON (Content-Type: application/json)", code="invalid_content_type"
        )
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced[:20]) > settings.limits.body_bytes:
        raise _too_large(settings)
    body = bytearray()
    try:
        async with asyncio.timeout(settings.patience.body_s):
            async for piece in request.stream():
                body += piece
                if len(body) > settings.limits.body_bytes:
                    raise _too_large(settings)
    except TimeoutError:
        message = f"the body did not arrive within {settings.patience.body_s:g} s"
        raise HttpError(408, message, code="request_timeout") from None
    return bytes(body)


async def json_object(request: Request, settings: HttpSettings) -> dict[str, Any]:
    """Read the body as a JSON object, in a thread: a large one would block other requests.

    Raises: as `json_body` and `parse_object`.
    """
    return await asyncio.to_thread(parse_object, await json_body(request, settings))


def parse_object(body: bytes) -> dict[str, Any]:
    """Parse a JSON object, not too large, with finite numbers and storable Unicode.

    Raises:
        InvalidRequest: the body is something else.
    """
    if not body.strip():
        raise InvalidRequest("the body is empty, not a JSON object", code="invalid_json")
    try:
        value = FINITE_JSON.decode(body.decode())
    except UnicodeDecodeError as error:
        message = f"the body is not UTF-8 text at byte {error.start}"
        raise InvalidRequest(message, code="invalid_json") from None
    except (ValueError, RecursionError) as error:
        # ValueError: bad JSON, NaN or Infinity, a number of thousands of digits.
        at = f" at character {error.pos}" if isinstance(error, json.JSONDecodeError) else ""
        raise InvalidRequest(f"the body is not valid JSON{at}", code="invalid_json") from None
    if not isinstance(value, dict):
        raise InvalidRequest("the body must be a JSON object", code="invalid_json")
    _check_values(value)
    return value


async def read_body(request: Request, settings: HttpSettings, kind: type[Body]) -> Body:
    """Read the request's body as a `kind`.

    Raises:
        InvalidRequest: a field is unknown or has a wrong value; names it.
    """
    try:
        return kind.model_validate(await json_object(request, settings))
    except ValidationError as error:
        raise invalid_request(error, model=kind) from None


def contradiction(place: str, message: str) -> InvalidRequest:
    """Return the error of a body whose parts contradict each other at that place."""
    return InvalidRequest(f"{place}: {message}", param=place, code="invalid_value")


def nesting(value: object) -> int:
    """Count the levels of a JSON value."""
    levels, level = 0, [value]
    while level:
        levels += 1
        inner = [one for one in level if isinstance(one, dict | list)]
        level = [each for one in inner for each in (one.values() if isinstance(one, dict) else one)]
    return levels


def _too_large(settings: HttpSettings) -> HttpError:
    message = f"the body is larger than {settings.limits.body_bytes} bytes (limits.body_bytes)"
    return HttpError(413, message, code="request_too_large")


def _check_values(root: dict[str, Any]) -> None:
    """Refuse deep or crowded bodies, and text that a tokenizer or a store cannot hold."""
    todo: list[tuple[object, tuple[int | str, ...]]] = [(root, ())]
    seen = 0
    while todo:
        value, loc = todo.pop()
        seen += 1
        if seen + len(todo) > MAX_VALUES or len(loc) > MAX_DEPTH:
            place = body_path(loc[:1])
            raise InvalidRequest(
                f"{place}: too many values, or nested too deep", param=place, code="invalid_value"
            )
        # The input of an earlier call becomes JSON, which escapes what a text cannot hold.
        is_input = loc[:1] == ("messages",) and loc[4:5] == ("input",)
        if isinstance(value, str):
            if not is_input:
                _check_text(value, loc)
        elif isinstance(value, dict):
            for key, inner in value.items():
                if not is_input:
                    _check_text(key, loc)
                todo.append((inner, (*loc, key)))
        # A prompt of token ids counts as one value, and needs no check.
        elif isinstance(value, list) and not (loc[:1] == ("prompt",) and _are_ids(value)):
            inside = islice(value, MAX_VALUES)
            todo.extend((inner, (*loc, index)) for index, inner in enumerate(inside))


def _are_ids(value: list[Any]) -> bool:
    return all(type(one) is int for one in value)


def _check_text(text: str, loc: tuple[int | str, ...]) -> None:
    try:
        text.encode()
        if "\0" not in text:
            return
    except UnicodeEncodeError:
        pass
    raise InvalidRequest(
        f"{body_path(loc) or 'body'}: holds a NUL or half of a surrogate pair",
        param=body_path(loc) or None,
        code="invalid_value",
    )


def parse_request(
    body: bytes, kind: type[Parsed], *, strict: bool = True
) -> tuple[Parsed, tuple[str, ...]]:
    """Read a request from its bytes; return it with warnings.

    Unless `strict`, a parameter that cannot be honoured is left out with a warning, at any depth.

    Raises:
        InvalidRequest: not JSON, an unknown key, or a value that cannot be honoured; names it.
    """
    found, fields = parse_object(body), kind.model_fields.keys()
    given = {name: value for name, value in found.items() if value is not None}
    refused = [
        name
        for name, harmless in kind.unsupported.items()
        if name in given and name not in fields
        if not any(_same(given[name], one) for one in harmless)
        # The best n of n are all of them.
        if name != "best_of" or not _same(given[name], given.get("n"))
    ]
    unknown = sorted(given.keys() - fields - kind.unsupported.keys() - kind.hints)
    if strict and (refused or unknown):
        raise _refusal(refused, unknown, fields)
    given = {name: value for name, value in given.items() if name in fields}
    request, within = _validated(kind, given, strict)
    if refused or unknown or within:
        return request, (f"{_refusal(refused, [*unknown, *within]).message}, and left out",)
    return request, ()


def _validated(kind: type[Parsed], given: dict[str, Any], strict: bool) -> tuple[Parsed, list[str]]:
    """Return the request, and the places of what was left out within its parameters."""
    left_out: list[str] = []
    while True:
        try:
            return kind.model_validate(given), left_out
        except ValidationError as error:
            places = {} if strict else _places(error, given)
            if not places:
                raise invalid_request(error, model=kind) from None
            left_out += places.values()
            for place in reversed(places):
                del _at(given, place[:-1])[place[-1]]


def _places(error: ValidationError, given: dict[str, Any]) -> dict[tuple[int | str, ...], str]:
    """Return the places of all that may be left out, each with its name for a message."""
    found = dict[tuple[int | str, ...], str]()
    for one in error.errors(include_url=False):
        known = one["type"] in ("extra_forbidden", UNSUPPORTED_ITEM)
        if known and (place := _written(one["loc"], given)):
            kind = one.get("ctx", {}).get("kind")
            found[place] = body_path(place) + (f" ({kind})" if kind else "")
    return found


def _written(loc: Sequence[int | str], given: Any) -> tuple[int | str, ...]:
    """Return pydantic's place without branches of unions, which the client did not write; empty if
    there is no such place."""
    place: list[int | str] = []
    for part in loc:
        is_key = part in given if isinstance(given, dict) else isinstance(part, int)
        if is_key:
            place.append(part)
            given = _at(given, [part])
    return tuple(place) if is_key else ()


def _at(value: Any, place: Sequence[int | str]) -> Any:
    """Return the value at a place in a JSON value; None if there is no such place."""
    for part in place:
        try:
            value = value[part]
        except (LookupError, TypeError):
            return None
    return value


def _refusal(
    refused: Sequence[str], unknown: Sequence[str], known: Collection[str] = ()
) -> InvalidRequest:
    """Return one error for all parameters that cannot be honoured, unsupported ones first.

    If names are `known`, it says what an unknown one may be: one of them, or a policy's parameter.
    """
    first = (*refused, *unknown)[0][:_LONGEST_NAME]
    said = [
        _named_together(names) + f" {'is' if len(names) == 1 else 'are'} {what}"
        for names, what in ((refused, "not supported here"), (unknown, "unknown here"))
        if names
    ]
    code = "unsupported_parameter" if refused else "unknown_parameter"
    meant = ""
    if known and len(unknown) == 1:
        misplaced = unknown[0] in Policy.model_fields
        meant = "; it goes under policy" if misplaced else closest(unknown[0], known)
    return InvalidRequest("; ".join(said) + meant, param=first, code=code)


def _named_together(names: Sequence[str]) -> str:
    """List names for an error; if there are many, join those that differ only by an index."""
    if len(names) > _MOST_NAMES:
        names = list(dict.fromkeys(re.sub(r"\[\d+\]", "[*]", name) for name in names))
    more = len(names) - _MOST_NAMES
    said = ", ".join(name[:_LONGEST_NAME] for name in names[:_MOST_NAMES])
    return f"{said} and {more} more" if more > 0 else said


def _same(value: object, allowed: object) -> bool:
    # True == 1 in Python, yet n: true is no number.
    return value == allowed and isinstance(value, bool) == isinstance(allowed, bool)
