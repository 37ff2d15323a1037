"""Every command, file and query that a page shows: commands are parsed by the program that takes
them, as far as that is here; files are validated as what they are parts of."""

from __future__ import annotations

import re
import shlex
from configparser import RawConfigParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import typer
import yaml
from pydantic import TypeAdapter
from typer.core import TyperGroup

from deploy.cli.main import program
from deploy.service.config import Args
from deploy.service.worker_spec import WorkerSpec
from orchestrator.experiments.documents import Experiment
from policies import POLICIES
from tests.test_imports import ROOT

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`((?:\.venv/bin/)?baton [a-z][^`]*)`")
BATON = typer.main.get_command(program())


def shown(page: Path) -> list[tuple[str, str]]:
    """The language and the text of each fenced block."""
    return FENCE.findall(page.read_text(encoding="utf-8"))


def commands(block: str) -> list[str]:
    """The commands of a block; if one has the prompt `$ `, the lines without it are its output."""
    lines = block.replace("\\\n", " ").splitlines()
    typed = [line[2:] for line in lines if line.startswith("$ ")]
    return typed or [line for line in lines if line.strip()]


def words(command: str) -> list[str]:
    found = shlex.split(command, comments=True)
    while found and re.match(r"[A-Z_]+=", found[0]):
        found.pop(0)
    return found


def named(given: list[str]) -> tuple[Any, Any, list[str]]:
    """The command that words name, its context, and the words after it."""
    command: Any = BATON
    context = command.context_class(command, info_name="baton")
    while isinstance(command, TyperGroup) and given:
        name, command, given = command.resolve_command(context, given)
        context = command.context_class(command, parent=context, info_name=name)
    return command, context, given


def baton(given: list[str]) -> None:
    """Parse options and arguments as `baton` does, without looking at files."""
    command, context, given = named(given)
    assert not isinstance(command, TyperGroup), "a group of commands"
    values, left, _ = command.make_parser(context).parse_args(args=list(given))
    assert left == []
    for parameter in command.params:
        assert not parameter.required or values.get(parameter.name) is not None, parameter.name


def make(given: list[str]) -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {word for word in given if "=" not in word} <= set(targets)


def python(given: list[str]) -> None:
    if given[:2] == ["-m", "pytest"]:
        assert all((ROOT / word).exists() for word in given[2:] if "/" in word)
    else:
        assert given[0] == "-m"


def docker(given: list[str]) -> None:
    options = dict(pairwise(given))
    if given[0] == "build":
        text = (ROOT / options["-f"]).read_text()
        assert f" AS {options['--target']}\n" in text
    else:
        assert given[0] == "compose"
        services = yaml.safe_load((ROOT / options["-f"]).read_text())["services"]
        assert services


def kubectl(given: list[str]) -> None:
    options = dict(pairwise(given))
    assert "-k" not in options or (ROOT / options["-k"] / "kustomization.yaml").is_file()


def helm(given: list[str]) -> None:
    values = yaml.safe_load((ROOT / "deploy/kubernetes/chart/values.yaml").read_text())
    for option, value in pairwise(given):
        assert option not in ("--set", "--set-file") or value.partition("=")[0] in values


def export(given: list[str]) -> None:
    assert all("=" in word for word in given)


def claude(given: list[str]) -> None:
    assert not given, "an option of another program, which this test cannot check"


def sh(given: list[str]) -> None:
    assert (ROOT / given[0]).is_file()


PROGRAMS = {
    "baton": baton,
    "export": export,
    "claude": claude,
    "make": make,
    "python": python,
    "docker": docker,
    "kubectl": kubectl,
    "helm": helm,
    "sh": sh,
}


def fields(given: dict[str, Any]) -> None:
    """A part of a deployment file's `args`, or an experiment."""
    if "arms" in given:
        Experiment.parse(given)
        return
    given.get("policy", {}).pop("calibration", None)  # a file that a command of the page makes
    for name, worker in given.pop("workers", {}).items():
        assert name in ("small", "large")
        WorkerSpec.model_validate({"model": "embedded:large", **worker})
    for name, value in given.items():
        field = Args.model_fields[name]
        made: Any = TypeAdapter(field.annotation).validate_python(value)
        for policy, parameters in made.params.items() if name == "policy" else ():
            POLICIES[policy].model_validate(parameters)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_a_page_shows_can_be_run(page: Path) -> None:
    for language, block in shown(page):
        match language:
            case "python":
                compile(block, str(page), "exec")
            case "json":
                yaml.safe_load(f"{{{block}}}" if block.startswith('"') else block)
            case "yaml":
                fields(yaml.safe_load(block))
            case "promql":
                for query in block.splitlines():
                    promql_parser.parse(query.partition("  #")[0])
            case "ini":  # a unit of systemd
                unit = RawConfigParser(strict=True)
                unit.read_string(block)
                baton(words(unit["Service"]["ExecStart"])[1:])
            case _:
                for command in commands(block):
                    program, *rest = words(command)
                    PROGRAMS[Path(program).name](rest)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_of_baton_within_a_sentence_have_these_options(page: Path) -> None:
    for command in INLINE.findall(page.read_text(encoding="utf-8")):
        given = [word for word in words(" ".join(command.split()))[1:] if word != "..."]
        known, _, given = named(given)
        names = {option for one in known.params for option in (*one.opts, *one.secondary_opts)}
        assert {word.partition("=")[0] for word in given if word.startswith("--")} <= names
