"""A request's body: of bounded size, here in time, and JSON that can be kept."""

from __future__ import annotations

import asyncio
import json
import math
from typing import Any, Final, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError

from orchestrator.errors import InvalidRequest
from orchestrator.http.errors import HttpError
from orchestrator.http.limits import ServiceLimits
from orchestrator.validation import body_path, invalid_request

Body = TypeVar("Body", bound=BaseModel)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"expected a number that JSON can hold, got {text}")
    return number


FINITE_JSON: Final = json.JSONDecoder(parse_float=_finite, parse_constant=_finite)
"""Reads JSON as it is defined: `NaN`, `Infinity` and numbers beyond a float's are ValueErrors."""
MAX_DEPTH: Final = 32  # levels of nesting of a body
MAX_VALUES: Final = 20_000  # values in a body: bounds the time that validation takes


async def json_body(request: Request, limits: ServiceLimits) -> bytes:
    """The whole body, announced as JSON, of bounded size, and here in time.

    A browser may post forms and plain text to other origins without permission; those are refused.

    Raises:
        InvalidRequest: it is announced as something else.
        HttpError: 413, it is too large; 408, it did not arrive in time.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise InvalidRequest(
            "the body must be JSON (Content-Type: application/json)", code="invalid_content_type"
        )
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced[:20]) > limits.body_bytes:
        raise _too_large(limits)
    body = bytearray()
    try:
        async with asyncio.timeout(limits.body_s):
            async for piece in request.stream():
                body += piece
                if len(body) > limits.body_bytes:
                    raise _too_large(limits)
    except TimeoutError:
        message = f"the body did not arrive within {limits.body_s:g} s"
        raise HttpError(408, message, code="request_timeout") from None
    return bytes(body)


async def json_object(request: Request, limits: ServiceLimits) -> dict[str, Any]:
    """The body as a JSON object, read in a thread: a large one would hold up everybody.

    Raises: as `json_body` and `parse_object`.
    """
    return await asyncio.to_thread(parse_object, await json_body(request, limits))


def parse_object(body: bytes) -> dict[str, Any]:
    """A JSON object whose numbers are finite and whose text is storable Unicode.

    Raises:
        InvalidRequest: anything else.
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


async def read_body(request: Request, limits: ServiceLimits, kind: type[Body]) -> Body:
    """The request's body as a model of that kind.

    Raises:
        InvalidRequest: a field is unknown or has a wrong value, by name.
    """
    try:
        return kind.model_validate(await json_object(request, limits))
    except ValidationError as error:
        raise invalid_request(error, model=kind) from None


def nesting(value: object) -> int:
    """How many levels deep a JSON value is."""
    levels, level = 0, [value]
    while level:
        levels += 1
        inner = [one for one in level if isinstance(one, dict | list)]
        level = [each for one in inner for each in (one.values() if isinstance(one, dict) else one)]
    return levels


def _too_large(limits: ServiceLimits) -> HttpError:
    message = f"the body is larger than {limits.body_bytes} bytes (limits.body_bytes)"
    return HttpError(413, message, code="request_too_large")


def _check_values(root: dict[str, Any]) -> None:
    """Refuse deep or crowded bodies, and text that neither a tokenizer nor a store can hold."""
    todo: list[tuple[object, tuple[int | str, ...]]] = [(root, ())]
    seen = 0
    while todo:
        value, loc = todo.pop()
        seen += 1
        if seen > MAX_VALUES or len(loc) > MAX_DEPTH:
            place = body_path(loc[:1])
            raise InvalidRequest(
                f"{place}: too many values, or nested too deep", param=place, code="invalid_value"
            )
        if isinstance(value, str):
            _check_text(value, loc)
        elif isinstance(value, dict):
            for key, inner in value.items():
                _check_text(key, loc)
                todo.append((inner, (*loc, key)))
        elif isinstance(value, list) and not _are_ids(value):
            todo.extend((inner, (*loc, index)) for index, inner in enumerate(value))


def _are_ids(values: list[object]) -> bool:
    """Whether a list holds token ids alone: checked as a whole, it counts as one value."""
    return all(type(value) is int for value in values)


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
