"""YAML with the line of each entry, so that every finding names a file and a line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from orchestrator.errors import ConfigError

Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Finding:
    """One error or `note`, with its place and field (dotted); a note is no reason to refuse."""

    file: str
    line: int
    field: str
    message: str
    level: str = "error"

    def __str__(self) -> str:
        note = "note: " if self.level == "note" else ""
        field = f"{self.field}: " if self.field else ""
        return f"{self.file}:{self.line}: {note}{field}{self.message}"


@dataclass(frozen=True, slots=True)
class Document:
    """A YAML document, the line of each key and item by path, and keys that are written twice."""

    data: Any
    file: str
    lines: Mapping[Path, int]
    twice: list[Finding] = field(default_factory=list)

    @property
    def is_manifest(self) -> bool:
        return isinstance(self.data, dict) and "apiVersion" in self.data

    def at(self, path: Path, default: Any = None) -> Any:
        return at(self.data, path, default)

    def finding(self, path: Path, message: str, level: str = "error") -> Finding:
        """Make a finding on `path`, with the line of its deepest entry that exists."""
        found = path
        while found not in self.lines:
            found = found[:-1]
        dotted = ".".join(map(str, path))
        return Finding(self.file, self.lines[found], dotted, " ".join(message.split()), level)


def read(source: str, file: str, line: int = 1) -> list[Document]:
    """Parse the documents of a YAML text that begins at `line` of `file`, without empty ones.

    Raises:
        ConfigError: it is no YAML.
    """
    loader = yaml.SafeLoader(source)
    documents = []
    try:
        while loader.check_node():
            node = loader.get_node()
            assert node is not None  # check_node has seen it
            lines: dict[Path, int] = {(): line + node.start_mark.line}
            twice = _add_lines(lines, loader, node, (), line)
            document = Document(loader.construct_document(node), file, lines)
            document.twice.extend(document.finding(path, "written twice") for path in twice)
            documents.append(document)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or error
        place = line + (mark.line if mark is not None else 0)
        message = f"{file}:{place}: not YAML: {' '.join(str(problem).split())}"
        raise ConfigError(message) from None
    finally:
        loader.dispose()
    return [document for document in documents if document.data is not None]


def _add_lines(
    lines: dict[Path, int], loader: yaml.SafeLoader, node: yaml.Node, path: Path, begin: int
) -> list[Path]:
    """Add the line of each entry below a node; return the keys that are written twice."""
    twice: list[Path] = []
    entries: list[tuple[Any, yaml.Node, yaml.Node]] = []
    if isinstance(node, yaml.MappingNode):
        loader.flatten_mapping(node)  # `<<: *anchor`
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                problem = "a key that is no scalar"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
            entries.append((loader.construct_object(key, deep=True), key, value))
    elif isinstance(node, yaml.SequenceNode):
        entries = [(index, item, item) for index, item in enumerate(node.value)]
    for name, key, value in entries:
        entry = (*path, name)
        if entry in lines:
            twice.append(entry)
        lines[entry] = begin + key.start_mark.line
        twice += _add_lines(lines, loader, value, entry, begin)
    return twice


def at(data: Any, path: Path, default: Any = None) -> Any:
    """Return the entry at `path`, or `default` if there is none."""
    for step in path:
        try:
            data = data[step]
        except (KeyError, IndexError, TypeError):
            return default
    return default if data is None else data
