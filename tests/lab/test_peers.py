"""`make bench`: which rows are measured, and which are kept."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from deploy.lab.peers import run


def test_fresh_measures_the_wanted_rows_again_and_keeps_the_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    measured, rows = list[str](), tmp_path / "rows"

    def measure(command: Sequence[str], limit_s: float, log: Path) -> str:
        measured.append(command[-1])
        (rows / f"{command[-1]}.json").write_text("[]")
        return ""

    def bench(*options: str) -> list[str]:
        measured.clear()
        monkeypatch.setattr(sys, "argv", ["run", "--out", str(rows), *options])
        with pytest.raises(SystemExit, match="False"):
            run.main()
        return measured

    (tmp_path / "build").mkdir()
    monkeypatch.setattr(run, "ROOT", tmp_path)
    monkeypatch.setattr(run, "run_within", measure)
    monkeypatch.setattr(run, "prepare", lambda: None)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    assert bench("--rows", "decode,call") == ["decode", "call"]
    assert bench("--rows", "call", "--fresh") == ["call"]
    assert bench("--rows", "decode,call") == []
