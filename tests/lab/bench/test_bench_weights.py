"""`baton lab bench-weights` on a tiny model."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from deploy.cli import main as cli


def test_weights_side_by_side(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "weights.json"

    def run(*more: str) -> int:
        args = ["--model", str(tiny / "large"), "--limit", "5", "--threads", "1", *more]
        monkeypatch.setattr(sys, "argv", ["baton", "lab", "bench-weights", *args])
        with pytest.raises(SystemExit) as info:
            cli.main()
        return int(info.value.code or 0)

    assert run("--json", str(out)) == 0
    rows = {row["dtype"]: row for row in json.loads(out.read_text())["rows"]}
    assert list(rows) == ["float32", "bfloat16", "int8", "int4"]
    assert rows["float32"]["ratio"] == 1
    for row in rows.values():
        assert row["texts"] == 5
        assert row["ratio"] == pytest.approx(1, abs=0.2)  # random weights and few tokens
        assert row["ratio_low"] <= row["ratio"] <= row["ratio_high"]
        assert row["pass_ms"].keys() == {"1", "4", "8"}
    assert "int4" in capsys.readouterr().out
    assert run("--dtypes", "int2") == 1
    assert "int8, int4, int4+bfloat16, not int2" in capsys.readouterr().err
