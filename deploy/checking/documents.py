"""YAML with the place of each entry, so that every finding names a file and a line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import yaml

from orchestrator.errors import ConfigError

Path = tuple[str | int, ...]


class SourceLocation(NamedTuple):
    file: str
    line: int


@dataclass(frozen=True, slots=True)
class Finding:
    """One error or `note`, with its place and field (dotted); a note is no reason to refuse."""

    location: SourceLocation
    field: str
    message: str
    level: str = "error"

    def __str__(self) -> str:
        note = "note: " if self.level == "note" else ""
        field = f"{self.field}: " if self.field else ""
        return f"{self.location.file}:{self.location.line}: {note}{field}{self.message}"

    def row(self) -> dict[str, Any]:
        row = asdict(self)
        return {**row.pop("location")._asdict(), **row}


@dataclass(frozen=True, slots=True)
class Document:
    """A YAML document.

    By path, `lines` has the line of each key and item, `texts` the first line of each block text
    (`|` and `>`). `twice` has keys that are written twice.
    """

    data: Any
    file: str
    lines: Mapping[Path, int]
    texts: Mapping[Path, int]
    twice: list[Finding]

    @property
    def is_manifest(self) -> bool:
        return isinstance(self.data, dict) and "apiVersion" in self.data

    def at(self, path: Path, default: Any = None) -> Any:
        return at(self.data, path, default)

    def location(self, path: Path) -> SourceLocation:
        """Return the place of the deepest entry of `path` that exists."""
        while path not in self.lines:
            path = path[:-1]
        return SourceLocation(self.file, self.lines[path])

    def finding(self, path: Path, message: str, level: str = "error") -> Finding:
        """Make a finding on the entry at `path`."""
        return Finding(self.location(path), _dotted(path), " ".join(message.split()), level)


def read(source: str, start: SourceLocation) -> list[Document]:
    """Parse the documents of a YAML text whose first line is at `start`, without empty ones.

    Raises:
        ConfigError: it is no YAML.
    """
    loader = yaml.SafeLoader(source)
    try:
        documents = []
        while loader.check_node():
            node = loader.get_node()
            assert node is not None  # check_node has seen it
            places = _Places(loader, start)
            places.visit(node, ())
            data = loader.construct_document(node)
            documents.append(Document(data, start.file, places.lines, places.texts, places.twice))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = start.line + (mark.line if mark is not None else 0)
        problem = getattr(error, "problem", None) or error
        message = " ".join(str(problem).split())
        raise ConfigError(f"{start.file}:{line}: not YAML: {message}") from None
    finally:
        loader.dispose()
    return [document for document in documents if document.data is not None]


class _Places:
    """Walks a document's nodes and records their lines."""

    def __init__(self, loader: yaml.SafeLoader, start: SourceLocation) -> None:
        self._loader, self._start = loader, start
        self.lines: dict[Path, int] = {}
        self.texts: dict[Path, int] = {}
        self.twice: list[Finding] = []

    def visit(self, node: yaml.Node, path: Path) -> None:
        line = self._start.line + node.start_mark.line
        self.lines.setdefault(path, line)
        if isinstance(node, yaml.MappingNode):
            self._loader.flatten_mapping(node)  # `<<: *anchor`
            seen: set[Any] = set()
            for key_node, value_node in node.value:
                key = self._loader.construct_object(key_node, deep=True)
                if not isinstance(key_node, yaml.ScalarNode):
                    raise yaml.MarkedYAMLError(
                        problem="a key that is no scalar", problem_mark=key_node.start_mark
                    )
                self.lines[*path, key] = self._start.line + key_node.start_mark.line
                if key in seen:
                    location = SourceLocation(self._start.file, self.lines[*path, key])
                    self.twice.append(Finding(location, _dotted((*path, key)), "written twice"))
                seen.add(key)
                self.visit(value_node, (*path, key))
        elif isinstance(node, yaml.SequenceNode):
            for index, child in enumerate(node.value):
                self.visit(child, (*path, index))
        elif isinstance(node, yaml.ScalarNode) and node.style in ("|", ">"):
            self.texts[path] = line + 1


def at(data: Any, path: Path, default: Any = None) -> Any:
    """Return the entry at `path`, or `default` if there is none."""
    for step in path:
        try:
            data = data[step]
        except (KeyError, IndexError, TypeError):
            return default
    return default if data is None else data


def _dotted(path: Path) -> str:
    return ".".join(map(str, path))
