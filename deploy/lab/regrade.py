"""Recorded answers graded again: `python -m deploy.lab.regrade FOLDER`.

Every `rows.jsonl` below the folder says of each answer whether it is right. A row is changed, and
printed, where the grader of this version says otherwise.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from deploy.evaluation.evaluate import Problem
from deploy.evaluation.evaluation_log import read
from deploy.evaluation.grading import Grader
from deploy.evaluation.json_lines import rewrite
from deploy.evaluation.problems import load_problems
from orchestrator.errors import ConfigError


def regrade(log: Path, grader: Grader) -> tuple[int, list[str]]:
    """How many answers a log holds, and what is said of those that were graded otherwise.

    Raises:
        ConfigError: no such file, not a log, or its problems are no longer drawn as they were.
    """
    settings, rows = read(log)
    source, seed = settings["problems"], settings["seed"]
    problems = load_problems(source, 1 + max(row["problem"] for row in rows), seed)
    for row in rows:
        problem = problems[row["problem"]]
        if (row["question"], row["answer"]) != (problem.question, problem.answer):
            raise ConfigError(f"{log}: problem {row['problem']} of {source} is another one now")
    verdicts = asyncio.run(_verdicts(rows, problems, grader))
    moved = []
    for row, right in zip(rows, verdicts, strict=True):
        if right != row["correct"]:
            row["correct"] = right
            end = " ".join(row["text"].split())[-60:]
            moved.append(
                f"{log.parent.name}: problem {row['problem']}, {row['policy']}: now "
                f"{'right' if right else 'wrong'}: {end!r} for {row['answer']!r}"
            )
    if moved:
        head = log.read_text(encoding="utf-8").partition("\n")[0]
        rewrite(log, [head, *(json.dumps(row) for row in rows)])
    return len(rows), moved


async def _verdicts(
    rows: Sequence[Mapping[str, Any]], problems: Sequence[Problem], grader: Grader
) -> list[bool]:
    return [
        row["error"] is None and await grader.right(row["text"], problems[row["problem"]])
        for row in rows
    ]


def main(folder: Path) -> None:
    grader, answers, changed = Grader(), 0, 0
    try:
        for log in sorted(folder.glob("**/rows.jsonl")):
            rows, moved = regrade(log, grader)
            answers, changed = answers + rows, changed + len(moved)
            for line in moved:
                print(line)
    finally:
        grader.close()
    print(f"{answers} answers graded, {changed} otherwise than before")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
