"""The rows of an evaluation: going on after a break, and refusing what does not belong."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deploy.evaluation.candidates import lineup
from deploy.evaluation.evaluate import EvaluatedAnswer, Question, Turn
from deploy.evaluation.evaluation_log import EvaluationLog, read
from deploy.evaluation.recording import load
from deploy.service.calibration import fingerprint
from orchestrator.errors import ConfigError
from orchestrator.loop.events import Metrics
from orchestrator.types import Step
from policies.specreason import SpecReason
from tests.deploy.evaluation.recorded_runs import record

PROBLEMS = [Question(f"{number}?", str(number)) for number in range(4)]
CONTENDERS = lineup(["specreason:threshold=5"], [8, 16])
SETTINGS = {"problems": "x.jsonl", "seed": 0}
STEP = Step("small", "a", True, 3, 1.5, 9.0)


def turn(number: int) -> Turn:
    answer = EvaluatedAnswer(str(number), 3, Metrics(1, 2, acceptance_rate=0.5), (STEP,))
    return [replace(answer, correct=True, ms=1.25 * (i + 1)) for i in range(len(CONTENDERS))]


@contextmanager
def opened(path: Path, **changed: Any) -> Iterator[EvaluationLog]:
    usual = {"settings": SETTINGS, "candidates": CONTENDERS, "problems": PROBLEMS}
    with closing(EvaluationLog(path, **{**usual, **changed})) as log:
        yield log


def write(path: Path, *turns: Turn) -> str:
    with opened(path) as log:
        for number, one in enumerate(turns):
            log.add(number, one)
    return path.read_text()


def test_a_second_run_reads_what_the_first_wrote(tmp_path: Path) -> None:
    path = tmp_path / "new" / "rows.jsonl"
    text = write(path, turn(0), turn(1))
    with opened(path) as log:
        assert log.known == {0: turn(0), 1: turn(1)}
        log.add(2, turn(2))
    assert path.read_text().startswith(text)
    assert json.loads(text.partition("\n")[0])["baton_eval"] == 1
    settings, rows = read(path)
    assert settings["seed"] == 0
    assert [row["problem"] for row in rows] == [0] * 4 + [1] * 4 + [2] * 4
    assert [row["budget"] for row in rows[:4]] == [8, 8, 16, 16]


@pytest.mark.parametrize("cut", [1, 10, 200])
def test_what_was_broken_off_is_made_again(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "rows.jsonl"
    text = write(path, turn(0), turn(1), turn(2))
    whole = read(path)
    path.write_text(text[:-cut])
    with opened(path) as log:
        assert {0: turn(0), 1: turn(1)}.items() <= log.known.items()
        log.add(2, turn(2))
    assert read(path) == whole
    assert path.read_text().endswith("\n")


def test_what_failed_is_asked_again_and_the_rest_is_not(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    lost = replace(turn(1)[2], correct=False, error="gone", transient=True)
    long = replace(turn(0)[1], correct=False, error="too long a prompt")  # as it will be again
    first = [turn(0)[0], long, *turn(0)[2:]]
    write(path, first, [*turn(1)[:2], lost, turn(1)[3]], turn(2))
    with opened(path) as log:
        assert log.known == {0: first, 2: turn(2)}
        log.add(1, turn(1))
    assert [row["error"] for row in read(path)[1] if row["error"]] == ["too long a prompt"]
    with opened(path) as log:
        assert log.known == {0: first, 1: turn(1), 2: turn(2)}


def test_fewer_problems_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    text = write(path, turn(0), turn(1))
    with opened(path, problems=PROBLEMS[:1]) as log:
        assert log.known == {0: turn(0)}
    assert path.read_text() == text


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"settings": {**SETTINGS, "seed": 1}}, "its seed is 0, now 1"),
        ({"candidates": CONTENDERS[:2]}, "its policies"),
        ({"settings": {**SETTINGS, "served_by": "b"}}, "its served_by is null"),
        ({"problems": [replace(PROBLEMS[0], answer="7")]}, "its problem 0 is not this run's"),
    ],
)
def test_another_run_is_refused_by_name(tmp_path: Path, changed: Any, said: str) -> None:
    path = tmp_path / "rows.jsonl"
    text = write(path, turn(0))
    with pytest.raises(ConfigError, match=said), opened(path, **changed):
        pass
    assert path.read_text() == text


def test_what_is_no_log_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("my notes\n")
    with pytest.raises(ConfigError, match="the key baton_eval"), opened(path):
        pass
    assert path.read_text() == "my notes\n"
    for name, said in (("notes.txt", "found another file"), ("nowhere", "No such file")):
        with pytest.raises(ConfigError, match=said):
            read(tmp_path / name)


async def test_recordings_lie_beside_it(tmp_path: Path) -> None:
    recording, *_ = await record(SpecReason())
    path = tmp_path / "rows.jsonl"
    own = [replace(one, recording=lambda: recording) for one in turn(0)]
    with opened(path) as log:
        log.add(0, own)
    names = [row["recording"] for row in read(path)[1]]
    assert len(set(names)) == len(CONTENDERS)
    assert all(load(tmp_path / name) == replace(recording, about=SETTINGS) for name in names)
    with opened(path) as log:
        assert log.known == {0: turn(0)}


def test_checkpoints_are_told_apart_by_their_weights(tmp_path: Path) -> None:
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(b"a" * 100)
    first = fingerprint(tmp_path, "m")
    weights.write_bytes(b"a" * 99 + b"b")
    assert fingerprint(tmp_path, "m") != first
    assert fingerprint(None, "Qwen/x") == "Qwen/x"
