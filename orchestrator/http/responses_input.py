"""The items of a response's `input`, as the turns of a conversation.

An item is a message, a call of a function that an earlier answer made, what that gave back, or a
reasoning item. Reasoning goes with the answer or the calls after it: the model's chat template
decides whether it is shown again. A null in an item means "not given": clients send items back with
all that they might hold.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from pydantic_core import InitErrorDetails, PydanticCustomError, ValidationError

from orchestrator.errors import InvalidRequest
from orchestrator.http.tools import TOOL_NAME, check_arguments, or_no_arguments
from orchestrator.types import Message, Role, ToolCall

_PART_TYPES = ("input_text", "output_text", "text", "summary_text", "reasoning_text")
_FIELDS = {
    "message": {"type", "role", "content", "id", "status", "phase"},
    "function_call": {
        "type", "id", "call_id", "name", "arguments", "parsed_arguments", "status", "namespace",
    },
    "function_call_output": {"type", "id", "call_id", "output", "status"},
    "reasoning": {"type", "id", "summary", "content", "encrypted_content", "status"},
}  # fmt: skip


def read_input(given: object) -> object:
    """An `input`, a text or a list of items, as messages.

    Raises:
        PydanticCustomError: it is neither.
        InvalidRequest: an item is not one of those above.
        ValidationError: there is more in items than they may hold.
    """
    if isinstance(given, str):
        return (Message("user", given),)
    if not isinstance(given, list):
        raise PydanticCustomError("invalid_type", "must be a string or an array of items")
    items = [
        {name: value for name, value in item.items() if value is not None}
        if isinstance(item, dict)
        else item
        for item in given
    ]
    kinds = [_kind(item, f"input[{i}]") for i, item in enumerate(items)]
    _check_fields(items, kinds)
    turns: list[Message] = []
    called: dict[str, str] = {}
    reasoning = ""
    for i, (kind, item) in enumerate(zip(kinds, items, strict=True)):
        place = f"input[{i}]"
        if kind == "reasoning":
            named = "summary" if item.get("summary") else "content"
            text = _text(item[named], f"{place}.{named}") if item.get(named) else ""
            reasoning = _lines(reasoning, text)
            continue
        if kind == "function_call":
            call = _call(item, place)
            called[call.id] = call.name
            last = turns[-1] if turns and turns[-1].role == "assistant" else None
            if last is None:
                turns.append(Message("assistant", "", calls=(call,), reasoning=reasoning))
            else:
                thought = _lines(last.reasoning, reasoning)
                turns[-1] = replace(last, calls=(*last.calls, call), reasoning=thought)
        elif kind == "function_call_output":
            turns.append(_output(item, called, place))
        else:
            turn = _message(item, place)
            if turn.role == "assistant":
                turn = replace(turn, reasoning=reasoning)
            last = turns[-1] if turns else None
            if turn.role == "assistant" and last and last.calls:
                # An answer may go on behind its calls: what they gave back follows all of it.
                text = _lines(last.content, turn.content)
                thought = _lines(last.reasoning, turn.reasoning)
                turns[-1] = replace(last, content=text, reasoning=thought)
            else:
                turns.append(turn)
        reasoning = ""
    return tuple(turns)


def _kind(item: object, place: str) -> str:
    kind = item.get("type", "message") if isinstance(item, dict) else None
    if not isinstance(kind, str) or kind not in _FIELDS:
        named = f"{kind[:64]!r} items" if isinstance(kind, str) else "such items"
        raise _wrong(
            place,
            f"{named} are not supported: messages, reasoning items, function_call and "
            "function_call_output are",
            "unsupported_parameter",
        )
    return kind


def _check_fields(items: list[Any], kinds: list[str]) -> None:
    """Refuse what items hold that is not known there, all of it at once."""
    unknown = [
        InitErrorDetails(type="extra_forbidden", loc=(i, str(name)), input=item[name])
        for i, (item, kind) in enumerate(zip(items, kinds, strict=True))
        for name in sorted(item.keys() - _FIELDS[kind])
    ]
    if unknown:
        raise ValidationError.from_exception_data("input", unknown)


def _call(item: Mapping[str, Any], place: str) -> ToolCall:
    given = {**item, "arguments": or_no_arguments(item.get("arguments"))}
    call = ToolCall(*(_string(given, name, place) for name in ("call_id", "name", "arguments")))
    if not re.fullmatch(TOOL_NAME, call.name):
        raise _wrong(f"{place}.name", "is no name of a function")
    check_arguments(call.arguments, f"{place}.arguments")
    return call


def _output(item: Mapping[str, Any], called: Mapping[str, str], place: str) -> Message:
    call = _string(item, "call_id", place)
    if call not in called:
        raise _wrong(
            f"{place}.call_id", "expected that of a function_call before it, none has this one"
        )
    text = _text(item.get("output"), f"{place}.output")
    return Message("tool", text, call_id=call, name=called[call])


def _message(item: Mapping[str, Any], place: str) -> Message:
    role = {"developer": "system"}.get(str(item.get("role")), item.get("role"))
    if role not in ("system", "user", "assistant"):
        raise _wrong(f"{place}.role", "must be user, assistant, system or developer")
    return Message(cast("Role", role), _text(item.get("content"), f"{place}.content"))


def _string(item: Mapping[str, Any], name: str, place: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise _wrong(f"{place}.{name}", "must be a string", "invalid_type")
    if not value:
        raise _wrong(f"{place}.{name}", "must not be empty")
    return value


def _text(content: object, place: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        raise _wrong(place, "must be a string or an array of parts", "invalid_type")
    for i, part in enumerate(content):
        if not isinstance(part, dict) or part.get("type") not in _PART_TYPES:
            raise _wrong(f"{place}[{i}]", "only text parts are supported", "unsupported_parameter")
        if not isinstance(part.get("text"), str):
            raise _wrong(f"{place}[{i}].text", "must be a string", "invalid_type")
    return "\n".join(part["text"] for part in content)


def _lines(*texts: str) -> str:
    """What is said in these texts, one below the other."""
    return "\n".join(filter(None, texts))


def _wrong(place: str, message: str, code: str = "invalid_value") -> InvalidRequest:
    return InvalidRequest(f"{place}: {message}", param=place, code=code)
