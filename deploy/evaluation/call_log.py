"""Answers of a pair's models by the call that they answer, in a file.

An interrupted run finds them again, and the runs of all policies share them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from deploy.evaluation.json_lines import RowFile
from orchestrator.types import Classification, Generation, Verification

Answer = Generation | Classification | Verification
KINDS: dict[str, TypeAdapter[Any]] = {
    kind.__name__: TypeAdapter(kind) for kind in (Generation, Classification, Verification)
}


class CallLog:
    """One file: a line with the pair, then a line an answer; a line that is no answer is skipped.

    Raises:
        ConfigError: the file is of another pair or other settings, or cannot be written.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        self._file = RowFile(path, "baton_calls", settings)
        self.close = self._file.close
        self._answers: dict[str, list[tuple[str, int, Answer]]] = {}
        for row in self._file.rows:
            try:
                name, key, cap, kind, plain = row
                answer = KINDS[kind].validate_python(plain)
            except (ValueError, KeyError, TypeError, ValidationError):
                continue
            self._answers.setdefault(name, []).append((key, cap, answer))

    def known(self, name: str) -> list[tuple[str, int, Answer]]:
        """(key, cap on tokens, answer) of each call of worker `name`."""
        return self._answers.get(name, [])

    def add(self, name: str, key: str, cap: int, answer: Answer) -> None:
        kind = type(answer).__name__
        self._file.add([name, key, cap, kind, KINDS[kind].dump_python(answer)])
