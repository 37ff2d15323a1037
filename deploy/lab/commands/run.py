"""`baton lab run`: the commands of an experiment file, one after the other."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from deploy.lab.commands.options import named
from orchestrator.errors import ConfigError


def run(
    file: Annotated[Path, typer.Argument(help="A file of deploy/lab/experiments.")],
    only: Annotated[
        str | None, typer.Option(help="Steps to run, comma-separated; none: all.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the commands alone.")] = False,
) -> None:
    """Run an experiment: commands of baton with their parameters, written down in a file.

    `values` names parameters, and a step's command takes them by `{NAME}`. `each` repeats a step
    for the values of a list. Commands keep their rows, so a run that was interrupted continues.

    [bold]Examples[/]

      baton lab run deploy/lab/experiments/embedded-pair.yaml

      baton lab run deploy/lab/experiments/real-pair.yaml --only times
    """
    steps = commands(file)
    chosen = named("--only", only, (name for name, _ in steps))
    for name, command in [step for step in steps if step[0] in chosen]:
        print(f"{name}: baton {command}", file=sys.stderr, flush=True)
        if dry_run:
            continue
        done = subprocess.run([sys.executable, "-m", "deploy.cli.main", *shlex.split(command)])
        if done.returncode:
            raise ConfigError(f"{file}: step {name} ended with status {done.returncode}")


def commands(file: Path) -> list[tuple[str, str]]:
    """(step, command) of an experiment file, with all values filled in.

    Raises:
        ConfigError: the file cannot be read, or a step names an unknown value.
    """
    try:
        data = yaml.safe_load(file.read_text(encoding="utf-8"))
        values: dict[str, Any] = data.get("values", {})
        return [
            (step["name"], step["run"].format(**{**values, "each": one}))
            for step in data["steps"]
            for one in step.get("each", [None])
        ]
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror or error}") from None
    except (yaml.YAMLError, KeyError, TypeError, AttributeError, ValueError) as error:
        raise ConfigError(f"{file}: expected `steps` with `name` and `run`: {error}") from None
