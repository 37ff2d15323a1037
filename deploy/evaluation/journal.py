"""An evaluation on paper: one line of settings, then one line per problem and policy.

A second run of the same settings goes on where the first stopped. Recordings, where they are
kept, lie beside the journal, one file a request.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from hashlib import blake2b
from pathlib import Path
from typing import Any, TextIO, TypeVar

from deploy.evaluation import recording
from deploy.evaluation.evaluate import Answered, Contender, Outcome, Problem, Turn
from orchestrator.errors import ConfigError
from orchestrator.loop.events import Metrics
from orchestrator.types import Step

T = TypeVar("T")
VERSION = 1
SAMPLE = 1 << 20  # bytes read at each end of a file of weights


class Journal:
    """The rows of one evaluation.

    Args:
        path: the JSON lines.
        settings: whatever two runs must share for their rows to stand side by side.
        contenders: who answers, in order.
        recordings: also write each answer's recording into the journal's folder.
    """

    def __init__(
        self,
        path: Path,
        settings: Mapping[str, Any],
        contenders: Sequence[Contender],
        *,
        recordings: bool = False,
    ) -> None:
        self.path, self._contenders, self._recordings = path, contenders, recordings
        self._settings = {**settings, "policies": [[c.label, c.params] for c in contenders]}
        self._file: TextIO | None = None

    def resume(self, problems: Sequence[Problem]) -> list[Turn]:
        """The outcomes of the first problems, as far as all contenders have answered them.

        There may be more of them than problems, where an earlier run had more. What follows the
        last whole turn in the file (a run that was broken off) is dropped.

        Raises:
            ConfigError: the file is of other settings or problems, or cannot be written.
        """
        done: list[Turn] = []
        try:
            lines = self.path.read_text(encoding="utf-8").splitlines() if self._old() else []
            kept = lines[:1]
            if lines:
                self._check(lines[0])
                done = self._turns(lines[1:], problems)
                kept += lines[1 : 1 + len(done) * len(self._contenders)]
            else:
                kept = [json.dumps({"baton_eval": VERSION, **self._settings})]
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")
            self._file = self.path.open("a", encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{self.path}: {getattr(error, 'strerror', error)}") from None
        return done

    def add(self, index: int, problem: Problem, turn: Turn) -> None:
        """Write down what became of one problem."""
        assert self._file is not None
        for contender, outcome in zip(self._contenders, turn, strict=True):
            row = {
                "problem": index,
                "question": problem.question,
                "answer": problem.answer,
                "level": problem.level,
                "policy": contender.label,
                "budget": contender.budget,
                **_plain(outcome),
            }
            if self._recordings and outcome.answered.recording is not None:
                row["recording"] = f"{index:05d}-{_slug(contender)}.jsonl"
                text = recording.dumps(outcome.answered.recording)
                (self.path.parent / row["recording"]).write_text(text, encoding="utf-8")
            self._file.write(json.dumps(row) + "\n")
        self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _old(self) -> bool:
        return self.path.is_file() and self.path.stat().st_size > 0

    def _check(self, line: str) -> None:
        try:
            found = json.loads(line)
            assert found.pop("baton_eval") == VERSION
        except (ValueError, AssertionError, KeyError, AttributeError):
            raise ConfigError(f"{self.path}: not the rows of an evaluation") from None
        wanted = json.loads(json.dumps(self._settings))
        for key in sorted(found.keys() | wanted.keys()):
            if found.get(key) != wanted.get(key):
                raise ConfigError(
                    f"{self.path} is of another evaluation: its {key} is "
                    f"{_brief(found.get(key))}, now {_brief(wanted.get(key))}; choose another file"
                )

    def _turns(self, lines: Sequence[str], problems: Sequence[Problem]) -> list[Turn]:
        width, found = len(self._contenders), []
        for number, line in enumerate(lines):
            try:
                row = json.loads(line)
                outcome = outcome_of(row)
                place = (row["problem"], row["policy"], row["budget"])
                question, answer = row["question"], row["answer"]
            except (ValueError, KeyError, TypeError):
                break  # the line that a broken run did not finish
            index, contender = number // width, self._contenders[number % width]
            if place != (index, contender.label, contender.budget):
                break
            known = problems[index] if index < len(problems) else None
            if known is not None and (question, answer) != (known.question, known.answer):
                raise ConfigError(f"{self.path}: problem {index} of it is another one")
            found.append(outcome)
        whole = len(found) - len(found) % width
        return [found[start : start + width] for start in range(0, whole, width)]


def _plain(outcome: Outcome) -> dict[str, Any]:
    answered = outcome.answered
    return {
        "correct": outcome.correct,
        "ms": round(outcome.ms, 3),
        "text": answered.text,
        "output_tokens": answered.output_tokens,
        "metrics": asdict(answered.metrics),
        "steps": [asdict(step) for step in answered.steps],
        "error": outcome.error,
    }


def outcome_of(row: Mapping[str, Any]) -> Outcome:
    """A journal's row as the outcome it tells of."""
    answered = Answered(
        row["text"],
        row["output_tokens"],
        made(Metrics, row["metrics"]),
        tuple(made(Step, step) for step in row["steps"]),
    )
    return Outcome(row["correct"], row["ms"], answered, row["error"])


def read(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A journal's settings and its rows.

    Raises:
        ConfigError: no such file, or not a journal.
    """
    try:
        head, *lines = path.read_text(encoding="utf-8").splitlines()
        settings = json.loads(head)
        assert settings.pop("baton_eval") == VERSION
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None
    except (ValueError, KeyError, AssertionError, AttributeError):
        raise ConfigError(f"{path}: not the rows of an evaluation") from None
    rows = []
    for line in lines:
        try:
            rows.append(json.loads(line))
        except ValueError:
            break  # a run that is still going on, or was broken off
    return settings, rows


def made(kind: type[T], data: Mapping[str, Any]) -> T:
    """A dataclass from JSON; keys that this version does not know are left out."""
    known = {one.name for one in fields(kind)}  # type: ignore[arg-type]
    return kind(**{key: value for key, value in data.items() if key in known})


def fingerprint(folder: Path | None, name: str) -> str:
    """What tells one checkpoint from another: its name, and of a folder its weights' ends.

    Weights of many gigabytes are not read whole: size, first and last mebibyte of each file.
    """
    if folder is None:
        return name
    digest = blake2b(digest_size=8)
    for path in sorted(folder.glob("*.safetensors")):
        size = path.stat().st_size
        with path.open("rb") as file:
            digest.update(f"{path.name}:{size}".encode() + file.read(SAMPLE))
            file.seek(max(0, size - SAMPLE))
            digest.update(file.read())
    return f"{name}@{digest.hexdigest()}"


def _brief(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 100 else f"{text[:97]}..."


def _slug(contender: Contender) -> str:
    """A file name that no two contenders share."""
    text = json.dumps([contender.label, contender.params], sort_keys=True)
    plain = "".join(sign if sign.isalnum() or sign == "-" else "_" for sign in contender.label)
    return f"{plain[:40]}-{blake2b(text.encode(), digest_size=4).hexdigest()}"
