"""A file that is rewritten holds its old lines or its new ones."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.evaluation.json_lines import RowFile, rewrite
from orchestrator.errors import ConfigError


def test_a_rewriting_that_is_broken_off_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "rows.jsonl"
    rewrite(path, ["1", "2"])
    assert path.read_text() == "1\n2\n"

    def broken_off() -> Iterator[str]:
        yield "3"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rewrite(path, broken_off())
    assert path.read_text() == "1\n2\n"
    rewrite(path, ["4"])
    assert [one.name for one in path.parent.iterdir()] == ["rows.jsonl"]
    assert path.read_text() == "4\n"


def test_two_runs_do_not_add_to_one_file(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    first = RowFile(path, "rows", {})
    with pytest.raises(ConfigError, match="another run is adding to it"):
        RowFile(path, "rows", {})
    first.add(1)
    first.close()
    again = RowFile(path, "rows", {})
    assert again.rows == [1]
    again.close()


def test_a_file_that_was_replaced_meanwhile_is_another_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rows.jsonl"
    flock = fcntl.flock

    def late(file: Any, how: int) -> None:
        rewrite(path, ["the other run's"])
        flock(file, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with pytest.raises(ConfigError, match="another run is adding to it"):
        RowFile(path, "rows", {})
    assert path.read_text() == "the other run's\n"
