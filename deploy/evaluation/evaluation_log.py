"""An evaluation's rows in a file: a line of settings, then a line per problem and policy.

A second run with the same settings continues where the first stopped, and retries what failed for a
transient reason: the last row of a problem and a policy counts. Recordings, if kept, are beside the
log, one file per request.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeVar

from deploy.evaluation import recording
from deploy.evaluation.candidates import Candidate
from deploy.evaluation.evaluate import EvaluatedAnswer, EvaluationResult, Problem, Turn
from deploy.evaluation.json_lines import RowFile, brief, read_rows
from orchestrator.errors import ConfigError
from orchestrator.loop.events import Metrics
from orchestrator.types import Step

T = TypeVar("T")
KIND = "baton_eval"


class EvaluationLog:
    """The rows of one evaluation.

    Args:
        path: the JSON lines.
        settings: what all runs that share the file must have in common. In `pair.params`, the
            deployment file's parameters by policy, only those of the candidates count.
        candidates: the policies that answer, in order.
        recordings: also write each answer's recording into the log's folder.
    """

    def __init__(
        self,
        path: Path,
        settings: Mapping[str, Any],
        candidates: Sequence[Candidate],
        *,
        recordings: bool = False,
    ) -> None:
        self.path, self._candidates, self._recordings = path, candidates, recordings
        asked = {"policies": [[c.label, c.params] for c in candidates]}
        self._settings = self._of_candidates({**settings, **asked})
        self._file: RowFile | None = None
        self.known: dict[tuple[int, Candidate], EvaluationResult] = {}
        """Results in the file for problems after those that `resume` returned."""

    def resume(self, problems: Sequence[Problem]) -> list[Turn]:
        """Open the file; return the results of the first problems that all candidates answered.

        They may be more than `problems` if an earlier run had more. Rows after the last complete
        turn, left by an interrupted run, are dropped.

        Raises:
            ConfigError: the file has other settings or problems, or cannot be written.
        """
        turns: list[tuple[int, Turn]] = []

        def keep(rows: list[Any]) -> int:
            turns.extend(self._turns(rows, problems))
            return len(turns) * len(self._candidates)

        self._file = RowFile(self.path, KIND, self._settings, keep, self._of_candidates)
        return self._answered(dict(turns))

    def add(self, index: int, problem: Problem, turn: Turn) -> None:
        """Write the rows of one problem, unless the file has them."""
        assert self._file is not None
        answered = [*zip(self._candidates, turn, strict=True)]
        if all(self.known.get((index, one)) is result for one, result in answered):
            return
        for candidate, result in answered:
            row = {
                "problem": index,
                "question": problem.question,
                "answer": problem.answer,
                "policy": candidate.label,
                "budget": candidate.budget,
                **_plain(result),
            }
            recorded = self.path.parent / f"{index:05d}-{_slug(candidate)}.jsonl"
            if self._recordings and result.answer.recording is not None:
                text = recording.dumps(result.answer.recording)
                recorded.write_text(text, encoding="utf-8")
            # The recording of a known result was written by an earlier run.
            if self._recordings and recorded.exists():
                row["recording"] = recorded.name
            self._file.add(row)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _of_candidates(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Drop the parameters of policies that no candidate is; `baton` may be any of them."""
        names = {candidate.policy for candidate in self._candidates}
        pair = settings.get("pair")
        if not isinstance(pair, Mapping) or "params" not in pair or "baton" in names:
            return {**settings}
        params = {name: pair["params"][name] for name in pair["params"].keys() & names}
        return {**settings, "pair": {**pair, "params": params}}

    def _turns(self, rows: Sequence[Any], problems: Sequence[Problem]) -> list[tuple[int, Turn]]:
        """Return the complete turns, each with its problem's number, in the file's order."""
        turns: list[tuple[int, Turn]] = []
        turn: list[EvaluationResult] = []
        for row in rows:
            candidate, index = self._candidates[len(turn)], row["problem"]
            if (row["policy"], row["budget"]) != (candidate.label, candidate.budget):
                break
            if index < len(problems) and not _same_problem(row, problems[index]):
                raise ConfigError(
                    f"{self.path}: its problem {index} is not this run's; choose another file"
                )
            turn.append(result_of(row))
            if len(turn) == len(self._candidates):
                turns.append((index, turn))
                turn = []
        return turns

    def _answered(self, turns: Mapping[int, Turn]) -> list[Turn]:
        """Return the turns before the first that is missing or has a transient failure; put the
        other results without such a failure into `known`."""
        done: list[Turn] = []
        while (turn := turns.get(len(done))) and not any(one.transient for one in turn):
            done.append(turn)
        self.known = {
            (index, candidate): result
            for index, turn in turns.items()
            if index >= len(done)
            for candidate, result in zip(self._candidates, turn, strict=True)
            if not result.transient
        }
        return done


def _plain(result: EvaluationResult) -> dict[str, Any]:
    answer = result.answer
    return {
        "correct": result.correct,
        "ms": round(result.ms, 3),
        "text": answer.text,
        "output_tokens": answer.output_tokens,
        "metrics": asdict(answer.metrics),
        "steps": [asdict(step) for step in answer.steps],
        "error": result.error,
        **({"passing": True} if result.transient else {}),
    }


def result_of(row: Mapping[str, Any]) -> EvaluationResult:
    """Return the result from which a row of the log was written."""
    answer = EvaluatedAnswer(
        row["text"],
        row["output_tokens"],
        from_json(Metrics, row["metrics"]),
        tuple(from_json(Step, step) for step in row["steps"]),
    )
    return EvaluationResult(
        row["correct"], row["ms"], answer, row["error"], row.get("passing", False)
    )


def read(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return a log's settings and its rows.

    Raises:
        ConfigError: no such file, or not a log.
    """
    settings, lines = read_rows(path, KIND)
    rows = {(row["problem"], row["policy"], row["budget"]): row for row in lines}
    return settings, [*rows.values()]


def recordings(folder: Path, pair: Mapping[str, str], answering: Mapping[str, Any]) -> list[Path]:
    """Return the recordings beside a log of this pair of models with these settings.

    Raises:
        ConfigError: no log, or one of another pair or other settings.
    """
    settings, kept = read(folder / "rows.jsonl")
    for name, now in pair.items():
        then = settings["pair"].get(name)
        if now != then:
            raise ConfigError(f"{folder}: recorded with {then} as {name} model, not {now}")
    if (then := settings["pair"].get("answering", {})) != answering:
        raise ConfigError(f"{folder}: recorded with {brief(then)}, not {brief(answering)}")
    return [folder / row["recording"] for row in kept if "recording" in row]


def from_json(kind: type[T], data: Mapping[str, Any]) -> T:
    """Build a dataclass from JSON; ignore keys that this version does not know."""
    known = {one.name for one in fields(kind)}  # type: ignore[arg-type]
    return kind(**{key: value for key, value in data.items() if key in known})


def _same_problem(row: Mapping[str, Any], problem: Problem) -> bool:
    return (row["question"], row["answer"]) == (problem.question, problem.answer)


def _slug(candidate: Candidate) -> str:
    """Return a file name that no other candidate has."""
    text = json.dumps([candidate.label, candidate.params], sort_keys=True)
    plain = "".join(sign if sign.isalnum() or sign == "-" else "_" for sign in candidate.label)
    return f"{plain[:40]}-{blake2b(text.encode(), digest_size=4).hexdigest()}"
