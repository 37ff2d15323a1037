"""`baton lab bench-calls` over vLLM's build for CPUs."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.lab.bench.vllm_calls import STAGES

if find_spec("vllm") is None:
    pytest.skip("needs vLLM: make test-vllm", allow_module_level=True)

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]


def test_a_calls_time_is_that_of_its_stages(baton: Any, tiny_file: Path, tmp_path: Path) -> None:
    ran = baton("lab", "bench-calls", str(tiny_file))
    assert ran.status == 2
    assert "expected the engine vllm" in ran.err
    data = yaml.safe_load(tiny_file.read_text())
    file, out = tmp_path / "v.yaml", tmp_path / "o.json"
    data["applications"][0]["args"]["workers"]["large"] = {
        "model": "embedded:large",
        "engine": "vllm",
        "device": "cpu",
        "rows": 2,
        "max_len": 512,
        "threads": 1,
    }
    file.write_text(yaml.safe_dump(data))
    options = ["--prefixes", "60", "--repeats", "2", "--json", str(out)]
    assert baton("lab", "bench-calls", str(file), *options).status == 0
    rows = json.loads(out.read_text())["rows"]
    kinds = ["generate 10", "step", "judge", "verify 10"]
    assert [(row["by"], row["call"]) for row in rows] == [
        (by, kind) for by in ("worker", "vLLM") for kind in kinds
    ]
    for row in rows:
        assert row["passes"] > 0
        assert 0 < row["beside_ms"] < row["ms"]
        assert set(STAGES) <= row.keys()
        assert 0 < row["read"] < 60  # the thought was read before
