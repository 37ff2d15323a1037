"""The markup around calls of tools as patterns, to read calls, to constrain them, and to learn the
form of a chat template.

White space may differ from the template's, except before arguments that are one JSON object: there
it shows whether a model keeps to its own form. A call's id or number may have any value; an id that
is a JSON member may be missing.
"""

from __future__ import annotations

import re
from functools import cache, lru_cache

from orchestrator.types import CallFormat

ID, COUNT = "[a-zA-Z0-9]{9}", "[0-9]{1,4}"
_FREE = {CallFormat.ID: "[a-zA-Z0-9]{0,9}", CallFormat.COUNT: "[0-9]{0,4}"}
_SPACE = r"\s{0,64}"  # bounded: it is tried with each piece of an answer
_LINE = r"\n[ \t]{0,64}"
_MOST_TEXT = 256  # characters between a call whose end is missing and the next
_ID_MEMBER = re.compile(r',\\s\{0,64\}"\w+":\\s\{0,64\}"' + re.escape(ID) + '"')


@cache
def spaced(text: str) -> str:
    """Return a regular expression of a text in which white space may be any, or missing."""
    return _marked(_SPACE.join(map(re.escape, re.split(r"\s+", text))))


def _marked(pattern: str) -> str:
    """Replace the marks of ids and numbers in a regular expression by patterns of them."""
    for mark, values in ((CallFormat.ID, ID), (CallFormat.COUNT, COUNT)):
        pattern = pattern.replace(re.escape(mark), values)
    return _ID_MEMBER.sub(lambda found: f"(?:{found[0]})?", pattern)


def matched(markup: str, text: str) -> re.Match[str] | None:
    """Match markup at the beginning of a text."""
    return re.match(spaced(markup), text)


def begin_of_call(calls: CallFormat, text: str) -> re.Match[str] | None:
    """Match the markup before a call's name at the beginning of a text."""
    before = calls.before.lstrip()
    return re.match(spaced(before) if calls.each else _marked(re.escape(before)), text)


def begins(whole: str, text: str) -> bool:
    """Return whether a text begins like a piece of markup, up to the end of the shorter one."""
    without_id = re.sub(f',\\s*"\\w+":\\s*"{CallFormat.ID}"', "", whole)
    return any(_begins(one, text) for one in {whole, without_id})


def _begins(whole: str, text: str) -> bool:
    at = 0
    for part in re.split(r"(\s+|[\0\1])", whole):
        if part.isspace() or part in _FREE:
            found = re.compile(_FREE.get(part, _SPACE)).match(text, at)
            at = found.end() if found else at
        elif not part.startswith(text[at : at + len(part)]):
            return False
        else:
            at += len(part)
        if at >= len(text):
            return True
    return True


def end_of_name(calls: CallFormat, text: str, at: int) -> re.Match[str] | None:
    """Match the markup between a tool's name and the arguments of its call; it may be empty before
    an argument in tags or the end of the call."""
    return re.compile(_between_name_and_arguments(calls)).match(text, at)


@cache
def _between_name_and_arguments(calls: CallFormat) -> str:
    if calls.each is None:
        return _marked(re.escape(calls.middle))
    if calls.middle.strip():
        return spaced(calls.middle)
    begin, end = spaced(calls.each.before.strip()), spaced(_first_tag(calls.after))
    return f"{_SPACE}(?={begin}|{end})"


def may_be_name(calls: CallFormat, text: str, name: str) -> bool:
    """Return whether an unfinished text may begin with a tool's name and the markup after it."""
    if not text.startswith(name):
        return name.startswith(text)
    rest = text[len(name) :]
    if calls.each is None or calls.middle.strip():
        return begins(calls.middle, rest)
    return any(
        begins(one, rest.lstrip()) for one in (calls.each.before.strip(), _first_tag(calls.after))
    )


@lru_cache(maxsize=64)  # the names are the request's
def ends_of_values(calls: CallFormat, names: str, tools: str) -> str:
    """Return a regular expression of the end of an argument's value in tags.

    A value may mention the closing tag, so that ends it only if the next argument, the next call,
    or, with white space as in the template, the end of the call follows. Models also forget the
    tag: then the next argument or the next call ends the value, on a new line if the format has
    lines. They also forget the first tags of a call's end: its last tags, or some text and a call,
    may follow.

    Args:
        names: a regular expression of the arguments that may follow; empty: they are unknown.
        tools: a regular expression of the tools that may be called.
    """
    form = calls.each
    assert form is not None
    line = _LINE if form.begins_at_lines else ""
    begin, middles = spaced(form.before.strip()), {form.middle, form.other} - {""}
    named = f"{begin}[^<>]{{1,64}}?(?:{'|'.join(spaced(one.rstrip()) for one in middles)})"
    nexts, ways = [named], list[str]()
    if names:
        exactly = "|".join(map(re.escape, middles))
        ways.append(f"{line}(?={begin}(?:{names})(?:{exactly}))")
    tag, close, closes = spaced(form.after.strip()), calls.after.strip(), last_tags(calls.after)
    for between in last_tags(calls.between or ""):
        nexts.append(f"{spaced(between)}(?:{tools})")
        if between == (calls.between or "").strip() or between.startswith(closes):
            ways.append(f"{line}(?={nexts[-1]})")
    nexts.append(f"[^<]{{0,{_MOST_TEXT}}}{spaced(calls.before.strip())}(?:{tools})")
    white = form.after[len(form.after.rstrip()) :] + calls.after[: calls.after.find(close)]
    closed = f"{re.escape(white)}(?={'|'.join(map(spaced, closes))})"
    return "|".join([*ways, f"(?P<end>{tag})(?:{_SPACE}(?={'|'.join(nexts)})|{closed})"])


def ends_of_answers(calls: CallFormat) -> tuple[str, str]:
    """Return two patterns for the end of an answer's last value, if `ends_of_values` finds none:
    its tag before the end of the call or of the answer; and without a tag, the end of the call."""
    form = calls.each
    assert form is not None
    line = _LINE if form.begins_at_lines else ""
    begin, close = form.before.strip(), calls.after.strip()
    begun = {one[:i] for one in (begin, close) for i in range(len(one))}
    cut = "|".join([*map(spaced, begun), f"{spaced(begin)}[^<>]{{0,64}}"])
    closes = "|".join(map(spaced, last_tags(close)))
    follows = rf"(?={spaced(_first_tag(close))}|{closes})|(?:{cut})\Z" if close else ""
    end = f"(?P<end>{spaced(form.after.strip())}){_SPACE}(?:{follows})"
    return end, f"(?P<end>){line}(?={closes})" if close else r"(?!)(?P<end>)"


def last_tags(text: str) -> tuple[str, ...]:
    """Return the markup, then without its first tag, its first two and so on; none if blank."""
    text = text.strip()
    starts = [0, *(found.end() for found in re.finditer(r">\s*(?=<)", text))]
    return tuple(text[at:] for at in starts if text)


def _first_tag(text: str) -> str:
    tag, closed, _ = text.strip().partition(">")
    return tag + closed
