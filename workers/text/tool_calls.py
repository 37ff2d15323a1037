"""How a family of models writes calls of tools: read from its own chat template.

The template is made to render a conversation whose assistant makes one call, and one whose
assistant makes two. What stands around the name and the arguments is the format, whatever the
family. Templates that write arguments otherwise than as one JSON object have none here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jinja2 import TemplateError

from orchestrator.types import CallFormat

Render = Callable[[Sequence[Mapping[str, Any]], bool], str]
"""A conversation to text, with tools; and whether a reply is to begin behind it."""

_ID = "baton000"  # some templates want nine letters and digits
_NAMES = ("batonfirst", "batonsecond")
_ARGUMENTS = [rf'\{{\s*"key"\s*:\s*"batonvalue{i}"\s*\}}' for i in range(2)]
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "",
            "parameters": {"type": "object", "properties": {"key": {"type": "string"}}},
        },
    }
    for name in _NAMES
]
"""Those of the trial conversations."""


def find_call_format(
    render: Render, controls: Sequence[str], thought: tuple[str, str] | None
) -> CallFormat | None:
    """A template's format; None where it has no place for tools, or an unknown form.

    Args:
        controls: texts of control tokens: the first one behind the last call ends the turn.
        thought: the markup around a thought, which the template may write before the calls.
    """
    for as_text in (False, True):
        try:
            begin = render([_user()], True)
            one = render([_user(), _assistant(1, as_text)], False)
        except (TemplateError, TypeError, ValueError):
            continue
        begin = begin.rstrip().removesuffix(thought[0].strip() if thought else "").rstrip()
        found = _places(one, 1)
        if found is None or not one.startswith(begin):
            continue
        ((name, end_of_name, arguments, end),) = found
        before = _without_thought(one[len(begin) : name], thought).lstrip("\n")
        after, middle = _up_to_control(one[end:], controls), one[end_of_name:arguments]
        if _ID in before + middle + after or any(one in before for one in controls if one in begin):
            return None  # a call has an id, or is a turn of its own
        return CallFormat(before, middle, after, _between(render, as_text, middle), as_text)
    return None


def _between(render: Render, as_text: bool, middle: str) -> str | None:
    try:
        text = render([_user(), _assistant(2, as_text)], False)
    except (TemplateError, TypeError, ValueError):
        return None
    found = _places(text, 2)
    if found is None:
        return None
    first, second = found
    between = text[first[3] : second[0]]
    same = text[second[1] : second[2]] == middle and _ID not in between
    return between if same else None


def _places(text: str, count: int) -> list[tuple[int, int, int, int]] | None:
    """Where the names and the arguments of the calls begin and end."""
    found: list[tuple[int, int, int, int]] = []
    for i in range(count):
        arguments = list(re.finditer(_ARGUMENTS[i], text))
        if not arguments:
            return None
        begin, end = arguments[-1].span()
        name = text.rfind(_NAMES[i], 0, begin)
        if name < 0 or (found and name < found[-1][3]):
            return None
        found.append((name, name + len(_NAMES[i]), begin, end))
    return found


def _without_thought(before: str, thought: tuple[str, str] | None) -> str:
    if thought is not None and thought[1].strip() and thought[1].strip() in before:
        return before.rpartition(thought[1].strip())[2]
    return before


def _up_to_control(text: str, controls: Sequence[str]) -> str:
    ends = [at for control in controls if control and (at := text.find(control)) >= 0]
    return text[: min(ends)] if ends else text


def _user() -> dict[str, Any]:
    return {"role": "user", "content": "?"}


def _assistant(count: int, as_text: bool) -> dict[str, Any]:
    calls = []
    for i in range(count):
        arguments = {"key": f"batonvalue{i}"}
        text = json.dumps(arguments)
        function = {"name": _NAMES[i], "arguments": text if as_text else arguments}
        calls.append({"id": f"{_ID}{i}", "type": "function", "function": function})
    return {"role": "assistant", "content": "", "tool_calls": calls}
