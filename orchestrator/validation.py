"""Pydantic's validation errors as Baton's own, in a user's words.

Pydantic checks deployment files, request bodies, published policies and experiment documents. Each
error names the place as the user wrote it, what was expected there and what came.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from types import UnionType
from typing import Annotated, Any, Final, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, field_validator
from pydantic_core import ErrorDetails, PydanticCustomError

from orchestrator.errors import ConfigError, InvalidRequest

_FIELDS: Final = "__pydantic_fields__"
_KEY: Final = "[key]"
_BRANCHES: Final = frozenset(
    {"str", "int", "float", "bool", "constrained-str", "constrained-int", "constrained-float"}
)
"""Branches of a union that pydantic adds to a place by these names; others have a bracket."""
_PLAIN: Final = (
    (r"^Keys should be strings$", "a key must be a string"),
    (r"^URL scheme should be ", "must be a URL of "),
    (r"^(Input|URL input|\w+) should ", "must "),
    (r", (unable to|got) .*", ""),
    (r"an? (valid )?(dictionary|object)( or (an )?instance of \w+)?", "an object"),
    (r"an? valid (list|array|tuple)", "a list"),
    (r"a valid boolean", "true or false"),
    (r"a valid integer", "an integer"),
    (r"^Input is not a valid path.*", "must be a path"),
    (r"(an?) valid ", r"\1 "),
    (r"less than or equal to", "at most"),
    (r"greater than or equal to", "at least"),
    (r" after validation|, not more$", ""),
)
"""Patterns of pydantic's words, and plainer words for them."""
_SECRET: Final = re.compile(
    r"(auth|key|password|secret|token_env|headers|url|endpoint)[^.]*|(^|\.)(store|tracing)$"
)
"""Places whose value, even a wrong one, may be or hold a secret."""
_POWER: Final = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]{1,3}")
_LONGEST: Final = 48  # characters of a value that a message repeats
_MOST_NAMES: Final = 24  # names that a message lists
_CLOSE: Final = 0.75  # difflib's ratio from which names are close: threshold, treshold have 0.94


class StrictModel(BaseModel):
    """A document that users write: an unknown key is an error, and so is true for a number."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @field_validator("*", mode="before")
    @classmethod
    def _numbers(cls, value: Any, info: ValidationInfo) -> Any:
        kind = cls.model_fields[str(info.field_name)].annotation
        kinds = {kind, *get_args(kind)}
        return refuse_truth(value) if kinds & {int, float} and bool not in kinds else value


def refuse_truth(value: Any) -> Any:
    """Refuse true for a number: YAML reads `yes` and `on` as true, and pydantic reads that as 1."""
    if isinstance(value, bool):
        raise PydanticCustomError("invalid_type", f"must be a number, not {str(value).lower()}")
    return value


def with_numbers(data: Any) -> Any:
    """Replace texts such as 1e-3 by numbers: YAML 1.1 reads only 1.0e-3 as one."""
    if isinstance(data, dict):
        return {key: with_numbers(value) for key, value in data.items()}
    if isinstance(data, list):
        return [with_numbers(value) for value in data]
    return float(data) if isinstance(data, str) and _POWER.fullmatch(data) else data


@contextmanager
def refusing(before: str = "", instead_of: str = "") -> Iterator[None]:
    """Raise a ConfigError as the ValueError that pydantic expects, with `before` before its text,
    in place of the text's prefix `instead_of`."""
    try:
        yield
    except ConfigError as error:
        raise ValueError(before + str(error).removeprefix(instead_of)) from None


def invalid_request(
    error: ValidationError,
    prefix: str = "",
    model: type[BaseModel] | None = None,
    what: str = "parameter",
) -> InvalidRequest:
    """Return the first of pydantic's errors in OpenAI's form, its place after `prefix`.

    With the `model` that was validated, the message on an unknown parameter names the known ones.
    `what` is the word for a parameter there.
    """
    kind, loc, message = next(each_error(error.errors(include_url=False), model, what))
    place = body_path(loc, prefix)
    match kind:
        case "extra_forbidden" | "unexpected_keyword_argument":
            code = "unknown_parameter"
        case "missing":
            code = "missing_required_parameter"
        case "unsupported_item":
            code = "unsupported_parameter"
        case "unsupported_parameter" | "invalid_value" | "invalid_type":
            code = kind
        case _:
            code = "invalid_type" if kind.endswith("_type") else "invalid_value"
    return InvalidRequest(f"{place or 'body'}: {message}", param=place or None, code=code)


