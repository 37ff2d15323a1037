"""Answers of a pair's models by the call that they answer, in a file.

An interrupted run finds them again, and the runs of all policies share them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deploy.evaluation.calls import AnsweredCall
from deploy.evaluation.json_lines import RowFile


class CallLog:
    """One file: a line with the pair, then a line an answer; a line that is no answer is skipped.

    Raises:
        ConfigError: the file is of another pair or other settings, or cannot be written.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        self._file = RowFile(path, "baton_calls", settings)
        self.close = self._file.close
        self.known: list[AnsweredCall] = []
        for row in self._file.rows:
            try:
                self.known.append(AnsweredCall.of(row))
            except (ValueError, KeyError, TypeError):
                continue

    def add(self, answered: AnsweredCall) -> None:
        self._file.add(answered.row())
