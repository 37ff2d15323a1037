"""`baton lab bench-weights` on a tiny model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest


def test_weights_side_by_side(baton: Any, tiny: Path, tmp_path: Path) -> None:
    out = tmp_path / "weights.json"
    command = ["lab", "bench-weights", "--model", str(tiny / "large"), "--limit", "5"]
    command += ["--threads", "1"]
    ran = baton(*command, "--json", str(out))
    assert ran.status == 0, ran.err
    rows = {row["dtype"]: row for row in json.loads(out.read_text())["rows"]}
    assert list(rows) == ["float32", "bfloat16", "int8", "int4"]
    assert rows["float32"]["ratio"] == 1
    for row in rows.values():
        assert row["texts"] == 5
        assert row["ratio"] == pytest.approx(1, abs=0.2)  # random weights and few tokens
        assert row["ratio_low"] <= row["ratio"] <= row["ratio_high"]
        assert row["pass_ms"].keys() == {"1", "4", "8"}
    assert "int4" in ran.out
    ran = baton(*command, "--dtypes", "int2")
    assert (ran.status, "int8, int4, int4+bfloat16, not int2" in ran.err) == (1, True)
