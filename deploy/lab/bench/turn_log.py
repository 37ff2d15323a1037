"""A run's turns in a file: a line of settings, then a line per turn of all candidates.

A turn in which only some candidates had run is taken again, so that what is compared always ran
side by side.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from deploy.evaluation.json_lines import RowFile
from deploy.lab.bench.candidates import TurnResult

Case = tuple[int, float]
"""(streams, temperature)."""


class TurnLog:
    """The finished turns of one run; without a path none are kept.

    Raises:
        ConfigError: the file is of other settings, or cannot be read or written.
    """

    def __init__(self, path: Path | None, settings: Mapping[str, Any]) -> None:
        self._done: dict[tuple[Case, int], dict[str, TurnResult]] = {}
        self._file: RowFile | None = None
        if path is not None:
            self._file = RowFile(path, "baton_bench_decode", settings, self._load)

    def results(self, case: Case, turn: int) -> dict[str, TurnResult] | None:
        """A finished turn's results by label."""
        return self._done.get((case, turn))

    def add(self, case: Case, turn: int, results: Mapping[str, TurnResult]) -> None:
        """Keep a turn that all candidates have taken."""
        if self._file is not None:
            plain = {label: asdict(result) for label, result in results.items()}
            row = {"streams": case[0], "temperature": case[1], "turn": turn, "results": plain}
            self._file.add(row)

    def _load(self, rows: list[Any]) -> int:
        for row in rows:
            case = (row["streams"], row["temperature"])
            self._done[case, row["turn"]] = {
                label: TurnResult(**result) for label, result in row["results"].items()
            }
        return len(rows)
