"""How a family of models writes calls of tools: read from its own chat template.

The template is made to render a conversation whose assistant makes one call, and one whose
assistant makes two. What stands around the name and the arguments is the format, whatever the
family: arguments may be one JSON object, or each in tags of its own. A call may have an id behind
its arguments. Templates that put one before them, that make a call a turn of its own, or that write
arguments otherwise have no format here, and those that do not show the tools neither.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jinja2 import TemplateError

from orchestrator.types import ArgumentFormat, CallFormat

Render = Callable[[Sequence[Mapping[str, Any]], bool], str]
"""A conversation to text, with tools; and whether a reply is to begin behind it."""

_ID = "baton000"  # some templates want nine letters and digits: a digit follows
_NAMES = ("batonfirst", "batonsecond")
_ARGUMENTS = [rf'\{{\s*"key"\s*:\s*"batonvalue{i}"\s*\}}' for i in range(2)]
_TAGGED = {"batonkey": "batonvalue", "batonother": "batonlast"}
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
        if found is None or not one.startswith(begin) or not _shows_tools(begin):
            continue
        ((name, end_of_name, arguments, end),) = found
        before = _without_thought(one[len(begin) : name], thought).lstrip("\n")
        after, middle = _up_to_control(one[end:], controls), one[end_of_name:arguments]
        if _ID in before + middle or any(one in before for one in controls if one in begin):
            return None  # a call begins with an id, or is a turn of its own
        between = _between(render, as_text, middle)
        return CallFormat(before, middle, _with_id(after), between, as_text)
    return _find_tagged(render, controls, thought)


def _find_tagged(
    render: Render, controls: Sequence[str], thought: tuple[str, str] | None
) -> CallFormat | None:
    """The format of a template that writes each argument in tags of its own."""
    trials: list[list[dict[str, str]]] = [[_TAGGED], [_TAGGED, _TAGGED], [{}]]
    try:
        begin = render([_user()], True)
        one, two, none = (render([_user(), _calling(given)], False) for given in trials)
    except (TemplateError, TypeError, ValueError):
        return None
    begin = begin.rstrip().removesuffix(thought[0].strip() if thought else "").rstrip()
    texts = [text for pair in _TAGGED.items() for text in pair]
    found = _parts(one, [_NAMES[0], *texts])
    if found is None or not one.startswith(begin) or not _shows_tools(begin):
        return None
    head, opening, middle, next_one, again, rest = found
    before = _without_thought(head[len(begin) :], thought).lstrip("\n")
    each = opening[max(0, opening.rfind("<")) :]
    end, tail = next_one.removesuffix(each), _up_to_control(rest, controls)
    name_end, after = opening.removesuffix(each), tail.removeprefix(end)
    bare = _parts(none, [_NAMES[0]])
    if (
        not (each and name_end and end and next_one == end + each and tail == end + after)
        or middle != again
        or bare is None
        or not bare[1].startswith(name_end + after)
        or any(_ID in part or "baton" in part for part in (before, opening, middle, tail))
        or any(one in before for one in controls if one in begin)
    ):
        return None
    calls = _parts(two, [_NAMES[0], *texts, _NAMES[1], *texts])
    between = None
    if calls is not None and calls[5].startswith(end) and calls[6] == opening:
        between = calls[5].removeprefix(end)
    return CallFormat(before, name_end, after, between, each=ArgumentFormat(each, middle, end))


def _parts(text: str, marks: Sequence[str]) -> list[str] | None:
    """What stands before, between and behind these texts, the last time that they come in turn."""
    parts, end = list[str](), len(text)
    for mark in reversed(marks):
        at = text.rfind(mark, 0, end)
        if at < 0:
            return None
        parts.insert(0, text[at + len(mark) : end])
        end = at
    return [text[:end], *parts]


def _shows_tools(text: str) -> bool:
    return all(name in text for name in _NAMES)


def _with_id(text: str) -> str:
    return re.sub(_ID + "[0-9]", CallFormat.ID, text)


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
    return _with_id(between) if text[second[1] : second[2]] == middle else None


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
    given = [{"key": f"batonvalue{i}"} for i in range(count)]
    return _calling([json.dumps(one) for one in given] if as_text else given)


def _calling(arguments: Sequence[Any]) -> dict[str, Any]:
    calls = []
    for i, given in enumerate(arguments):
        function = {"name": _NAMES[i], "arguments": given}
        calls.append({"id": f"{_ID}{i}", "type": "function", "function": function})
    return {"role": "assistant", "content": "", "tool_calls": calls}
