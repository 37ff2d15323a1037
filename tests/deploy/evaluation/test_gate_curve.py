"""The page of gates learned from more and more requests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from deploy.evaluation import gate_curve
from orchestrator.errors import ConfigError


def row(policy: str, accuracy: float, readings: float) -> dict[str, Any]:
    around = {"accuracy_low": accuracy - 0.02, "accuracy_high": accuracy + 0.02}
    difference = accuracy - 0.95
    against = {"difference_low": difference - 0.01, "difference_high": difference + 0.01}
    return {
        "policy": policy,
        "n": 600,
        "accuracy": accuracy,
        "difference": difference,
        "large_tokens": 7.25,
        "judge_calls": readings,
        **around,
        **against,
    }


def measured(folder: Path, size: int, accuracy: float, seed: int = 7) -> None:
    aucs = {"draft": {"auc": 0.9}, "reading": {"auc": 0.97}}
    learned = {"requests": size, "drafts": 3 * size, **aucs}
    gate = {"policies": {"learned-gate": {"params": {}, "learned": learned}}}
    (folder / f"{size}.json").write_text(json.dumps(gate))
    rows = [row("large-only", 0.95, 0), row("specreason", 0.94, 3.4)]
    rows += [row("learned-gate", accuracy, 1.5)]
    asked = {"problems": "builtin:dev", "seed": seed, "n": 600}
    (folder / f"{size}.measured.json").write_text(json.dumps({"rows": rows, **asked}))


def test_each_gate_has_a_row_beside_what_needs_none(tmp_path: Path) -> None:
    measured(tmp_path, 1000, 0.953)
    measured(tmp_path, 200, 0.94)
    out = tmp_path / "page.md"
    assert gate_curve.main([str(out), str(tmp_path), "1000", "200"]) == 0
    table = [line.split(" | ") for line in out.read_text().splitlines() if line.startswith("| ")]
    names = [line[0].strip("| ") for line in table[2:]]
    assert names[:2] == ["large-only", "specreason"]
    assert names[2:] == ["learned-gate, 200 requests", "learned-gate, 1000 requests"]
    assert "on 600 development problems" in out.read_text()
    assert table[2][1:4] == ["", "", ""]
    assert table[5][1:6] == ["3000", "0.900", "0.970", "95.3 [93, 97]", "+0.3 [-1, +1]"]
    assert table[5][7].startswith("1.50")


def test_what_is_missing_or_of_other_questions_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for content in ({}, {"policies": {}}):
        (tmp_path / "200.json").write_text(json.dumps(content))
        with pytest.raises(ConfigError, match=r"200\.json: expected a gate that was learned"):
            gate_curve.read(tmp_path, [200])
    measured(tmp_path, 200, 0.94)
    measured(tmp_path, 1000, 0.94, seed=8)
    with pytest.raises(ConfigError, match=r"1000\.measured\.json: expected questions .*'seed': 7"):
        gate_curve.read(tmp_path, [200, 1000])
    (tmp_path / "200.measured.json").unlink()
    assert gate_curve.main([str(tmp_path / "page.md"), str(tmp_path), "200"]) == 1
    assert "200.measured.json: No such file or directory" in capsys.readouterr().err
    assert gate_curve.main([str(tmp_path / "page.md"), str(tmp_path)]) == 2
