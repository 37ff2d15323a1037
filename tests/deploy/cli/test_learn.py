"""`baton learn gate`: from recordings to a calibration file that a service takes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.cli import main as cli
from deploy.evaluation import gate_learning
from deploy.evaluation.calibration_file import pair_of
from deploy.evaluation.problems import load_problems
from deploy.evaluation.recording import RecordedRequest, Recording, dumps
from deploy.launch.deployment_file import DEFAULT_FILE, load
from deploy.service.calibration import read
from orchestrator.types import Message
from policies.gate import Gate
from policies.learned_gate import LearnedGate


@pytest.fixture
def baton(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*args: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["baton", *args])
        with pytest.raises(SystemExit) as info:
            cli.main()
        told = capsys.readouterr()
        return int(info.value.code or 0), told.out, told.err

    return run


def test_a_gate_is_learned_and_taken(
    baton: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate_learning, "FEWEST", 5)
    runs, out = tmp_path / "runs", tmp_path / "pair.json"
    status, _, error = baton(
        "eval", "--problems", "builtin:train", "--seed", "4", "--limit", "25", "--concurrency", "8",
        "--policies", "specreason", "--recordings", str(runs),
    )  # fmt: skip
    assert status == 0, error
    plot = tmp_path / "gate.png"
    status, told, error = baton("learn", "gate", str(runs), "--out", str(out), "--plot", str(plot))
    assert status == 0, error
    assert "AUC" in told
    assert plot.read_bytes().startswith(b"\x89PNG")
    written = json.loads(out.read_text())
    assert written["policies"]["learned-gate"]["learned"]["helped"] >= 5
    params = read(out).params("learned-gate")
    gate = LearnedGate(**params).gate
    assert gate != Gate()
    assert gate.draft is not None

    # It is learned for this pair: the file stays one file, and another pair's is not touched.
    written["policies"]["specreason"] = {"params": {"threshold": 8}}
    out.write_text(json.dumps(written))
    calls = tmp_path / "pair.calls.jsonl"
    kept = calls.read_bytes()
    assert baton("learn", "gate", str(runs), "--out", str(out))[0] == 0
    assert calls.read_bytes() == kept  # every branch was answered from it
    assert read(out).params("specreason") == {"threshold": 8}
    out.write_text(json.dumps({**written, "pair": {"small": "a", "large": "b"}}))
    status, _, error = baton("learn", "gate", str(runs), "--out", str(out))
    assert status == 1
    assert "belongs to another pair" in error


def test_the_embedded_pair_brings_its_gate() -> None:
    params = load(DEFAULT_FILE).args.policy.params["learned-gate"]
    assert params["answer_by"] == "small"  # what the file says stays
    assert LearnedGate(**params).gate.draft is not None


def test_a_folder_without_recordings_is_refused(baton: Any, tmp_path: Path) -> None:
    status, _, error = baton("learn", "gate", str(tmp_path), "--out", str(tmp_path / "o.json"))
    assert status == 1
    assert "expected recordings, found none" in error


def test_a_file_beside_the_recordings_is_none_of_them(baton: Any, tmp_path: Path) -> None:
    (tmp_path / "o.calls.jsonl").write_text("{}\n")
    status, _, error = baton("learn", "gate", str(tmp_path), "--out", str(tmp_path / "o.json"))
    assert status == 1
    assert "expected recordings, found none" in error


@pytest.mark.parametrize(
    "problems",
    ["builtin:heldout", "builtin:strangers", "deploy/../deploy/evaluation/external.jsonl"],
)
@pytest.mark.parametrize("below", ["", "runs"])
def test_nothing_is_learned_from_problems_of_figures(
    baton: Any, tmp_path: Path, problems: str, below: str
) -> None:
    head = {"baton_eval": 1, "pair": {}, "problems": problems}
    (tmp_path / below).mkdir(exist_ok=True)
    (tmp_path / below / "rows.jsonl").write_text(json.dumps(head) + "\n")
    status, _, error = baton("learn", "gate", str(tmp_path), "--out", str(tmp_path / "o.json"))
    assert status == 1
    assert f"found {problems}, on which figures are measured" in error


def test_no_question_of_figures_is_learned_from_without_its_rows(
    baton: Any, tmp_path: Path
) -> None:
    question = load_problems("builtin:strangers", 1, 0)[0].question
    asked = RecordedRequest("r", "specreason", (Message("user", question),))
    (tmp_path / "one.jsonl").write_text(dumps(Recording(asked, ())))
    status, _, error = baton("learn", "gate", str(tmp_path), "--out", str(tmp_path / "o.json"))
    assert status == 1
    assert "one.jsonl: expected recordings to learn from, found a question of builtin:str" in error


def test_a_lossy_pair_teaches_nothing(baton: Any, tmp_path: Path) -> None:
    data = yaml.safe_load(DEFAULT_FILE.read_text())
    large = data["applications"][0]["args"]["workers"]["large"]
    large["speculation"] = {"method": "reflective", "params": {"draft": "embedded:small"}}
    (tmp_path / "lossy.yaml").write_text(yaml.safe_dump(data))
    status, _, error = baton(
        "learn", "gate", str(tmp_path), "--out", str(tmp_path / "o.json"),
        "--config", str(tmp_path / "lossy.yaml"),
    )  # fmt: skip
    assert status == 1
    assert "large worker: reflective (lossy): a gate is learned from the models' own text" in error


def test_recordings_of_another_pair_are_refused(baton: Any, tmp_path: Path) -> None:
    head = {"baton_eval": 1, "pair": {"small": "a", "large": "b"}, "candidates": []}
    (tmp_path / "rows.jsonl").write_text(json.dumps(head) + "\n")
    status, _, error = baton("learn", "gate", str(tmp_path), "--out", str(tmp_path / "o.json"))
    assert status == 1
    assert "recorded with" in error


def test_recordings_of_other_settings_are_refused(baton: Any, tmp_path: Path) -> None:
    pair: dict[str, Any] = dict(pair_of(load(DEFAULT_FILE).args.workers))
    pair["answering"] = {"large": {"dtype": "int8"}}
    head = {"baton_eval": 1, "pair": pair, "candidates": []}
    (tmp_path / "rows.jsonl").write_text(json.dumps(head) + "\n")
    status, _, error = baton("learn", "gate", str(tmp_path), "--out", str(tmp_path / "o.json"))
    assert status == 1
    assert 'recorded with {"large": {"dtype": "int8"}}, not {}' in error
