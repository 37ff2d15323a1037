"""The rows of an evaluation: going on after a break, and refusing what does not belong."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deploy.evaluation.candidates import Candidate, lineup
from deploy.evaluation.evaluate import EvaluatedAnswer, EvaluationResult, Question, Turn
from deploy.evaluation.evaluation_log import EvaluationLog, read
from deploy.evaluation.recording import RecordedRequest, Recording, loads
from deploy.service.calibration import fingerprint
from orchestrator.errors import ConfigError
from orchestrator.loop.events import Metrics
from orchestrator.types import Message, Step

PROBLEMS = [Question(f"{number}?", str(number)) for number in range(4)]
CONTENDERS = lineup(["specreason:threshold=5"], [8, 16])
SETTINGS = {"problems": "x.jsonl", "seed": 0}
STEP = Step("small", "a", True, 3, 1.5, 9.0)


def turn(number: int) -> Turn:
    answer = EvaluatedAnswer(str(number), 3, Metrics(1, 2, acceptance_rate=0.5), (STEP,))
    return [EvaluationResult(True, 1.25 * (i + 1), answer) for i in range(len(CONTENDERS))]


def written(path: Path, count: int) -> str:
    evaluation_log = EvaluationLog(path, SETTINGS, CONTENDERS)
    assert evaluation_log.resume(PROBLEMS) == []
    for number in range(count):
        evaluation_log.add(number, PROBLEMS[number], turn(number))
    evaluation_log.close()
    return path.read_text()


def test_a_second_run_reads_what_the_first_wrote(tmp_path: Path) -> None:
    path = tmp_path / "new" / "rows.jsonl"
    text = written(path, 2)
    evaluation_log = EvaluationLog(path, SETTINGS, CONTENDERS)
    assert evaluation_log.resume(PROBLEMS) == [turn(0), turn(1)]
    evaluation_log.add(2, PROBLEMS[2], turn(2))
    evaluation_log.close()
    assert path.read_text().startswith(text)
    settings, rows = read(path)
    assert settings["seed"] == 0
    assert [row["problem"] for row in rows] == [0] * 4 + [1] * 4 + [2] * 4
    assert [row["budget"] for row in rows[:4]] == [8, 8, 16, 16]


@pytest.mark.parametrize("cut", [10, 200])
def test_a_turn_that_was_broken_off_is_made_again(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "rows.jsonl"
    text = written(path, 3)
    path.write_text(text[:-cut])
    evaluation_log = EvaluationLog(path, SETTINGS, CONTENDERS)
    assert len(evaluation_log.resume(PROBLEMS)) == 2
    evaluation_log.add(2, PROBLEMS[2], turn(2))
    evaluation_log.close()
    assert path.read_text() == text


def test_what_failed_is_asked_again_and_the_rest_is_not(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    evaluation_log = EvaluationLog(path, SETTINGS, CONTENDERS)
    evaluation_log.resume(PROBLEMS)
    lost = replace(turn(1)[2], correct=False, error="gone", transient=True)
    long = replace(turn(0)[1], correct=False, error="too long a prompt")  # as it will be again
    nothing = [turn(0)[0], long, *turn(0)[2:]]
    first = [nothing, [*turn(1)[:2], lost, turn(1)[3]], turn(2)]
    for number, one in enumerate(first):
        evaluation_log.add(number, PROBLEMS[number], one)
    evaluation_log.close()
    baseline = CONTENDERS[2]
    for _ in range(2):  # the second time after a break behind the first
        evaluation_log = EvaluationLog(path, SETTINGS, CONTENDERS)
        assert evaluation_log.resume(PROBLEMS) == [nothing]
        known = evaluation_log.known
        assert known.keys() == {
            (number, one)
            for number in (1, 2)
            for one in CONTENDERS
            if (number, one) != (1, baseline)
        }
        evaluation_log.close()
    evaluation_log = EvaluationLog(path, SETTINGS, CONTENDERS)
    evaluation_log.resume(PROBLEMS)
    evaluation_log.add(1, PROBLEMS[1], turn(1))
    evaluation_log.add(2, PROBLEMS[2], [evaluation_log.known[2, one] for one in CONTENDERS])
    evaluation_log.close()
    assert len(path.read_text().splitlines()) == 1 + 4 * len(CONTENDERS)
    rows = read(path)[1]
    assert [row["error"] for row in rows if row["error"]] == ["too long a prompt"]
    whole = EvaluationLog(path, SETTINGS, CONTENDERS).resume(PROBLEMS)
    assert whole == [nothing, turn(1), turn(2)]


def test_fewer_problems_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    text = written(path, 3)
    evaluation_log = EvaluationLog(path, SETTINGS, CONTENDERS)
    assert len(evaluation_log.resume(PROBLEMS[:1])) == 3
    evaluation_log.close()
    assert path.read_text() == text


def test_other_settings_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    text = written(path, 1)
    for evaluation_log, said in (
        (EvaluationLog(path, {**SETTINGS, "seed": 1}, CONTENDERS), "its seed is 0, now 1"),
        (EvaluationLog(path, SETTINGS, CONTENDERS[:2]), "its policies"),
        (EvaluationLog(path, {**SETTINGS, "pair": "b"}, CONTENDERS), "its pair is null"),
    ):
        with pytest.raises(ConfigError, match=said):
            evaluation_log.resume(PROBLEMS)
    others = [replace(PROBLEMS[0], answer="7"), *PROBLEMS[1:]]
    with pytest.raises(ConfigError, match="its problem 0 is not this run's"):
        EvaluationLog(path, SETTINGS, CONTENDERS).resume(others)
    assert path.read_text() == text


def test_only_parameters_of_the_candidates_must_stay_as_they_were(tmp_path: Path) -> None:
    def settings(**params: Any) -> dict[str, Any]:
        return {**SETTINGS, "pair": {"small": "s", "large": "l", "params": params}}

    def resume(candidates: Sequence[Candidate], **params: Any) -> None:
        evaluation_log = EvaluationLog(tmp_path / "rows.jsonl", settings(**params), candidates)
        evaluation_log.resume(PROBLEMS)
        evaluation_log.close()

    bild = [*CONTENDERS[:1], Candidate("bild", "bild")]
    resume(bild, bild={"rollback": 2}, route={"threshold": 3})
    resume(bild, bild={"rollback": 2}, route={"threshold": 4}, cascade={"accept_at": 5})
    with pytest.raises(ConfigError, match="its pair"):
        resume(bild, bild={"rollback": 3})
    (tmp_path / "rows.jsonl").unlink()
    default = [Candidate("baton", "baton")]
    resume(default, route={"threshold": 3})
    with pytest.raises(ConfigError, match="its pair"):
        resume(default, route={"threshold": 4})


def test_what_is_no_journal_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("my notes\n")
    with pytest.raises(ConfigError, match="the key baton_eval"):
        EvaluationLog(path, SETTINGS, CONTENDERS).resume(PROBLEMS)
    assert path.read_text() == "my notes\n"
    with pytest.raises(ConfigError, match="found another file"):
        read(path)
    with pytest.raises(ConfigError, match="No such file"):
        read(tmp_path / "nowhere")


def test_recordings_lie_beside_it(tmp_path: Path) -> None:
    recording = Recording(RecordedRequest("r", "large-only", (Message("user", "0?"),)), ())
    evaluation_log = EvaluationLog(tmp_path / "rows.jsonl", SETTINGS, CONTENDERS, recordings=True)
    evaluation_log.resume(PROBLEMS)
    own = [replace(one, answer=replace(one.answer, recording=recording)) for one in turn(0)]
    evaluation_log.add(0, PROBLEMS[0], own)
    evaluation_log.close()
    again = EvaluationLog(tmp_path / "rows.jsonl", SETTINGS, CONTENDERS, recordings=True)
    again.resume(PROBLEMS)
    again.add(0, PROBLEMS[0], turn(0))  # some of it known, so without its recording
    again.close()
    names = [row["recording"] for row in read(tmp_path / "rows.jsonl")[1]]
    assert len(set(names)) == len(CONTENDERS)
    assert all(loads((tmp_path / name).read_text()).request == recording.request for name in names)


def test_checkpoints_are_told_apart_by_their_weights(tmp_path: Path) -> None:
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(b"a" * 100)
    first = fingerprint(tmp_path, "m")
    weights.write_bytes(b"a" * 99 + b"b")
    assert fingerprint(tmp_path, "m") != first
    assert fingerprint(None, "Qwen/x") == "Qwen/x"


def test_rows_are_json_lines(tmp_path: Path) -> None:
    lines = written(tmp_path / "rows.jsonl", 1).splitlines()
    assert json.loads(lines[0])["baton_eval"] == 1
    assert json.loads(lines[1])["steps"][0]["author"] == "small"