def each_error(
    details: Sequence[ErrorDetails], model: type[BaseModel] | None, what: str
) -> Iterator[tuple[str, tuple[int | str, ...], str]]:
    """Yield the type, place and text of each of pydantic's errors.

    A union has an error for each branch: the one with the deepest place counts, and the texts of
    errors at the same place are joined.
    """
    left = [(place_of(one["loc"]), one) for one in details]
    while left:
        first = left[0][0]
        # The places of a union's branches begin alike.
        alike = [place for place, _ in left if place[: len(first)] == first[: len(place)]]
        furthest = max(alike, key=len)
        same = [detail for place, detail in left if place == furthest]
        left = [one for one in left if one[0] != furthest[: len(one[0])]]
        texts = [error_text(one, model, what) for one in same]
        text = texts[0]
        if len(same) > 1 and all(one.startswith("must be ") for one in texts):
            parts = (one.removeprefix("must be ").partition(", not ")[0] for one in texts)
            _, divider, came = text.partition(", not ")
            text = f"must be {' or '.join(dict.fromkeys(parts))}{divider}{came}"
        yield same[0]["type"], furthest, text


def place_of(loc: Sequence[int | str]) -> tuple[int | str, ...]:
    """Return pydantic's place without its additions: names of a union's branches, marks of keys."""
    return tuple(part for part in loc if not (isinstance(part, str) and _is_branch(part)))


def _is_branch(part: str) -> bool:
    return "[" in part or part in _BRANCHES


def error_text(detail: ErrorDetails, model: type[BaseModel] | None, what: str) -> str:
    """Return what is expected and what came: `must be an integer, not 'high'`.

    Only short values are repeated, and none that may be a secret. `model` is the model that was
    validated, and `what` the word for one of its fields.
    """
    loc, message = detail["loc"], detail["msg"]
    match detail["type"]:
        case "extra_forbidden" | "unexpected_keyword_argument":
            return unknown(what, str(loc[-1]), fields_at(model, loc))
        case "missing":
            return "is missing"
        case "too_short" if detail["ctx"]["min_length"] == 1:
            return "must not be empty"
        case (
            "value_error"
            | "unsupported_parameter"
            | "unsupported_item"
            | "invalid_value"
            | "invalid_type"
        ):  # ours
            return message.removeprefix("Value error, ")
    for pattern, plain in _PLAIN:
        message = re.sub(pattern, plain, message)
    message = message[:1].lower() + message[1:]
    if loc and loc[-1] == _KEY:
        message = f"a key {message}"
    said = None if ", not " in message or detail["type"] == "invalid_key" else _said(detail)
    return message if said is None else f"{message}, not {said}"


def unknown(what: str, name: str, known: Collection[str]) -> str:
    """Return the message about an unknown name, with the closest known one, or all if few."""
    if meant := closest(name, known):
        return f"unknown {what}{meant}"
    if 0 < len(known) <= _MOST_NAMES:
        return f"unknown {what}; there are {', '.join(sorted(known))}"
    return f"unknown {what}"


def closest(name: str, known: Collection[str]) -> str:
    """Return the end of a message about an unknown name: the known one that may be meant."""
    begun = [one for one in known if len(name) > 2 and one.startswith(name)]
    close = begun or difflib.get_close_matches(name[:64], known, n=1, cutoff=_CLOSE)
    return f"; did you mean {close[0]}?" if close else ""


def fields_at(model: type | None, loc: Sequence[int | str]) -> list[str]:
    """Return the fields of the object in which an error's place is; [] if that is unclear."""
    for part in loc[:-1]:
        if isinstance(part, int) or _is_branch(part):  # an item of a list, a branch of a union
            continue
        if model is not None and part == model.__name__:  # such a branch too
            continue
        fields = {} if model is None else _fields_of(model)
        if part not in fields:
            return []
        model = _model_in(fields[part])
    return [] if model is None else list(_fields_of(model))


def body_path(loc: tuple[int | str, ...], prefix: str = "") -> str:
    """Return a place in a body as OpenAI writes it: `messages[0].content`."""
    for part in loc:
        if isinstance(part, int):
            prefix += f"[{part}]"
        else:
            prefix += ("." if prefix else "") + part[:64]
    return prefix


def _fields_of(model: type) -> dict[str, Any]:
    """Map the names that users write to annotations, of a pydantic model or dataclass."""
    fields: dict[str, Any] = getattr(model, _FIELDS)
    return {one.alias or name: one.annotation for name, one in fields.items()}


def _said(detail: ErrorDetails) -> str | None:
    """Return the wrong value as a message repeats it; None if it must not."""
    value, place = detail["input"], ".".join(map(str, place_of(detail["loc"])))
    if _SECRET.search(place) or not isinstance(value, str | int | float | None):
        return None
    if isinstance(value, bool | None):
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, int) and value.bit_length() > 128:  # Python may refuse to write it
        return None
    said = repr(value)
    return said if len(said) <= _LONGEST else None


def _model_in(annotation: Any) -> type | None:
    """Return the only model in `X`, `X | other`, `list[X]` or `tuple[X, ...]`."""
    if isinstance(annotation, type) and hasattr(annotation, _FIELDS):
        return annotation
    if get_origin(annotation) is Annotated:
        return _model_in(get_args(annotation)[0])
    if get_origin(annotation) not in (Union, UnionType, list, tuple):
        return None
    found = {model for arg in get_args(annotation) if (model := _model_in(arg)) is not None}
    return found.pop() if len(found) == 1 else None
