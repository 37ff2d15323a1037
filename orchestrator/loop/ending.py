"""What ends a thought before its cap: a loop, or the end of a step beyond a soft budget.

All of it is a function of the accepted text, so it holds under every policy, and in a replay. The
executor asks it while a text is streamed, so that a long generation ends in the middle too.

A loop is one of two things. Whole paragraphs repeat: SpecReason's code compares the last two, but
models also repeat several. Or a shorter text repeats inside one paragraph, often without an end. A
short text must repeat more often, since a table, a grid or a piece of code may have equal lines.
"""

from __future__ import annotations

from math import ceil

from orchestrator.types import Segments

BREAK = "\n\n"
"""Ends a paragraph, which is a step of any policy."""
MAX_PERIOD = 4
"""Paragraphs of the longest repetition that is detected; the budget ends a longer one."""
LONG = 400
"""The fewest characters of equal paragraphs that are a loop in a thought."""
OFTEN = 4
"""How often a text must come inside a paragraph, or in an answer: a refrain is no loop."""
COMPARED = 1 << 12
"""The most characters of the last paragraphs that are compared."""
LEAST = 1 << 10
"""The fewest characters of a loop inside a paragraph, or in an answer."""
_LOOKED_BACK = 4 * LEAST
_SAMPLE = 32
"""Characters at the end of a text whose earlier places give the periods to try."""
_PERIODS = 32
"""The most periods to try."""


def loops(chain: Segments, thinking: bool = True) -> bool:
    """Return whether a chain ends in a loop."""
    if ends_step(chain) and _repeats_paragraphs(chain, thinking):
        return True
    return thinking and _repeats_text(_end(chain, _LOOKED_BACK))


def ends_step(chain: Segments) -> bool:
    """Return whether a chain ends with a paragraph."""
    return _end(chain, len(BREAK) + 2).rstrip(" ").endswith(BREAK)


def _repeats_paragraphs(chain: Segments, thinking: bool) -> bool:
    """Return whether the last paragraphs equal as many before them."""
    steps = _last_paragraphs(chain)
    fewest, least = (2, LONG) if thinking else (OFTEN, LEAST)
    for size in range(1, min(MAX_PERIOD, len(steps)) + 1):
        block = steps[-size:]
        times = max(fewest, ceil(least / len("".join(block))))
        if len(steps) >= times * size and steps[-times * size :] == times * block:
            return True
    return False


def _last_paragraphs(chain: Segments) -> list[str]:
    """Return the whole paragraphs in the last `COMPARED` characters of a chain."""
    text = _end(chain, COMPARED)
    steps = text.split(BREAK)[len(text) == COMPARED : -1]  # the first may be partial
    return list(filter(None, map(str.strip, steps)))


def _repeats_text(text: str) -> bool:
    """Return whether a text ends with one that is repeated `OFTEN` times and is `LEAST` long."""
    sample = text[-_SAMPLE:]
    at = len(text) - _SAMPLE
    for _ in range(_PERIODS):
        if (at := text.rfind(sample, 0, at + _SAMPLE - 1)) < 0:
            return False
        period = len(text) - _SAMPLE - at
        size = max(LEAST, OFTEN * period)
        if size > len(text):
            return False
        if text[-size:-period] == text[period - size :]:
            return True
    return False


def _end(chain: Segments, count: int) -> str:
    """Return the last `count` characters."""
    texts: list[str] = []
    for segment in reversed(chain):
        texts.append(segment.text[-count:])
        count -= len(texts[-1])
        if count <= 0:
            break
    return "".join(reversed(texts))
