"""`baton learn gate`: from recordings to a calibration file that a service takes."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.evaluation import gate_learning
from deploy.evaluation.problems import load_problems
from deploy.evaluation.recording import Recording, dumps
from deploy.launch.deployment_file import DEFAULT_FILE, load
from deploy.service.calibration import read
from deploy.service.notes import settings_of
from orchestrator.types import Message
from policies.gate import Gate
from policies.learned_gate import LearnedGate
from policies.specreason import SpecReason
from tests.deploy.evaluation.recorded_runs import record


def test_a_gate_is_learned_and_taken(
    baton: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate_learning, "FEWEST", 5)
    runs, out = tmp_path / "runs", tmp_path / "pair.json"
    ran = baton(
        "eval", "--problems", "builtin:train", "--seed", "4", "--limit", "14", "--concurrency", "8",
        "--policies", "specreason", "--recordings", str(runs),
    )  # fmt: skip
    assert ran.status == 0, ran.err
    ran = baton("learn", "gate", str(runs), "--out", str(out))
    assert ran.status == 0, ran.err
    assert "AUC" in ran.out
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
    assert baton("learn", "gate", str(runs), "--out", str(out)).status == 0
    assert calls.read_bytes() == kept  # every branch was answered from it
    assert read(out).params("specreason") == {"threshold": 8}
    out.write_text(json.dumps({**written, "pair": {"small": "a", "large": "b"}}))
    ran = baton("learn", "gate", str(runs), "--out", str(out))
    assert ran.status == 1
    assert "belongs to another pair" in ran.err


def test_the_embedded_pair_brings_its_gate() -> None:
    params = load(DEFAULT_FILE).args.policy.params["learned-gate"]
    assert params["answer_by"] == "small"  # what the file says stays
    assert LearnedGate(**params).gate.draft is not None


def refused(baton: Any, folder: Path, *more: str) -> str:
    ran = baton("learn", "gate", str(folder), "--out", str(folder / "o.json"), *more)
    assert ran.status == 1
    return str(ran.err)


def leave(folder: Path, recording: Recording, **about: Any) -> None:
    """Leave a recording of `baton eval` there."""
    folder.mkdir(exist_ok=True)
    (folder / "one.jsonl").write_text(dumps(replace(recording, about=about)))


def test_a_folder_without_recordings_is_refused(baton: Any, tmp_path: Path) -> None:
    assert "expected recordings, found none" in refused(baton, tmp_path)
    texts = {"o.calls": "{}\n", "rows": "no JSON", "mine": '[{"a": 1}]', "empty": ""}
    for name, text in texts.items():
        (tmp_path / f"{name}.jsonl").write_text(text)
    (tmp_path / "binary.jsonl").write_bytes(b"\xff\n")
    assert "expected recordings, found none" in refused(baton, tmp_path)


def test_other_files_beside_recordings_are_passed_over(baton: Any, tmp_path: Path) -> None:
    recording, *_ = asyncio.run(record(SpecReason()))
    (tmp_path / "a.jsonl").write_text('{"question": "1+1?", "answer": "2"}\n')
    leave(tmp_path, recording, problems="builtin:heldout")
    assert "one.jsonl: expected recordings to learn from" in refused(baton, tmp_path)
    (tmp_path / "a.jsonl").write_text('{"baton_recording": 99}\n')
    assert "a.jsonl: expected rows" in refused(baton, tmp_path)


@pytest.mark.parametrize(
    "problems",
    ["builtin:heldout", "builtin:strangers", "deploy/../deploy/evaluation/external.jsonl"],
)
@pytest.mark.parametrize("below", ["", "runs"])
def test_nothing_is_learned_from_problems_of_figures(
    baton: Any, tmp_path: Path, problems: str, below: str
) -> None:
    recording, *_ = asyncio.run(record(SpecReason()))
    leave(tmp_path / below, recording, problems=problems)
    assert f"of {problems}, on which figures are measured" in refused(baton, tmp_path)


def test_no_question_of_figures_is_learned_from(baton: Any, tmp_path: Path) -> None:
    recording, *_ = asyncio.run(record(SpecReason()))
    question = load_problems("builtin:strangers", 1, 0)[0].question
    turns = (Message("user", question), Message("assistant", "4"), *recording.messages)
    said = "one.jsonl: expected recordings to learn from, found a question of builtin:str"
    for one in (replace(recording, question=question), replace(recording, messages=turns)):
        leave(tmp_path, one)
        assert said in refused(baton, tmp_path)


def test_recordings_that_teach_nothing_are_named_before_a_model_is_loaded(
    baton: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deploy.cli.learn.opened_pair", None)
    recording, *_ = asyncio.run(record(SpecReason()))  # not greedy
    leave(tmp_path, recording)
    assert "found none in the recordings: record greedy requests" in refused(baton, tmp_path)


def test_what_failed_is_said_also_if_nothing_can_be_learned(
    baton: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def by_question(found: Any) -> Any:
        return [*found]

    async def examples(*given: Any, **named: Any) -> Any:
        return [], ["the large worker is gone"] * 3

    for stub in (by_question, examples):
        monkeypatch.setattr(f"deploy.cli.learn.{stub.__name__}", stub)
    recording, *_ = asyncio.run(record(SpecReason()))
    leave(tmp_path, recording)
    ran = baton("learn", "gate", str(tmp_path), "--out", str(tmp_path / "o.json"))
    assert (ran.status, "expected at least 20 drafts" in ran.err) == (1, True)
    assert "3 drafts are left out, the first because: the large worker is gone" in ran.out


def test_a_lossy_pair_teaches_nothing(baton: Any, tmp_path: Path) -> None:
    data = yaml.safe_load(DEFAULT_FILE.read_text())
    large = data["applications"][0]["args"]["workers"]["large"]
    large["speculation"] = {"method": "reflective", "params": {"draft": "embedded:small"}}
    file = tmp_path / "lossy.yaml"
    file.write_text(yaml.safe_dump(data))
    said = "large worker: reflective (lossy): a gate is learned from the models' own text"
    assert said in refused(baton, tmp_path, "--config", str(file))


def test_recordings_of_another_pair_or_other_settings_are_refused(
    baton: Any, tmp_path: Path
) -> None:
    recording, *_ = asyncio.run(record(SpecReason()))
    own = settings_of(load(DEFAULT_FILE).args.workers)
    leave(tmp_path, recording, served_by=own | {"pair": {"small": "a", "large": "b"}})
    assert 'recorded with {"small": "a", "large": "b"}, not {"small": ' in refused(baton, tmp_path)
    leave(tmp_path, recording, served_by=own | {"answering": {"large": {"dtype": "int8"}}})
    assert 'recorded with {"large": {"dtype": "int8"}}, not {}' in refused(baton, tmp_path)
