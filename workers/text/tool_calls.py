"""How a family of models writes calls of tools: read from its own chat template.

The template is made to render conversations whose assistant makes calls: with arguments of every
kind and with none, one and two in a turn, and one in a later turn. What stands around the names and
the arguments is the format, whatever the family: arguments may be one JSON object, or each in tags
of its own. A format that does not write all of these as the template does is none; neither is that
of a template that makes a call a turn of its own, or does not show the tools.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from jinja2 import TemplateError

from orchestrator.call_markup import spaced
from orchestrator.types import ArgumentFormat, CallFormat

Render = Callable[[Sequence[Mapping[str, Any]], bool], str]
"""A conversation to text, with tools; and whether a reply is to begin behind it."""

_ID = "baton000"  # some templates want nine letters and digits: a digit follows
_NAMES = ("batonfirst", "batonsecond")
_SAID = "batonsaid"
_ARGUMENTS: dict[str, Any] = {  # by their names, since some templates sort them
    "batonkey0": "batonvalue",
    "batonkey1": 271828,
    "batonkey2": True,
    "batonkey3": None,
    "batonkey4": ["batonitem"],
    "batonkey5": {"batonname": "batonmember"},
}
_MARKUP = "<baton>\n&amp;"  # a text that a template may escape, or put into quotes
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
    render: Render, controls: Sequence[str], thought: tuple[str, str] | None, eos: str = ""
) -> CallFormat | None:
    """A template's format; None where it has no place for tools, or an unknown form.

    Args:
        controls: texts of control tokens: the first one behind the last call ends the turn, where
            neither a turn without calls nor `eos` shows how one ends.
        thought: the markup around a thought, which the template may write before the calls.
        eos: the text of the token that ends a turn.
    """
    for as_text in (False, True):
        trial = _Trial.of(render, as_text, thought)
        if trial is None:
            continue
        ends = trial.ends(controls, eos)
        for learn in (_as_object, _in_tags):
            found = learn(trial, ends)
            if found and found.before.strip() and not trial.is_turn(found, controls):
                return found if trial.is_written_by(found) else None
        if str(_ARGUMENTS) not in trial.one:
            return None  # it takes an object, and writes it in a form of its own
    return None


@dataclass(frozen=True, slots=True)
class _Trial:
    """What a template writes of the trial conversations from the end of the question on, each
    without a thought.

    Attributes:
        prompt: before a reply.
        end: behind one without calls.
        none, one, two: a turn with a call without arguments, with all of them, with two such calls.
        later: a turn like `none`, what the tool gave back, and a turn with the second call.
        marked: a turn with a call whose argument is a text that holds markup.
    """

    as_text: bool
    prompt: str
    end: str
    none: str
    one: str
    two: str | None
    later: str | None
    marked: str | None

    @classmethod
    def of(cls, render: Render, as_text: bool, thought: tuple[str, str] | None) -> _Trial | None:
        def calling(*given: tuple[str, Mapping[str, Any]]) -> dict[str, Any]:
            return _calling(given, as_text)

        def written(*messages: Mapping[str, Any]) -> str | None:
            with suppress(TemplateError, TypeError, ValueError):
                text = render([user, *messages], False)
                if text.startswith(begin):
                    turn = _without_thought(text[len(begin) :], thought)
                    return re.sub(_ID + "[0-9]", CallFormat.ID, turn)
            return None

        user = {"role": "user", "content": "?"}
        first, second = ((name, _ARGUMENTS) for name in _NAMES)
        bare = (_NAMES[0], dict[str, Any]())
        try:
            prompt = render([user], True)
        except (TemplateError, TypeError, ValueError):
            return None
        begin = _before_thought(prompt, thought)
        one, none = written(calling(first)), written(calling(bare))
        if one is None or none is None or not all(name in begin for name in _NAMES):
            return None
        result = {"role": "tool", "content": "5", "tool_call_id": f"{_ID}0", "name": _NAMES[0]}
        said = written({"role": "assistant", "content": _SAID}) or ""
        return cls(
            as_text,
            begin[begin.rfind("?") + 1 :],
            said.partition(_SAID)[2].strip(),
            none,
            one,
            written(calling(first, second)),
            written(calling(bare), result, calling(second)),
            written(calling((_NAMES[0], {"batonkey0": _MARKUP}))),
        )

    def is_turn(self, form: CallFormat, controls: Sequence[str]) -> bool:
        """Whether a call is a turn of its own: it begins with what a turn begins or ends with."""
        around = self.prompt + self.end
        return any(one in form.before for one in controls if one and one in around)

    def ends(self, controls: Sequence[str], eos: str) -> Sequence[str]:
        """The texts of which the first one behind a call ends the turn."""
        if eos and (not self.end or eos in self.one):
            return [eos]
        return [self.end] if self.end and self.end in self.one else controls

    def is_written_by(self, form: CallFormat) -> bool:
        """Whether a format writes all calls of these conversations as the template does."""
        head, end = map(_pattern, (form.before, form.after))
        one, other = (_written(form, name, _ARGUMENTS) for name in _NAMES)
        whole = [
            (self.none, head + _written(form, _NAMES[0], {}) + end),
            (self.one, head + one + end),
        ]
        if form.between and self.two is not None:
            whole.append((self.two, head + one + _pattern(form.between) + other + end))
        if self.later is not None:
            whole.append((self.later, head + other + end))
        return all(re.search(pattern, _squeezed(text)) for text, pattern in whole)


def _written(form: CallFormat, name: str, arguments: Mapping[str, Any]) -> str:
    """The pattern of a call as a format writes it, from its name to the end of its arguments."""
    head = _pattern(name + form.middle)
    if form.each is None:
        return head + _pattern(json.dumps(arguments))
    each = form.each
    for key, value in arguments.items():
        middle = each.middle if isinstance(value, str) else each.other or each.middle
        ways = "|".join(map(_pattern, _ways(value)))
        head += _pattern(each.before + key + middle) + f"(?:{ways})" + _pattern(each.after)
    return head


def _pattern(text: str) -> str:
    """What matches a text without its white space."""
    return spaced("".join(text.split()))


def _squeezed(text: str) -> str:
    return "".join(text.split()).replace(CallFormat.ID, f"{_ID}0")


def _ways(value: Any) -> list[str]:
    """How a template may write a value in tags: as JSON, or as Python does."""
    return [value] if isinstance(value, str) else [json.dumps(value), str(value)]


def _as_object(trial: _Trial, ends: Sequence[str]) -> CallFormat | None:
    """The format of a template that writes arguments as one JSON object."""
    found = _objects(trial.one, 1)
    if found is None:
        return None
    ((name, end_of_name, begin, end),) = found
    before, after = trial.one[:name].lstrip("\n"), _up_to(trial.one[end:], ends)
    middle, between = trial.one[end_of_name:begin], None
    if trial.two is not None and (both := _objects(trial.two, 2)) is not None:
        between = trial.two[both[0][3] : both[1][0]]
        counted = _counted(middle, trial.two[both[1][1] : both[1][2]])
        if counted is None:
            return None
        middle = counted
    return CallFormat(before, middle, after, between, trial.as_text)


def _objects(text: str, count: int) -> list[tuple[int, int, int, int]] | None:
    """Where the names and the arguments of the calls begin and end."""
    found: list[tuple[int, int, int, int]] = []
    for name in _NAMES[:count]:
        start = found[-1][3] if found else 0
        named = text.find(name, start)
        for brace in re.compile(r"\{").finditer(text, named) if named >= 0 else ():
            with suppress(ValueError):
                value, end = json.JSONDecoder().raw_decode(text, brace.start())
                if value == _ARGUMENTS:
                    at = text.rfind(name, start, brace.start())
                    found.append((at, at + len(name), brace.start(), end))
                    break
        else:
            return None
    return found


def _counted(first: str, second: str) -> str | None:
    """What stands in two calls at the same place, with the numbers by which they differ as such;
    None where they differ otherwise."""
    parts = [re.split("([0-9]+)", one) for one in (first, second)]
    if len(parts[0]) != len(parts[1]):
        return None
    pairs = list(zip(*parts, strict=True))
    if not all(one == other or one.isdecimal() for one, other in pairs):
        return None
    return "".join(one if one == other else CallFormat.COUNT for one, other in pairs)


def _in_tags(trial: _Trial, ends: Sequence[str]) -> CallFormat | None:
    """The format of a template that writes each argument in tags of its own."""
    keys = list(_ARGUMENTS)
    found = _parts(trial.one, [_NAMES[0], keys[0], _ARGUMENTS[keys[0]], *keys[1:]])
    if found is None:
        return None
    head, opening, middle, joint, *values, last = found
    between = None
    if trial.two is not None and (both := _parts(trial.two, [keys[-1], _NAMES[1], keys[0]])):
        between, again = both[1], _counted(opening, both[2])
        if again is None:
            return None
        opening = again
    begin = opening[max(0, opening.rfind("<")) :]
    end = joint.removesuffix(begin)
    if not (begin and end and joint == end + begin):
        return None
    values = [part.removesuffix(joint) for part in values]
    end = end if end in last else end.rstrip()  # the last one may end without a line of its own
    value, _, after = last.partition(end)
    written = [
        [(part.removesuffix(way), way) for way in _ways(given) if part.endswith(way)][:1]
        for part, given in zip([*values, value], list(_ARGUMENTS.values())[1:], strict=True)
    ]
    others = {one[0] for found in written for one in found} - {middle} or {""}
    if len(others) > 1 or not all(written):
        return None
    quotes = _quotes(trial, middle, end)
    if quotes is None:
        return None
    python = any(way in ("True", "None") for found in written for _, way in found)
    found_form = CallFormat(
        head.lstrip("\n"),
        opening.removesuffix(begin),
        _up_to(after, ends),
        None if between is None else between.partition(end)[2],
        each=ArgumentFormat(begin, middle, end, others.pop(), python, quotes or None),
    )
    return None if "baton" in found_form.markup else found_form


def _quotes(trial: _Trial, middle: str, end: str) -> tuple[str, str] | tuple[()] | None:
    """What stands around a text with markup, empty for nothing; None: it is written otherwise."""
    parts = _parts(trial.marked or "", ["batonkey0", _MARKUP])
    if parts is None or not parts[1].startswith(middle) or end not in parts[2]:
        return None
    around = parts[1].removeprefix(middle), parts[2].partition(end)[0]
    return around if any(around) else ()


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


def _before_thought(prompt: str, thought: tuple[str, str] | None) -> str:
    """A prompt without the thought that it may begin, or have ended already."""
    text = prompt.rstrip()
    for mark in reversed(thought or ()):
        text = text.removesuffix(mark.strip()).rstrip()
    return text


def _without_thought(turn: str, thought: tuple[str, str] | None) -> str:
    mark = thought[1].strip() if thought else ""
    return turn.partition(mark)[2] if mark and mark in turn else turn


def _up_to(text: str, marks: Sequence[str]) -> str:
    ends = [at for mark in marks if mark and (at := text.find(mark)) >= 0]
    return text[: min(ends)] if ends else text


def _calling(given: Sequence[tuple[str, Mapping[str, Any]]], as_text: bool) -> dict[str, Any]:
    calls = [
        {
            "id": f"{_ID}{i}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(one) if as_text else one},
        }
        for i, (name, one) in enumerate(given)
    ]
    return {"role": "assistant", "content": "", "tool_calls": calls}
