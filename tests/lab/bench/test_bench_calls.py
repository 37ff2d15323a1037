"""`baton lab bench-calls` on tiny models."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from deploy.cli import main as cli


def run(monkeypatch: pytest.MonkeyPatch, *args: str) -> int:
    monkeypatch.setattr(sys, "argv", ["baton", "lab", "bench-calls", *args])
    with pytest.raises(SystemExit) as info:
        cli.main()
    return int(info.value.code or 0)


def test_calls_side_by_side(
    tiny_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    other, out = tmp_path / "other.yaml", tmp_path / "calls.json"
    other.write_text(tiny_file.read_text())
    files = [str(tiny_file), str(other)]
    options = ["--prefixes", "60", "--repeats", "2", "--json", str(out)]
    assert run(monkeypatch, *files, *options) == 0
    rows = json.loads(out.read_text())["rows"]
    kinds = ["generate 10", "verify 10", "classify"]
    assert [(row["worker"], row["call"]) for row in rows] == [
        (name, kind) for name in (tiny_file.stem, "other") for kind in kinds
    ]
    for row in rows:
        assert row["ms"] > 0
        assert 0.5 < row["cached"] < 1  # the prefix was read before, the call's own part was not
        if row["worker"] == tiny_file.stem:
            assert row["to_first"] == 1
    capsys.readouterr()
    assert run(monkeypatch, str(tiny_file), "--prefixes", "many") == 2
    assert "expected numbers from 1" in capsys.readouterr().err
    assert run(monkeypatch, str(tiny_file), str(tiny_file)) == 2
    assert "two files have one name" in capsys.readouterr().err


def test_streams_side_by_side(
    tiny_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "streams.json"
    options = ["--streams", "1,3", "--tokens", "5", "--repeats", "1", "--json", str(out)]
    assert run(monkeypatch, str(tiny_file), *options) == 0
    rows = json.loads(out.read_text())["rows"]
    assert [(row["worker"], row["streams"]) for row in rows] == [
        (tiny_file.stem, 1),
        (tiny_file.stem, 3),
    ]
    assert all(row["per_s"] > 0 and row["to_first"] == 1 for row in rows)
    assert "tokens a second" in capsys.readouterr().out
    assert run(monkeypatch, str(tiny_file), "--streams", "0") == 2
    assert "expected numbers from 1" in capsys.readouterr().err
