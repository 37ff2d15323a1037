"""Problems from a file of one's own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from deploy.evaluation.problems import load_problems
from orchestrator.errors import ConfigError


def test_a_line_ends_at_a_line_feed_alone(tmp_path: Path) -> None:
    """JSON may hold what else Unicode calls an end of a line as it is."""
    asked = ["one\u2028two", "three\u0085four\u2029", "five"]
    lines = [json.dumps({"question": one, "answer": 1}, ensure_ascii=False) for one in asked]
    path = tmp_path / "mine.jsonl"
    path.write_bytes("\r\n".join([*lines, ""]).encode())
    assert [problem.question for problem in load_problems(str(path), None, 0)] == asked


def test_a_line_that_is_no_problem_is_named(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text('{"question": "2+2?", "answer": 4}\n\n{"question": "3+3?"}\n')
    with pytest.raises(ConfigError, match=r"mine\.jsonl:3: expected a JSON object with question"):
        load_problems(str(path), None, 0)
    (only, other) = load_problems(str(path), None, 0, answers=False)
    assert (only.answer, other.answer) == ("4", "")


def test_a_byte_order_mark_is_no_part_of_the_first_problem(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text('{"question": "2+2?", "answer": 4}\n', encoding="utf-8-sig")
    (only,) = load_problems(str(path), None, 0)
    assert (only.question, only.answer) == ("2+2?", "4")
