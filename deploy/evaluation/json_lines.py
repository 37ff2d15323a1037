"""Files of JSON lines: the settings first, then a row per line. A later run of the same settings
adds to a file; a partial row of an interrupted run is dropped."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from orchestrator.errors import ConfigError

VERSION = 1


def read_rows(path: Path, kind: str) -> tuple[dict[str, Any], list[Any]]:
    """Return the settings and the rows of a file, up to the first partial row.

    `kind` is the key that marks such files, as `baton_eval`.

    Raises:
        ConfigError: it cannot be read, or is no such file.
    """
    with _named(path):
        text = path.read_text(encoding="utf-8-sig")
    settings, rows, _ = _parsed(path, kind, text)
    return settings, rows


def is_of(path: Path, kind: str) -> bool:
    """Return whether the first line of a file has the key that marks files of a kind.

    Raises:
        ConfigError: it cannot be read.
    """
    with _named(path), path.open(encoding="utf-8-sig", errors="replace") as file:
        try:
            head = json.loads(file.readline())
        except ValueError:
            return False
    return isinstance(head, dict) and kind in head


def _parsed(path: Path, kind: str, text: str) -> tuple[dict[str, Any], list[Any], str]:
    """Return the settings, the rows, and the text up to the end of the last whole row."""
    head, *lines = text.split("\n")
    try:
        settings = json.loads(head)
        if settings.pop(kind) != VERSION:
            raise ValueError(kind)
    except (ValueError, KeyError, AttributeError, TypeError):
        raise ConfigError(
            f"{path}: expected rows with the settings first (the key {kind}), found another file"
        ) from None
    rows = []
    for line in lines:
        try:
            rows.append(json.loads(line))
        except ValueError:
            break
    return settings, rows, "\n".join((head, *lines[: len(rows)]))


class RowFile:
    """A file that rows are added to, made if it does not exist; `rows` are those it had.

    All runs that share the file must have the same `settings`.

    Raises:
        ConfigError: the file has other settings, is no such file, cannot be written, or is being
            written by another run.
    """

    def __init__(self, path: Path, kind: str, settings: Mapping[str, Any]) -> None:
        self.rows: list[Any] = []
        with _named(path), ExitStack() as stack:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = stack.enter_context(path.open("a+", encoding="utf-8", newline=""))
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigError(
                    f"{path}: another run is adding to it; wait until it has ended, or name "
                    "another file"
                ) from None
            self._file.seek(0)
            if text := self._file.read():
                found, self.rows, whole = _parsed(path, kind, text)
                _want_same(path, found, json.loads(json.dumps(settings)))
                self._file.truncate(len(whole.encode()))
                self._file.write("\n")
            else:
                self.add({kind: VERSION, **settings})
            stack.pop_all()  # the file stays open

    def add(self, *rows: Any) -> None:
        self._file.writelines(f"{json.dumps(row)}\n" for row in rows)
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def _want_same(path: Path, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    for key in sorted(found.keys() | wanted.keys()):
        if found.get(key) != wanted.get(key):
            raise ConfigError(
                f"{path} is of another run: its {key} is {brief(found.get(key))}, now "
                f"{brief(wanted.get(key))}; choose another file"
            )


def brief(value: Any) -> str:
    """Return a value as JSON, at most 100 characters of it."""
    text = json.dumps(value)
    return text if len(text) <= 100 else f"{text[:97]}..."


@contextmanager
def _named(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
