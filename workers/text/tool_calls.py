"""How a family of models writes calls of tools, learned from its chat template.

The template renders trial conversations with calls; the text around names and arguments is the
format: arguments are one JSON object, or each has its own tags. A format is accepted if it reads
all trials as exactly the calls that were made. It is refused if a call is a turn by itself, or if
the template does not show the tools.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from jinja2 import TemplateError

from orchestrator.call_markup import spaced
from orchestrator.types import ArgumentFormat, CallFormat

Render = Callable[[Sequence[Mapping[str, Any]], bool], str]
"""`render(messages, replies)` returns a conversation with `TOOLS` as text, and if `replies` the
beginning of a reply."""

_ID = "baton000"  # some templates want nine letters and digits: a digit follows
_NAMES = ("batonfirst", "batonsecond", "batonthird")
_SAID = "batonsaid"
_ARGUMENTS: dict[str, Any] = {  # in the order of names, since some templates sort them
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
"""The tools of the trial conversations."""


def find_call_format(
    render: Render, controls: Sequence[str], thought: tuple[str, str] | None, eos: str = ""
) -> CallFormat | None:
    """Find a template's format; None if it does not show tools, or writes calls in no known form.

    The first of `controls` after the last call ends the turn, if neither a turn without calls nor
    `eos` shows how one ends. `thought` is the markup that the template may write before the calls.
    """
    for as_text in (False, True):
        trial = _Trial.of(render, as_text, thought)
        if trial is None:
            continue
        ends = trial.ends(controls, eos)
        for learn in (_as_object, _in_tags):
            found = learn(trial, ends)
            if found and found.before.strip() and not trial.is_turn(found, controls):
                return found if trial.is_read_by(found) else None
        if str(_ARGUMENTS) not in trial.one:
            return None  # the template accepts an object, and writes it in another form
    return None


@dataclass(frozen=True, slots=True)
class _Trial:
    """What a template writes after the question of each trial conversation, without thoughts."""

    as_text: bool  # whether arguments are given as JSON texts
    prompt: str  # the text before a reply
    end: str  # the text after a reply without calls
    none: str  # a turn with one call without arguments
    one: str  # a turn with one call with all of them
    two: str | None  # a turn with two calls; None if the template writes one call a turn
    three: str | None
    later: str | None  # a turn like `none`, the tool's result, and a turn with the second call
    marked: str | None  # a turn with a call whose argument is a text with markup

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
        first, second, third = ((name, _ARGUMENTS) for name in _NAMES)
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
        two, three = written(calling(first, second)), written(calling(first, second, third))
        if two is None or _NAMES[1] not in two:  # it refuses the second call, or drops it
            two = three = None
        return cls(
            as_text,
            begin[begin.rfind("?") + 1 :],
            said.partition(_SAID)[2].strip(),
            none,
            one,
            two,
            three,
            written(calling(bare), result, calling(second)),
            written(calling((_NAMES[0], {"batonkey0": _MARKUP}))),
        )

    def is_turn(self, form: CallFormat, controls: Sequence[str]) -> bool:
        """Whether a call is a turn by itself: its markup begins or ends turns, too."""
        around = self.prompt + self.end
        return any(one in form.before for one in controls if one and one in around)

    def ends(self, controls: Sequence[str], eos: str) -> Sequence[str]:
        """Return the texts of which the first one after a call ends the turn."""
        if eos and (not self.end or eos in self.one):
            return [eos]
        return [self.end] if self.end and self.end in self.one else controls

    def is_read_by(self, form: CallFormat) -> bool:
        """Whether a format reads these turns as exactly the calls that were made."""
        head, end = map(_pattern, (form.before, form.after))
        joint = _pattern(form.between or "")
        bare = _written(form, _NAMES[0], {})
        first, second, third = (_written(form, name, _ARGUMENTS) for name in _NAMES)
        turns = [
            (self.none, head + bare + end),
            (self.one, head + first + end),
            (self.two, head + first + joint + second + end),
            (self.three, head + first + joint + second + joint + third + end),
            (self.later, head + bare + end + ".*" + head + second + end),
        ]
        return (form.between is None) == (self.two is None) and all(
            text is None or re.match(pattern, _squeezed(text)) for text, pattern in turns
        )


def _written(form: CallFormat, name: str, arguments: Mapping[str, Any]) -> str:
    """Return the pattern of a call in a format, from its name to the end of its arguments."""
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
    """Return a pattern of a text without its white space."""
    return spaced("".join(text.split()))


def _squeezed(text: str) -> str:
    return "".join(text.split()).replace(CallFormat.ID, f"{_ID}0")


def _ways(value: Any) -> list[str]:
    """Return how a template may write a value in tags: as JSON, or as Python does."""
    return [value] if isinstance(value, str) else [json.dumps(value), str(value)]


def _as_object(trial: _Trial, ends: Sequence[str]) -> CallFormat | None:
    """Learn the format of a template that writes arguments as one JSON object."""
    found = _objects(trial.one, 1)
    if found is None:
        return None
    ((name, end_of_name, begin, end),) = found
    before, after = trial.one[:name].lstrip("\n"), _up_to(trial.one[end:], ends)
    middle, between = trial.one[end_of_name:begin], None
    if trial.three is not None:
        calls = _objects(trial.three, 3) or []
        counted = _counted([middle, *(trial.three[call[1] : call[2]] for call in calls)])
        between = _counted([trial.three[one[3] : next_[0]] for one, next_ in pairwise(calls)])
        if counted is None or between is None:
            return None
        middle = counted
    return CallFormat(before, middle, after, between, trial.as_text)


def _objects(text: str, count: int) -> list[tuple[int, int, int, int]] | None:
    """Return where the names and the arguments of the calls begin and end."""
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


def _counted(texts: Sequence[str]) -> str | None:
    """Return the common text at one place of several calls, with `COUNT` for differing numbers;
    None if they differ in anything else."""
    parts = [re.split("([0-9]+)", one) for one in texts]
    if len(set(map(len, parts))) != 1:
        return None
    alike = [set(place) for place in zip(*parts, strict=True)]
    if not all(len(place) == 1 or all(map(str.isdecimal, place)) for place in alike):
        return None
    return "".join(place.pop() if len(place) == 1 else CallFormat.COUNT for place in alike)


def _in_tags(trial: _Trial, ends: Sequence[str]) -> CallFormat | None:
    """Learn the format of a template that writes each argument in separate tags."""
    keys = list(_ARGUMENTS)
    found = _parts(trial.one, [_NAMES[0], keys[0], _ARGUMENTS[keys[0]], *keys[1:]])
    if found is None:
        return None
    head, opening, middle, joint, *values, last = found
    between = None
    if trial.three is not None:
        marks = [mark for name in _NAMES[1:] for mark in (keys[-1], name, keys[0])]
        _, *calls = _parts(trial.three, marks) or [""]
        counted, between = _counted([opening, *calls[1::3]]), _counted(calls[::3])
        if counted is None or between is None:
            return None
        opening = counted
    begin = opening[max(0, opening.rfind("<")) :]
    end = joint.removesuffix(begin)
    if not (begin and end and joint == end + begin):
        return None
    values = [part.removesuffix(joint) for part in values]
    end = end if end in last else end.rstrip()  # the last end may lack its newline
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
    """Return the quotes around a text with markup, if any; None if the text is changed."""
    parts = _parts(trial.marked or "", ["batonkey0", _MARKUP])
    if parts is None or not parts[1].startswith(middle) or end not in parts[2]:
        return None
    around = parts[1].removeprefix(middle), parts[2].partition(end)[0]
    return around if any(around) else ()


def _parts(text: str, marks: Sequence[str]) -> list[str] | None:
    """Return the texts before, between and after the last occurrence of these marks in turn."""
    parts, end = list[str](), len(text)
    for mark in reversed(marks):
        at = text.rfind(mark, 0, end)
        if at < 0:
            return None
        parts.insert(0, text[at + len(mark) : end])
        end = at
    return [text[:end], *parts]


def _before_thought(prompt: str, thought: tuple[str, str] | None) -> str:
    """Return a prompt without the thought that it may begin, or have ended already."""
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
