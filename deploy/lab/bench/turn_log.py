"""A run's turns in a file: a line of settings, then a line per turn of all candidates.

A second run with the same settings continues where the first was broken off. A turn in which only
some candidates had run is taken again, so that what is compared always ran side by side.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from deploy.evaluation.json_lines import rewrite
from deploy.lab.bench.candidates import TurnResult
from orchestrator.errors import ConfigError

VERSION: Final = 1
Case = tuple[int, float]
"""(streams, temperature)."""


class TurnLog:
    """The finished turns of one run.

    Args:
        path: the JSON lines; None: nothing is kept.
        settings: whatever two runs must share for their turns to be of one run.

    Raises:
        ConfigError: the file is of other settings, or cannot be read or written.
    """

    def __init__(self, path: Path | None, settings: Mapping[str, Any]) -> None:
        self.path = path
        self._done: dict[tuple[Case, int], dict[str, TurnResult]] = {}
        if path is None:
            return
        settings = json.loads(json.dumps({"baton_bench_decode": VERSION, **settings}))
        try:
            lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
            if lines:
                self._check(_settings(path, lines[0]), settings)
            kept = [*lines[:1]] or [json.dumps(settings)]
            for line in lines[1:]:
                try:
                    row = json.loads(line)
                    case, results = (row["streams"], row["temperature"]), row["results"]
                    self._done[case, row["turn"]] = {
                        label: TurnResult(**result) for label, result in results.items()
                    }
                except (ValueError, KeyError, TypeError, AttributeError):
                    break  # the line that a broken run did not finish
                kept.append(line)
            rewrite(path, kept)
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path}: {getattr(error, 'strerror', error)}") from None

    def results(self, case: Case, turn: int) -> dict[str, TurnResult] | None:
        """A finished turn's results by label."""
        return self._done.get((case, turn))

    def add(self, case: Case, turn: int, results: Mapping[str, TurnResult]) -> None:
        """Keep a turn that all candidates have taken."""
        if self.path is None:
            return
        plain = {label: asdict(result) for label, result in results.items()}
        row = {"streams": case[0], "temperature": case[1], "turn": turn, "results": plain}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def _check(self, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
        for key in sorted(found.keys() | wanted.keys()):
            if found.get(key) != wanted.get(key):
                raise ConfigError(
                    f"{self.path} is of another run: its {key} is {found.get(key)!r}, "
                    f"now {wanted.get(key)!r}; choose another file"
                )


def _settings(path: Path, line: str) -> dict[str, Any]:
    try:
        settings = json.loads(line)
        assert settings["baton_bench_decode"] >= 1
    except (ValueError, AssertionError, KeyError, TypeError):
        raise ConfigError(
            f"{path}: not the rows of a run, which `baton lab bench-decode --rows` writes"
        ) from None
    return dict(settings)
