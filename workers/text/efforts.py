"""Finds the levels of effort that a chat template has, by what it writes for each."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from jinja2 import TemplateError

from orchestrator.efforts import SCALE, TemplateEfforts

VARIABLES = ("reasoning_effort", "thinking_effort", "reasoning_strength")
"""The names by which templates know a level."""
WRITTEN = ("low", "medium", "high")
"""The levels of a template that writes any level into the prompt."""
_UNKNOWN = "unheard"
"""A level that no template has."""


def find_efforts(source: str, render: Callable[[dict[str, Any]], str]) -> TemplateEfforts | None:
    """Return the levels of a template, None if it has none. `render` writes a question with a
    thought; it gets the variables of a level."""

    def written(variable: str, level: str) -> str | None:
        try:
            return render({variable: level})
        except (TemplateError, TypeError, ValueError):
            return None

    for variable in VARIABLES:
        if re.search(rf"\b{variable}\b", source) is None:
            continue
        unknown = written(variable, _UNKNOWN)
        if unknown is not None and _UNKNOWN in unknown:
            return TemplateEfforts(variable, WRITTEN)
        known = {level: written(variable, level) for level in SCALE}
        levels = tuple(level for level in SCALE if known[level] not in (None, unknown))
        if levels:
            return TemplateEfforts(variable, levels, strict=unknown is None)
    return None
