"""The stages of `make gpu`: each in a process that is ended at its limit, in an order that puts
what was never measured first."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from deploy.lab.reenact.rows import Row

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


class Results:
    """Rows in a file of JSON lines, each written as it comes; a key is measured once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)

    def rows(self) -> list[Row]:
        """All rows so far; of a line that was cut by an interruption nothing."""
        if not self.path.is_file():
            return []
        lines = self.path.read_text(encoding="utf-8").split("\n")[:-1]
        return [json.loads(line) for line in lines if line.endswith("}")]

    def has(self, **key: Any) -> bool:
        """Whether there is a row with these values."""
        return any(key.items() <= row.items() for row in self.rows())

    def put(self, row: Row) -> None:
        """Append a row."""
        cut = self.path.is_file() and not self.path.read_bytes().endswith(b"\n")
        with self.path.open("a", encoding="utf-8") as file:
            file.write(("\n" if cut else "") + json.dumps(row) + "\n")


def run_stages(
    results: Results,
    device: str,
    stages: Sequence[Stage] = STAGES,
    tell: Callable[[str], None] = print,
    command: Sequence[str] = (sys.executable, "-m", "deploy.lab.gpu.stages"),
) -> None:
    """Run the stages that have not ended, each up to its limit; a CPU has four times as long."""
    for stage in stages:
        if results.has(stage=stage.name, row="ended"):
            tell(f"{stage.name}: is in {results.path}")
            continue
        limit = stage.limit_s * (4 if device == "cpu" else 1)
        log = results.path.with_name(f"{stage.name}.log")
        tell(f"{stage.name}: at most {limit} s; its output is in {log}")
        arguments = [*command, stage.name, str(results.path), device]
        with log.open("a") as output:
            process = subprocess.Popen(
                arguments, stdout=output, stderr=output, start_new_session=True
            )
        try:
            status: int | str = process.wait(limit)
        except subprocess.TimeoutExpired:
            status = f"at its limit of {limit} s"
        finally:  # its engines are processes of its group
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
                try:
                    process.wait(10)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
        if status:
            results.put({"stage": stage.name, "row": "failed", "status": status})
            tell(f"{stage.name}: ended early ({status})")
