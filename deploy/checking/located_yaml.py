"""YAML that remembers where it was written: every finding names a file and a line.

Mappings and lists are what PyYAML's safe loader makes of them, and know the line of each entry.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import yaml

from orchestrator.errors import ConfigError


class SourceLocation(NamedTuple):
    file: str
    line: int


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong: where, which field (dotted), and what about it.

    A `note` is worth knowing and no reason to refuse.
    """

    location: SourceLocation
    field: str
    message: str
    level: str = "error"

    def __str__(self) -> str:
        note = "note: " if self.level == "note" else ""
        field = f"{self.field}: " if self.field else ""
        return f"{self.location.file}:{self.location.line}: {note}{field}{self.message}"

    def row(self) -> dict[str, Any]:
        return {
            "file": self.location.file,
            "line": self.location.line,
            "field": self.field,
            "message": self.message,
            "level": self.level,
        }


class Mapping(dict[Any, Any]):
    """A mapping that knows its place, and that of each key."""

    def __init__(self, location: SourceLocation) -> None:
        super().__init__()
        self.location = location
        self.locations: dict[Any, SourceLocation] = {}
        self.repeated: list[Any] = []
        self.misread: dict[Any, str] = {}

    def put(self, key: Any, value: Any, location: SourceLocation) -> None:
        self[key] = value
        self.locations[key] = location


class Items(list[Any]):
    """A list that knows its place, and that of each item."""

    def __init__(self, location: SourceLocation) -> None:
        super().__init__()
        self.location = location
        self.locations: list[SourceLocation] = []
        self.misread: dict[Any, str] = {}

    def put(self, value: Any, location: SourceLocation) -> None:
        self.append(value)
        self.locations.append(location)


class LocatedText(str):
    """A string that knows where its first line was written."""

    __slots__ = ("location",)
    location: SourceLocation


def located_text(value: str, location: SourceLocation) -> LocatedText:
    text = LocatedText(value)
    text.location = location
    return text


Path = Sequence[str | int]
_OTHERWISE = re.compile(
    r"[-+]?(?:0[0-7_]*[1-7][0-7_]*|[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?)"
)


def read(source: str, start: SourceLocation) -> list[Any]:
    """The documents of a YAML text whose first line is at `start`; empty ones are left out.

    Raises:
        ConfigError: it is no YAML.
    """
    loader = yaml.SafeLoader(source)
    try:
        documents = []
        while loader.check_node():
            node = loader.get_node()
            assert node is not None  # check_node has seen it
            documents.append(_value(loader, node, start))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = start.line + (mark.line if mark is not None else 0)
        problem = getattr(error, "problem", None) or error
        message = " ".join(str(problem).split())
        raise ConfigError(f"{start.file}:{line}: not YAML: {message}") from None
    finally:
        loader.dispose()
    return [document for document in documents if document is not None]


def _value(loader: yaml.SafeLoader, node: yaml.Node, start: SourceLocation) -> Any:
    location = SourceLocation(start.file, start.line + node.start_mark.line)
    if isinstance(node, yaml.MappingNode):
        loader.flatten_mapping(node)  # `<<: *anchor`
        mapping = Mapping(location)
        for key_node, value_node in node.value:
            key = loader.construct_object(key_node, deep=True)
            try:
                repeated = key in mapping
            except TypeError:
                raise yaml.MarkedYAMLError(
                    problem="a key that is no scalar", problem_mark=key_node.start_mark
                ) from None
            if repeated:
                mapping.repeated.append(key)
            if (written := _misread(value_node)) is not None:
                mapping.misread[key] = written
            line = start.line + key_node.start_mark.line
            mapping.put(key, _value(loader, value_node, start), SourceLocation(start.file, line))
        return mapping
    if isinstance(node, yaml.SequenceNode):
        items = Items(location)
        for child in node.value:
            at = SourceLocation(start.file, start.line + child.start_mark.line)
            if (written := _misread(child)) is not None:
                items.misread[len(items)] = written
            items.put(_value(loader, child, start), at)
        return items
    value = loader.construct_object(node, deep=True)
    if isinstance(value, str) and isinstance(node, yaml.ScalarNode):
        below = 1 if node.style in ("|", ">") else 0
        return located_text(value, SourceLocation(location.file, location.line + below))
    return value


def _misread(node: yaml.Node) -> str | None:
    """A number that YAML 1.1 takes for another than it looks like: 010 is 8, and 8:00 is 480."""
    plain = isinstance(node, yaml.ScalarNode) and node.style is None
    number = str(node.tag).rpartition(":")[2] in ("int", "float")
    return str(node.value) if plain and number and _OTHERWISE.fullmatch(node.value) else None


def location_of(data: Any, path: Path) -> SourceLocation:
    """Where the deepest entry of `path` that exists was written."""
    location = getattr(data, "location", SourceLocation("", 0))
    for step in path:
        is_item = isinstance(data, Items) and isinstance(step, int) and step < len(data)
        if not is_item and not (isinstance(data, Mapping) and step in data):
            break
        location, data = data.locations[step], data[step]
    return location


def at(data: Any, path: Path, default: Any = None) -> Any:
    """The entry at `path`, or `default` where there is none."""
    for step in path:
        try:
            data = data[step]
        except (KeyError, IndexError, TypeError):
            return default
    return default if data is None else data


def dotted(path: Path) -> str:
    return ".".join(map(str, path))


def finding(data: Any, path: Path, message: str, level: str = "error") -> Finding:
    """What is wrong with the entry at `path`."""
    return Finding(location_of(data, path), dotted(path), " ".join(message.split()), level)


def repeated_keys(data: Any, path: tuple[str | int, ...] = ()) -> list[Finding]:
    """Keys that a mapping has twice: YAML's readers silently take the last."""
    found = []
    if isinstance(data, Mapping):
        found += [
            Finding(data.locations[key], dotted((*path, key)), "written twice")
            for key in data.repeated
        ]
        for key, value in data.items():
            found += repeated_keys(value, (*path, key))
    elif isinstance(data, Items):
        for index, value in enumerate(data):
            found += repeated_keys(value, (*path, index))
    return found


def misread_numbers(data: Any, path: tuple[str | int, ...] = ()) -> list[Finding]:
    """Numbers with a leading zero, which are octal, or with colons, which are of base 60."""
    if not isinstance(data, Mapping | Items):
        return []
    pairs = data.items() if isinstance(data, Mapping) else enumerate(data)
    found = [
        Finding(
            data.locations[key],
            dotted((*path, key)),
            f"{written} is {data[key]} to YAML: write that, or quotes around it",
        )
        for key, written in data.misread.items()
    ]
    for key, value in pairs:
        found += misread_numbers(value, (*path, key))
    return found
