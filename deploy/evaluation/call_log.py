"""Answers of a pair's models by the call that they answer, in a file.

A run that is broken off finds them again, so it goes on where it stopped; and what one policy's run
has asked for serves the runs of all others.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from pydantic import TypeAdapter, ValidationError

from deploy.evaluation.json_lines import rewrite
from orchestrator.errors import ConfigError
from orchestrator.types import Classification, Generation, Verification

VERSION = 1
Answer = Generation | Classification | Verification
KINDS: dict[str, TypeAdapter[Any]] = {
    kind.__name__: TypeAdapter(kind) for kind in (Generation, Classification, Verification)
}


class CallLog:
    """One file: a line with the pair, then a line an answer.

    Args:
        path: the JSON lines; made where it does not exist.
        settings: what two runs must share for their answers to be the same.

    Raises:
        ConfigError: the file is of other settings, is no such file, or cannot be written.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        self._answers: dict[str, list[tuple[str, int, Answer]]] = {}
        head = json.dumps({"baton_calls": VERSION, **settings}, sort_keys=True)
        try:
            lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
            if lines and lines[0] != head:
                raise ConfigError(
                    f"{path}: expected answers of this pair as it is set now (weights, dtype, "
                    "thinking, max_len, url, speculation), found another file; choose another"
                )
            whole = [line for line in lines[1:] if self._load(line)]
            rewrite(path, (head, *whole))
            self._file: TextIO = path.open("a", encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path}: {getattr(error, 'strerror', None) or error}") from None

    def known(self, name: str) -> list[tuple[str, int, Answer]]:
        """(key, cap on tokens, answer) of each call of worker `name`."""
        return self._answers.get(name, [])

    def add(self, name: str, key: str, cap: int, answer: Answer) -> None:
        """Write one answer."""
        kind = type(answer).__name__
        plain = KINDS[kind].dump_python(answer)
        self._file.write(json.dumps([name, key, cap, kind, plain]) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def _load(self, line: str) -> bool:
        """Whether it is a whole line, and not the one that a broken run did not finish."""
        try:
            name, key, cap, kind, plain = json.loads(line)
            answer = KINDS[kind].validate_python(plain)
        except (ValueError, KeyError, TypeError, ValidationError):
            return False
        self._answers.setdefault(name, []).append((key, cap, answer))
        return True
