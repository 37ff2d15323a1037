"""An evaluation's rows in a file: a line of settings, then a line per problem and policy.

A second run with the same settings continues where the first stopped, and retries what failed for a
transient reason: the last row of a problem and a policy counts. Recordings, if kept, are beside the
log, one file per request.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter

from deploy.evaluation.candidates import Candidate
from deploy.evaluation.evaluate import EvaluatedAnswer, Question, Turn
from deploy.evaluation.json_lines import RowFile, read_rows
from deploy.evaluation.recording import dumps
from orchestrator.errors import ConfigError

KIND = "baton_eval"
ANSWER = TypeAdapter(EvaluatedAnswer)
UNWRITTEN: Final = {"recording", "trace_id", "summary"}
"""What a row has not of an answer."""


class EvaluationLog:
    """The rows of one evaluation; `known` has the problems that an earlier run finished.

    A problem with a transient failure is not finished.

    Args:
        path: the JSON lines.
        settings: what all runs that share the file must have in common.
        candidates: the policies that answer, in order.
        problems: an earlier run may have had more or fewer.

    Raises:
        ConfigError: the file has other settings or problems, or cannot be written.
    """

    def __init__(
        self,
        path: Path,
        settings: Mapping[str, Any],
        candidates: Sequence[Candidate],
        problems: Sequence[Question],
    ) -> None:
        self.path, self._settings = path, settings
        self._candidates, self._problems = candidates, problems
        asked = {"policies": [[c.label, c.params] for c in candidates]}
        self._file = RowFile(path, KIND, {**settings, **asked})
        self.close = self._file.close
        self.known: dict[int, Turn] = {}
        rows = _by_key(self._file.rows)
        for row in rows.values():
            self._check(row)
        for index in range(len(problems)):
            own = [rows.get((index, one.label, one.budget)) for one in candidates]
            turn = [
                ANSWER.validate_python({**row, "recording": None}) for row in own if row is not None
            ]
            if len(turn) == len(candidates) and not any(one.transient for one in turn):
                self.known[index] = turn

    def _check(self, row: Mapping[str, Any]) -> None:
        """Refuse a row whose problem is another than this run's."""
        index = row["problem"]
        if index >= len(self._problems):
            return
        problem = self._problems[index]
        if (row["question"], row["answer"]) != (problem.question, problem.answer):
            self.close()
            raise ConfigError(
                f"{self.path}: its problem {index} is not this run's; choose another file"
            )

    def add(self, index: int, turn: Turn) -> None:
        """Write the rows of one problem, and the recordings beside the file."""
        problem = self._problems[index]
        for candidate, answer in zip(self._candidates, turn, strict=True):
            row = {
                "problem": index,
                "question": problem.question,
                "answer": problem.answer,
                "policy": candidate.label,
                "budget": candidate.budget,
                **ANSWER.dump_python(replace(answer, ms=round(answer.ms, 3)), exclude=UNWRITTEN),
            }
            if answer.recording is not None:
                recorded = self.path.parent / f"{index:05d}-{_slug(candidate)}.jsonl"
                recording = replace(answer.recording(), about={**self._settings})
                recorded.write_text(dumps(recording), encoding="utf-8")
                row["recording"] = recorded.name
            self._file.add(row)


def _by_key(rows: Sequence[Mapping[str, Any]]) -> dict[tuple[int, str, int | None], Any]:
    """Return the last row of each problem, policy and budget."""
    return {(row["problem"], row["policy"], row["budget"]): row for row in rows}


def read(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return a log's settings and its rows.

    Raises:
        ConfigError: no such file, or not a log.
    """
    settings, rows = read_rows(path, KIND)
    return settings, [*_by_key(rows).values()]


def _slug(candidate: Candidate) -> str:
    """Return a file name that no other candidate has."""
    text = json.dumps([candidate.label, candidate.params], sort_keys=True)
    plain = "".join(sign if sign.isalnum() or sign == "-" else "_" for sign in candidate.label)
    return f"{plain[:40]}-{blake2b(text.encode(), digest_size=4).hexdigest()}"
