"""The items of a response's `input`, as the turns of a conversation.

An item is a message, a call of a function that an earlier answer made, what that gave back, or a
reasoning item. Reasoning goes with the calls behind it: there the model's chat template decides
whether it is shown again. All other reasoning is left out, as reasoning models are trained to
expect.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from pydantic_core import PydanticCustomError

from orchestrator.errors import InvalidRequest
from orchestrator.http.tools import TOOL_NAME, check_arguments
from orchestrator.types import Message, Role, ToolCall

_PART_TYPES = ("input_text", "output_text", "text", "summary_text")
_FIELDS = {
    "message": {"type", "role", "content", "id", "status", "phase"},
    "function_call": {"type", "id", "call_id", "name", "arguments", "status", "namespace"},
    "function_call_output": {"type", "id", "call_id", "output", "status"},
    "reasoning": {"type", "id", "summary", "content", "encrypted_content", "status"},
}


def read_input(given: object) -> object:
    """An `input`, a text or a list of items, as messages.

    Raises:
        PydanticCustomError: it is neither, or an item is not one of those above.
    """
    if isinstance(given, str):
        return (Message("user", given),)
    if not isinstance(given, list):
        raise PydanticCustomError("invalid_type", "must be a string or an array of items")
    turns: list[Message] = []
    called: dict[str, str] = {}
    reasoning = ""
    for item in given:
        kind = _kind(item)
        if kind == "reasoning":
            reasoning = _text(item.get("summary") or item.get("content") or "", "reasoning")
            continue
        if kind == "function_call":
            call = _call(item)
            called[call.id] = call.name
            last = turns[-1] if turns and turns[-1].role == "assistant" else None
            if last is None:
                turns.append(Message("assistant", "", calls=(call,), reasoning=reasoning))
            else:
                turns[-1] = replace(
                    last, calls=(*last.calls, call), reasoning=last.reasoning or reasoning
                )
        elif kind == "function_call_output":
            turns.append(_output(item, called))
        else:
            turns.append(_message(item))
        reasoning = reasoning if kind == "message" and turns[-1].role == "assistant" else ""
    return tuple(turns)


def _kind(item: object) -> str:
    kind = item.get("type", "message") if isinstance(item, dict) else None
    if not isinstance(kind, str) or kind not in _FIELDS:
        named = f"{kind[:64]!r} items" if isinstance(kind, str) else "such items"
        raise PydanticCustomError(
            "unsupported_parameter",
            "{named} are not supported: messages, reasoning items, function_call and "
            "function_call_output are",
            {"named": named},
        )
    assert isinstance(item, dict)
    if unknown := item.keys() - _FIELDS[kind]:
        raise PydanticCustomError(
            "unknown_parameter",
            "unknown in a {kind}: {names}",
            {"kind": kind, "names": ", ".join(sorted(map(str, unknown)))[:200]},
        )
    return kind


def _call(item: Mapping[str, Any]) -> ToolCall:
    call = ToolCall(*(_string(item, name) for name in ("call_id", "name", "arguments")))
    if not re.fullmatch(TOOL_NAME, call.name):
        raise PydanticCustomError("invalid_value", "name is no name of a function")
    try:
        check_arguments(call.arguments, "arguments")
    except InvalidRequest as error:
        raise PydanticCustomError("invalid_value", "{said}", {"said": str(error)}) from None
    return call


def _output(item: Mapping[str, Any], called: Mapping[str, str]) -> Message:
    call = _string(item, "call_id")
    if call not in called:
        raise PydanticCustomError(
            "invalid_value", "a function_call_output needs the call_id of a function_call before it"
        )
    text = _text(item.get("output"), "function_call_output")
    return Message("tool", text, call_id=call, name=called[call])


def _message(item: Mapping[str, Any]) -> Message:
    role = {"developer": "system"}.get(str(item.get("role")), item.get("role"))
    if role not in ("system", "user", "assistant"):
        raise PydanticCustomError(
            "invalid_value", "the role must be user, assistant, system or developer"
        )
    return Message(cast("Role", role), _text(item.get("content"), "message"))


def _string(item: Mapping[str, Any], name: str) -> str:
    value = item.get(name)
    if not isinstance(value, str) or not value:
        raise PydanticCustomError("invalid_type", "{name} must be a string", {"name": name})
    return value


def _text(content: object, kind: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        raise PydanticCustomError(
            "invalid_type",
            "the content of a {kind} must be a string or an array of parts",
            {"kind": kind},
        )
    for part in content:
        if not isinstance(part, dict) or part.get("type") not in (*_PART_TYPES, "reasoning_text"):
            raise PydanticCustomError("unsupported_parameter", "only text parts are supported")
        if not isinstance(part.get("text"), str):
            raise PydanticCustomError("invalid_type", "the text of a part must be a string")
    return "\n".join(part["text"] for part in content)
