"""The stages of `make gpu`: each in a process that is ended at its limit, in an order that puts
what was never measured first. Their rows are in one file, each written as it comes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from deploy.evaluation.json_lines import RowFile
from deploy.evaluation.summary import Row
from deploy.lab.processes import run_within

START_S: Final = 75  # an engine of vLLM's, measured; two on one GPU start one after the other


@dataclass(frozen=True, slots=True)
class Stage:
    """`rows_s`: seconds for what it measures beside the starts of `engines` of vLLM's."""

    name: str
    engines: int
    rows_s: int

    @property
    def limit_s(self) -> int:
        return self.engines * START_S + self.rows_s


STAGES: Final = (
    Stage("draft-model", 1, 65),  # large-only that speculates: at 32, 8 and 1
    Stage("sharing", 2, 240),  # all policies at 32, 8 and 1, and the costs of calls
    Stage("n-gram", 1, 45),  # large-only that speculates by n-grams
    Stage("correct", 0, 60),  # our engine beside transformers, and the embedded pair
    Stage("builtin-1.5b", 0, 40),  # costs of calls
    Stage("builtin-32b", 0, 75),  # 20 s of them for the weights
)
MINUTES: Final = 15


def opened(path: Path) -> RowFile:
    """The file of rows; a key is measured once."""
    return RowFile(path, "baton_gpu", {})


def rows_of(path: Path) -> list[Row]:
    """The rows that are in the file."""
    with closing(opened(path)) as file:
        return list(file.rows)


def has(rows: Sequence[Row], **key: Any) -> bool:
    """Whether there is a row with these values."""
    return any(key.items() <= row.items() for row in rows)


def run_stages(
    path: Path,
    device: str,
    stages: Sequence[Stage] = STAGES,
    tell: Callable[[str], None] = print,
    command: Sequence[str] = (sys.executable, "-m", "deploy.lab.gpu.stages"),
) -> None:
    """Run the stages that have not ended, each up to its limit; a CPU has four times as long."""
    for stage in stages:
        if has(rows_of(path), stage=stage.name, row="ended"):
            tell(f"{stage.name}: is in {path}")
            continue
        limit = stage.limit_s * (4 if device == "cpu" else 1)
        log = path.with_name(f"{stage.name}.log")
        tell(f"{stage.name}: at most {limit} s; its output is in {log}")
        if why := run_within([*command, stage.name, str(path), device], limit, log):
            with closing(opened(path)) as file:
                file.add({"stage": stage.name, "row": "failed", "status": why})
            tell(f"{stage.name}: ended early ({why})")
