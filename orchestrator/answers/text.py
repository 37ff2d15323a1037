"""Finds the answer in a text: the first step of a comparison."""

from __future__ import annotations

import re
from json import JSONDecoder
from typing import Final

from orchestrator.answers.numbers import LONGEST, found, number

_LAST: Final = re.compile(
    r"(?<!#)####(?!#)[ \t]*(?!\d{1,2}[.:)][ \t]|[*_]*(?:step|part|case|method)\b)(\S.*)",
    re.IGNORECASE,
)  # as GSM8K marks an answer

_FORMULA: Final = re.compile(
    r"\\\((.+?)\\\)|\\\[(.+?)\\\]|\$\$(.+?)\$\$|\$(?!\s)([^$\n]+?)(?<!\s)\$(?!\d)", re.DOTALL
)


def final(text: str) -> str:
    r"""Return the answer in a text: its last `\boxed{}`, number or formula, else all of it."""
    box = boxed(text)
    if box is not None:
        return box.strip()
    *_, marked = [None, *_LAST.finditer(text)]
    ends = marked is not None and not text[marked.end() :].strip()
    if marked is not None and ends and re.search(r"\d", marked[1]):
        return final(marked[1])
    if marked is not None and number(marked[1]) is not None:
        return marked[1].strip()
    if number(text) is not None or not re.search(r"\s", text.strip()):
        return text.strip()
    begin, last = 0, (marked[1] if marked is not None and ends else text).strip()
    text = _tail(text)
    for formula in _FORMULA.finditer(text):
        content = next(group for group in formula.groups() if group is not None)
        values = [*found(text[begin : formula.start()])]
        result = re.split(r"=|\\approx", content)[-1].strip()
        last = result if re.search(r"\d", result) else values[-1] if values else last
        begin = formula.end()
    rest = (
        re.sub(r"\\[A-Za-z]*", " ", text[begin:]) if begin else text
    )  # a formula that was cut off
    return next(reversed([*found(rest)]), last)


def _tail(text: str) -> str:
    """Return the last lines of a text, in which the value is searched."""
    if len(text) <= LONGEST:
        return text
    begin = len(text) - LONGEST
    return text[max(begin, text.find("\n", begin)) :]


def expected(answer: str) -> str:
    r"""Return the reference answer: in its `\boxed{}`, after GSM8K's `####`, or all of it."""
    box = boxed(answer)
    return (answer.rpartition("####")[2] if box is None else box).strip()


def boxed(text: str) -> str | None:
    r"""Return the content of the last `\boxed{}`, with balanced braces; None without one."""
    start = text.rfind("\\boxed{")
    if start < 0:
        return None
    content = text[start + len("\\boxed{") :]
    if (end := _json_end(content)) is not None:
        return content[:end]
    depth = 0
    for end, sign in enumerate(content):
        depth += {"{": 1, "}": -1}.get(sign, 0)
        if depth < 0:
            return content[:end]
    return content


def _json_end(content: str) -> int | None:
    """Return the end of JSON that fills a box, whose strings may have single braces."""
    begin = len(content) - len(content.lstrip())
    try:
        _, end = JSONDecoder().raw_decode(content, begin)
    except (ValueError, RecursionError):
        return None
    return end if content[end:].lstrip()[:1] == "}" and content[begin] in "{[" else None
