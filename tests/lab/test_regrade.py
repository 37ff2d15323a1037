"""Recorded answers graded again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from deploy.evaluation.evaluation_log import read
from deploy.evaluation.problems import load_problems
from deploy.lab import regrade
from orchestrator.errors import ConfigError


def _log(folder: Path, answer: str | None = None) -> Path:
    """Two answers by a grader that ignores signs."""
    problems = load_problems("gym:gsm_symbolic:1", 2, 0)
    rows = [
        {
            "problem": at,
            "question": problem.question,
            "answer": answer or problem.answer,
            "policy": "large-only",
            "budget": None,
            "text": f"\\boxed{{{sign}{problem.answer}}}",
            "correct": True,
            "error": None,
        }
        for at, (problem, sign) in enumerate(zip(problems, ("", "-"), strict=True))
    ]
    head = {"baton_eval": 1, "problems": "gym:gsm_symbolic:1", "seed": 0}
    log = folder / "some" / "rows.jsonl"
    log.parent.mkdir()
    log.write_text("".join(json.dumps(line) + "\n" for line in (head, *rows)))
    return log


def test_what_is_graded_otherwise_is_changed_and_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = _log(tmp_path)
    before, rows = read(log)
    regrade.main(tmp_path)
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("some: problem 1, large-only: now wrong: '\\\\boxed{-")
    assert said[1:] == ["2 answers graded, 1 otherwise than before"]
    assert read(log) == (before, [rows[0], {**rows[1], "correct": False}])
    regrade.main(tmp_path)
    assert capsys.readouterr().out == "2 answers graded, 0 otherwise than before\n"


def test_other_problems_are_refused(tmp_path: Path) -> None:
    _log(tmp_path, answer="another")
    with pytest.raises(ConfigError, match="problem 0 of gym:gsm_symbolic:1 is another one now"):
        regrade.main(tmp_path)
