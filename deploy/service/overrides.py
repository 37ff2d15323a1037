"""Variables of the environment that override a deployment file: `BATON_LIMITS__CONCURRENT=8`."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import Any

import yaml

PREFIX, INSIDE = "BATON_", "__"


def overridden(given: Mapping[str, Any], fields: Collection[str]) -> Mapping[str, Any]:
    """Return settings with those of the environment in their place.

    Variables whose first name is not in `fields` are not ours to read. A blank one does not count;
    the text `null` removes a setting.

    Raises:
        ValueError: a variable names a field inside of what is no object in the file.
    """
    for name, text in sorted(os.environ.items()):
        path = name.removeprefix(PREFIX).lower().split(INSIDE)
        if name.startswith(PREFIX) and path[0] in fields and text.strip():
            given = _put(given, path, _value(text), name)
    return given


def _put(settings: Any, path: list[str], value: Any, name: str) -> Mapping[str, Any]:
    if not isinstance(settings, Mapping):
        raise ValueError(f"${name}: expected an object in the file to hold {path[0]}, got a value")
    first, *rest = path
    if value is None and not rest:
        return {key: one for key, one in settings.items() if key != first}
    inside = _put(settings.get(first, {}), rest, value, name) if rest else value
    return {**settings, first: inside}


def _value(text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text
