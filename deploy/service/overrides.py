"""Variables of the environment that override a deployment file: `BATON_LIMITS__CONCURRENT=8`."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import Any

import yaml

PREFIX, INSIDE = "BATON_", "__"


def overridden(given: Mapping[str, Any], fields: Collection[str]) -> dict[str, Any]:
    """Return settings with those of the environment in their place.

    Args:
        fields: the names at the top; variables of other names are not ours to read.
            A blank variable does not count; the text `null` removes a setting.

    Raises:
        ValueError: a variable names a field inside of what is no object in the file.
    """
    found = dict(given)
    for name, text in sorted(os.environ.items()):
        top, *inner = name.removeprefix(PREFIX).lower().split(INSIDE)
        if name.startswith(PREFIX) and top in fields and text.strip():
            found = _put(found, [top, *inner], _value(text), name)
    return found


def _put(settings: Any, path: list[str], value: Any, name: str) -> dict[str, Any]:
    if not isinstance(settings, Mapping):
        raise ValueError(f"${name}: expected an object in the file to hold {path[0]}, got a value")
    first, *rest = path
    inside = _put(settings.get(first, {}), rest, value, name) if rest else value
    return {**settings, first: inside}


def _value(text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text
