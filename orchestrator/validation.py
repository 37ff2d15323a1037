"""Validation errors as Baton's own: what pydantic finds wrong, in OpenAI's terms.

Request bodies, published policies and experiment documents are all checked by pydantic; each error
names the place by which a user finds it.
"""

from __future__ import annotations

from pydantic import ValidationError

from orchestrator.errors import InvalidRequest


def invalid_request(error: ValidationError, prefix: str = "") -> InvalidRequest:
    """The first of pydantic's errors in OpenAI's terms, its place behind `prefix`."""
    first = error.errors(include_url=False, include_input=False)[0]
    kind = first["type"]
    place = body_path(first["loc"], prefix)
    match kind:
        case "extra_forbidden":
            code, message = "unknown_parameter", "unknown parameter"
        case "missing":
            code, message = "missing_required_parameter", "missing"
        case "too_short":
            code, message = "invalid_value", "must not be empty"
        case "unsupported_parameter" | "invalid_value" | "invalid_type":
            code, message = kind, first["msg"]
        case _:
            code = "invalid_type" if kind.endswith("_type") else "invalid_value"
            message = first["msg"][:1].lower() + first["msg"][1:]
    return InvalidRequest(f"{place or 'body'}: {message}", param=place or None, code=code)


def body_path(loc: tuple[int | str, ...], prefix: str = "") -> str:
    """A place in a body as OpenAI writes it: `messages[0].content`."""
    for part in loc:
        if isinstance(part, int):
            prefix += f"[{part}]"
        else:
            prefix += ("." if prefix else "") + part[:64]
    return prefix
