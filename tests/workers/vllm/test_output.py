"""Why an engine did not start, from what its process has written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from workers.vllm import output
from workers.vllm.output import EngineOutput

STARTED = """
from orchestrator.errors import ConfigError
from workers.vllm.loading import load
if __name__ == "__main__":
    little = {"kv_cache_memory_bytes": 1000}
    try:
        load("embedded:small", device="cpu", rows=2, max_len=256, threads=1, engine_args=little)
    except ConfigError as error:
        print("TOLD", error)
"""


def test_the_engines_own_error_is_told(tmp_path: Path) -> None:
    (tmp_path / "started.py").write_text(STARTED)
    log = tmp_path / "log"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    with log.open("w") as out:
        subprocess.run(
            [sys.executable, str(tmp_path / "started.py")],
            stdout=out,
            stderr=subprocess.STDOUT,
            env=environment,
            check=True,
        )
    told = next(line for line in log.read_text().splitlines() if line.startswith("TOLD"))
    assert "cannot load embedded:small: ValueError: No available memory for the cache" in told
    assert f"(more in {log}); look at gpu, max_len and rows" in told


def test_the_last_error_that_names_a_cause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log"
    log.write_text("OSError: of an engine before\n")
    monkeypatch.setattr(output, "_file", lambda stream: log)
    written = EngineOutput()
    assert f"says why in {log}; look at gpu" in written.explain()
    with log.open("a") as more:
        more.write(
            "(EngineCore pid=7) ERROR torch.OutOfMemoryError: CUDA out of memory.\n"
            "RuntimeError: Worker failed, see the stack trace above for the root cause\n"
        )
    assert written.explain().startswith("torch.OutOfMemoryError: CUDA out of memory. (more in ")


def test_output_that_is_no_file_is_above(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "_file", lambda stream: None)
    assert "says why in the output above" in EngineOutput().explain()
