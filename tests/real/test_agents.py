"""Agents of other people's frameworks over the real pair: several turns, both models at work."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from tests.real.agents import tasks

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-agents" / "bin" / "python"


@pytest.mark.parametrize(
    ("policy", "framework", "api"),
    [
        ("large-only", "openai_agents", "chat"),
        ("specreason", "openai_agents", "responses"),
        ("specreason", "langchain_agent", "chat"),
        ("specreason", "langchain_agent", "responses"),
    ],
)
def test_an_agent_calls_its_tools_and_answers(
    pair: OpenAI, policy: str, framework: str, api: str
) -> None:
    made = run(framework, str(pair.base_url), policy, api)
    assert made["calls"][0] == ["price", {"item": "notebook"}]
    assert made["calls"][-1] == ["multiply", {"a": 37, "b": 12}]
    assert tasks.ANSWER in made["answer"]


def run(framework: str, *arguments: str) -> dict[str, Any]:
    if not PYTHON.is_file():
        pytest.fail(f"there is no {PYTHON}: run `make test-real`", pytrace=False)
    done = subprocess.run(
        [PYTHON, "-m", f"tests.real.agents.{framework}", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=550,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(json.loads(done.stdout))
