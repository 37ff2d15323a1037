"""`baton lab bench-length`: what a step costs as a thought grows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from deploy.cli.common import bar, wide_console, write
from orchestrator.errors import InvalidRequest

CHOICE = "small-only,specreason,bild,speculative-thinking"


def bench_length(
    policies: Annotated[str, typer.Option(help="Comma-separated.")] = CHOICE,
    steps: Annotated[str, typer.Option(help="Steps at which one is timed, ascending.")] = (
        "50,400,1600"
    ),
    deltas: Annotated[str, typer.Option(help="Tokens of a remote server's answers.")] = (
        "2000,16000"
    ),
    repeats: Annotated[int, typer.Option(min=1, help="Runs, of which the quickest counts.")] = 3,
    as_json: Annotated[
        Path | None, typer.Option("--json", help="Write the rows to this file.")
    ] = None,
) -> None:
    """CPU time of a step, of a remote delta and of a call as a thought grows; models cost nothing.

    [bold]Examples[/]

      baton lab bench-length --policies specreason --steps 50,1600
    """
    from deploy.evaluation.tables import show
    from deploy.lab.bench import length
    from policies import POLICIES
    from workers.embedded.checkpoints import resolve
    from workers.text.tokenizer_files import load_tokenizer

    names = list(dict.fromkeys(policies.split(",")))
    if unknown := [name for name in names if name not in POLICIES]:
        raise InvalidRequest(
            f"--policies: there is no policy {unknown[0]}; there are {', '.join(POLICIES)}"
        )
    sizes = _sizes("--steps", steps, length.AROUND + 1)
    tokens = _sizes("--deltas", deltas, 1)
    with bar(Console(stderr=True)) as shown:
        timed = length.bench_steps(names, sizes, repeats=repeats, tell=shown.tell)
        tokenizer = load_tokenizer(str(resolve("embedded:large")))
        remote = length.bench_deltas(tokenizer, tokens, tell=shown.tell)
        calls = length.bench_calls(sizes)
    if as_json is not None:
        write(as_json, json.dumps({"rows": [*timed, *remote, *calls]}, indent=2) + "\n")
    console = wide_console()
    show(timed, length.step_columns(sizes), console)
    show(remote, length.DELTAS, console)
    show(calls, length.CALLS, console)
    typer.echo(length.ABOUT)


def _sizes(option: str, text: str, least: int) -> list[int]:
    """Ascending numbers of at least `least`."""
    try:
        sizes = sorted({int(part) for part in text.split(",")})
    except ValueError:
        sizes = []
    if not sizes or sizes[0] < least:
        raise InvalidRequest(
            f"{option}: expected whole numbers of at least {least}, separated by commas, "
            f"not {text!r}"
        )
    return sizes
