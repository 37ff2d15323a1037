"""`baton trace`: show a request step by step, or replay a recorded one."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer
from pydantic import TypeAdapter
from rich.console import Console

from deploy.cli.common import DEFAULT_URL, AsJson, ServiceUrl, format_step, lossy, print_json
from deploy.evaluation.candidates import Candidate, build_policy
from deploy.evaluation.json_lines import read_rows
from deploy.evaluation.recording import KIND, compare, load
from deploy.evaluation.service_client import call
from orchestrator.types import Step, chain_steps

STEPS = TypeAdapter(list[Step])
trace = typer.Typer(help="Look at what happened to a request, and replay it.")


@trace.command("show")
def show(
    which: Annotated[str, typer.Argument(metavar="ID|FILE", help="Trace id, or a saved trace.")],
    url: ServiceUrl = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Show one request, step by step: who wrote what, with which score.

    [bold]Examples[/]

      baton trace show 3f2a9c...            from the service at http://127.0.0.1:8000

      baton trace show saved.jsonl          a recording

      baton trace show 3f2a9c... --json > saved.json
    """
    path = Path(which)
    is_file = path.is_file() or path.suffix in (".json", ".jsonl")
    record = _read(path) if is_file else call(url, "GET", f"/v1/traces/{quote(which, safe='')}")
    if as_json:
        print_json(record)
        return
    console = Console(highlight=False, soft_wrap=True)
    console.print(record.get("question", ""), style="bold", markup=False)
    for step in chain_steps(STEPS.validate_python(record.get("steps", []))):
        console.print(format_step(step))
    console.print()
    console.print(record.get("answer") or "(no answer)", style="bold", markup=False)
    console.print()
    parts = [record.get("policy"), record.get("status"), record.get("finish_reason")]
    if error := record.get("error"):
        parts.append(error.get("message"))
    if metrics := record.get("metrics"):
        parts.append(f"{metrics['ms']['total']:.0f} ms")
        parts.append(f"{metrics['small_tokens']} small, {metrics['large_tokens']} large tokens")
    parts += lossy(record.get("speculation", {}))
    console.print(", ".join(part for part in parts if part), style="dim", markup=False)


@trace.command("replay")
def replay(
    file: Annotated[Path, typer.Argument(help="A recording of `baton eval --recordings`.")],
    policy: Annotated[
        str | None,
        typer.Option(
            metavar="NAME[:PARAMETER=VALUE...]",
            help="Another policy, or the recorded one with other parameters.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Replay a recording through the policies' code as it is today, with no model.

    Shows the steps, and whether the policy decides as recorded. If not, the exit status is 1, the
    error says what differs first, and the steps continue until a call has no recorded answer.

    [bold]Examples[/]

      baton eval --problems builtin:dev --limit 20 --recordings runs/dev

      baton trace replay runs/dev/00000-specreason-1f0c2a9b.jsonl

      baton trace replay runs/dev/00000-specreason-1f0c2a9b.jsonl --policy specreason:threshold=8

      baton trace replay saved.jsonl --json
    """
    recording = load(file)
    given = Candidate.parse(recording.policy if policy is None else policy)
    parameters = recording.parameters if given.policy == recording.policy else {}
    built = build_policy(given.policy, {**parameters, **given.params})
    steps, difference, ended = asyncio.run(compare(recording, built))
    if as_json:
        data = {
            "policy": given.label,
            "same": difference is None,
            "difference": None if difference is None else str(difference),
            "ended": ended,
            "steps": [asdict(step) for step in steps],
        }
        print_json(data)
    else:
        console = Console(highlight=False, soft_wrap=True)
        console.print(recording.question, style="bold", markup=False)
        for step in steps:
            console.print(format_step(step))
        if not ended:
            console.print("(the recording has no answer to the next call)", style="dim")
        if difference is None:
            console.print(f"{given.label} decides as recorded", style="dim", markup=False)
    if difference is not None:
        raise difference


def _read(path: Path) -> dict[str, Any]:
    """Read a trace that the service returned, or what a recording says came of its request."""
    try:
        whole = json.loads(path.read_text(encoding="utf-8-sig"))
        if isinstance(whole, dict) and "steps" in whole:
            return whole
    except (OSError, ValueError):
        pass
    return read_rows(path, KIND)[0]
