"""Files of JSON lines: the settings first, then a row per line. A later run of the same settings
adds to a file; a partial row of an interrupted run is dropped."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from orchestrator.errors import ConfigError

VERSION = 1


def read_rows(path: Path, kind: str) -> tuple[dict[str, Any], list[Any]]:
    """Return the settings and the rows of a file, up to the first partial row.

    `kind` is the key that marks such files, as `baton_eval`.

    Raises:
        ConfigError: it cannot be read, or is no such file.
    """
    with _named(path):
        head, *lines = path.read_text(encoding="utf-8-sig").split("\n")
    try:
        settings = json.loads(head)
        if settings.pop(kind) != VERSION:
            raise ValueError(kind)
    except (ValueError, KeyError, AttributeError, TypeError):
        raise ConfigError(
            f"{path}: expected rows with the settings first (the key {kind}), found another file"
        ) from None
    return settings, [*_whole(lines)]


def _whole(lines: Iterable[str]) -> Iterator[Any]:
    for line in lines:
        try:
            yield json.loads(line)
        except ValueError:
            return


class RowFile:
    """A file that rows are added to, made if it does not exist.

    All runs that share the file must have the same `settings`, as far as `compared` returns them.
    `keep` gets the file's rows and returns the number of the first ones that stay, as `rows`.

    Raises:
        ConfigError: the file has other settings, is no such file, cannot be written, or is being
            written by another run.
    """

    def __init__(
        self,
        path: Path,
        kind: str,
        settings: Mapping[str, Any],
        keep: Callable[[list[Any]], int] = len,
        compared: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda settings: settings,
    ) -> None:
        rows: list[Any] = []
        with _named(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            before = _locked(path)
        with before:
            if path.stat().st_size:
                found, rows = read_rows(path, kind)
                _want_same(path, compared(found), compared(settings))
                settings = found
            self.rows = rows[: keep(rows)]
            with _named(path):
                rewrite(path, map(json.dumps, ({kind: VERSION, **settings}, *self.rows)))
                self._file = _locked(path)

    def add(self, *rows: Any) -> None:
        self._file.writelines(f"{json.dumps(row)}\n" for row in rows)
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def _locked(path: Path) -> TextIO:
    """Open a file to add to it; no other run can, until it is closed."""
    file = path.open("a", encoding="utf-8")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(file.fileno()), path.stat()):  # else it was replaced
            return file
    except BlockingIOError:
        pass
    file.close()
    raise ConfigError(
        f"{path}: another run is adding to it; wait until it has ended, or name another file"
    )


def _want_same(path: Path, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    wanted = json.loads(json.dumps(wanted))
    for key in sorted(found.keys() | wanted.keys()):
        if found.get(key) != wanted.get(key):
            raise ConfigError(
                f"{path} is of another run: its {key} is {brief(found.get(key))}, now "
                f"{brief(wanted.get(key))}; choose another file"
            )


def rewrite(path: Path, lines: Iterable[str]) -> None:
    """Replace a file's content by these lines, at once.

    Raises:
        OSError: it cannot be written.
    """
    path = path.resolve()  # not the link to it
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f"{path.name}.new")
    new.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    os.replace(new, path)


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
