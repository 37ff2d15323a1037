"""Reads and checks one file of word lists."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from string import Formatter
from types import TracebackType
from typing import Any

import yaml

from orchestrator.errors import ConfigError

FOLDER = Path(__file__).parent / "words"

Wordings = tuple[str, ...]


class WordFile:
    """One file of word lists. Leaving the context checks that every entry was read.

    Placeholders are single letters: each wording has all of `required` and any of `optional`.

    Raises:
        ConfigError: an entry is missing, unknown or of another form; names file and entry.
    """

    def __init__(self, name: str, folder: Path = FOLDER) -> None:
        self._path = folder / f"{name}.yaml"
        try:
            text = self._path.read_text(encoding="utf-8")
            self._entries: Any = yaml.load(text, yaml.CSafeLoader)
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise ConfigError(f"{self._path}: cannot be read: {error}") from None
        self._mapping("the file", self._entries)

    def __enter__(self) -> WordFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None and self._entries:
            names = ", ".join(self._entries)
            raise ConfigError(f"{self._path}: unknown entries: {names}; remove or rename them")

    def phrases(self, entry: str) -> Wordings:
        """Texts without placeholders, used as they are."""
        return self._texts(entry, self._take(entry))

    def wordings(self, entry: str, required: str = "", optional: str = "") -> Wordings:
        return self._wordings(entry, self._take(entry), required, optional)

    def wording(self, entry: str, required: str = "") -> str:
        """A single one."""
        return self._wordings(entry, [self._take(entry)], required, "")[0]

    def by_name(
        self, entry: str, required: Mapping[str, str], optional: str = ""
    ) -> dict[str, Wordings]:
        """Lists by name; `required` has every name, with the placeholders of its list."""
        return self._by_name(entry, self._take(entry), required, optional)

    def groups(
        self, entry: str, required: Mapping[str, str], optional: str = ""
    ) -> dict[str, dict[str, Wordings]]:
        """Read several such groups, each under its name."""
        groups = self._mapping(entry, self._take(entry))
        return {
            name: self._by_name(f"{entry}.{name}", group, required, optional)
            for name, group in groups.items()
        }

    def _take(self, entry: str) -> Any:
        if entry not in self._entries:
            raise ConfigError(f"{self._path}: {entry} is missing")
        return self._entries.pop(entry)

    def _by_name(
        self, place: str, value: Any, required: Mapping[str, str], optional: str
    ) -> dict[str, Wordings]:
        lists = self._mapping(place, value)
        if lists.keys() != required.keys():
            raise self._error(place, f"the names {', '.join(required)}", ", ".join(lists))
        return {
            name: self._wordings(f"{place}.{name}", lists[name], required[name], optional)
            for name in lists
        }

    def _wordings(self, place: str, value: Any, required: str, optional: str) -> Wordings:
        texts = self._texts(place, value)
        for i, text in enumerate(texts):
            try:
                letters = {name for _, name, _, _ in Formatter().parse(text) if name is not None}
            except ValueError as error:
                raise self._error(f"{place}[{i}]", "placeholders such as {a}", text) from error
            if not set(required) <= letters <= {*required, *optional}:
                wanted = " ".join(f"{{{letter}}}" for letter in required) or "no placeholders"
                more = "".join(f" {{{letter}}}" for letter in optional)
                wanted += f", and at most{more} besides" if more else ""
                raise self._error(f"{place}[{i}]", wanted, text)
        return texts

    def _texts(self, place: str, value: Any) -> Wordings:
        if not isinstance(value, list) or not value:
            raise self._error(place, "a list of texts", value)
        for i, text in enumerate(value):
            if not isinstance(text, str):
                raise self._error(f"{place}[{i}]", "a text (quote it)", text)
        return tuple(value)

    def _mapping(self, place: str, value: Any) -> dict[str, Any]:
        if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
            raise self._error(place, "a mapping of names to word lists", value)
        return value

    def _error(self, place: str, wanted: str, got: object) -> ConfigError:
        return ConfigError(f"{self._path}: {place}: expected {wanted}, got {str(got)[:80]!r}")
