"""Experiment files, and the commands that they stand for."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from deploy.lab.commands.run import commands
from orchestrator.errors import ConfigError
from tests.test_imports import ROOT

FILES = sorted((ROOT / "deploy" / "lab" / "experiments").glob("*.yaml"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_command_of_a_shipped_file_exists(baton: Any, file: Path) -> None:
    found = commands(file)
    assert found
    for name, command in found:
        words = shlex.split(command)
        path = words[: 2 if words[0] in ("lab", "learn") else 1]
        ran = baton(*path, "--help")
        assert ran.status == 0, name
        options = [word for word in words if word.startswith("--")]
        assert [option for option in options if option not in ran.out] == [], name


def test_a_step_is_run_for_each_value_and_a_failure_ends_the_run(
    baton: Any, tmp_path: Path
) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(
        "values: {ask: check-config}\nsteps:\n"
        f"- {{name: a, each: [local, remote], run: '{{ask}} {ROOT}/deploy/{{each}}.yaml'}}\n"
        "- {name: b, run: '{ask} /nowhere.yaml'}\n"
        "- {name: c, run: '{ask} never'}\n"
    )
    assert baton("lab", "run", str(file), "--only", "a").status == 0
    ran = baton("lab", "run", str(file), "--only", "a,d")
    assert (ran.status, "--only: expected some of a, b, c, not 'd'" in ran.err) == (2, True)
    ran = baton("lab", "run", str(file))
    assert (ran.status, "step b ended with status 1" in ran.err) == (1, True)


@pytest.mark.parametrize("text", ["steps: [{name: a, run: '{b}'}]", "steps: [{run: a}]", "[]", "{"])
def test_a_file_that_cannot_be_read(text: str, tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(ConfigError, match="expected `steps`"):
        commands(tmp_path / "x.yaml")
