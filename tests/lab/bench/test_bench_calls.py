"""`baton lab bench-calls` on tiny models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

CALLS = ("lab", "bench-calls")


def test_calls_side_by_side(baton: Any, tiny_file: Path, tmp_path: Path) -> None:
    other, out = tmp_path / "other.yaml", tmp_path / "calls.json"
    other.write_text(tiny_file.read_text())
    files = [str(tiny_file), str(other)]
    options = ["--prefixes", "60", "--repeats", "2", "--json", str(out)]
    assert baton(*CALLS, *files, *options).status == 0
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
    ran = baton(*CALLS, str(tiny_file), "--prefixes", "many")
    assert ran.status == 2
    assert "expected numbers from 1" in ran.err
    ran = baton(*CALLS, str(tiny_file), str(tiny_file))
    assert ran.status == 2
    assert "two files have one name" in ran.err


def test_streams_side_by_side(baton: Any, tiny_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "streams.json"
    options = ["--streams", "1,3", "--tokens", "5", "--repeats", "1", "--json", str(out)]
    ran = baton(*CALLS, str(tiny_file), *options)
    assert ran.status == 0
    rows = json.loads(out.read_text())["rows"]
    assert [(row["worker"], row["streams"]) for row in rows] == [
        (tiny_file.stem, 1),
        (tiny_file.stem, 3),
    ]
    assert all(row["per_s"] > 0 and row["to_first"] == 1 for row in rows)
    assert "tokens a second" in ran.out
    ran = baton(*CALLS, str(tiny_file), "--streams", "0")
    assert ran.status == 2
    assert "expected numbers from 1" in ran.err
