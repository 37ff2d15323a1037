"""`baton trace`: show a request step by step, or replay a recorded one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from deploy.cli.common import DEFAULT_URL, AsJson, ServiceUrl, format_step, lossy, print_json
from orchestrator.types import Step, chain_steps

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
    record = _read(Path(which)) if Path(which).is_file() else _fetch(which, url)
    if as_json:
        print_json(record)
        return
    from deploy.evaluation.evaluation_log import from_json

    console = Console(highlight=False, soft_wrap=True)
    console.print(record.get("question", ""), style="bold", markup=False)
    for step in chain_steps([from_json(Step, step) for step in record.get("steps", [])]):
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
    from dataclasses import asdict

    from deploy.evaluation.candidates import Candidate, build_policy
    from deploy.evaluation.recording import load
    from deploy.evaluation.replay import compare

    recording = load(file)
    recorded = recording.request
    given = Candidate.parse(recorded.policy if policy is None else policy)
    parameters = recorded.parameters if given.policy == recorded.policy else {}
    found = compare(recording, build_policy(given.policy, {**parameters, **given.params}))
    if as_json:
        data = {
            "policy": given.label,
            "same": found.difference is None,
            "line": None if found.difference is None else found.difference.line,
            "difference": None if found.difference is None else str(found.difference),
            "ended": found.ended,
            "steps": [asdict(step) for step in found.steps],
        }
        print_json(data)
    else:
        console = Console(highlight=False, soft_wrap=True)
        console.print(recorded.messages[-1].content, style="bold", markup=False)
        for step in found.steps:
            console.print(format_step(step))
        if not found.ended:
            console.print("(the recording has no answer to the next call)", style="dim")
        if found.difference is None:
            console.print(f"{given.label} decides as recorded", style="dim", markup=False)
    if found.difference is not None:
        raise found.difference


def _read(path: Path) -> dict[str, Any]:
    """Read a trace that the service returned, or a recording."""
    from dataclasses import asdict

    from deploy.evaluation.recording import RecordingError, loads
    from orchestrator.errors import ConfigError
    from orchestrator.loop.events import StepCompleted

    text = path.read_text(encoding="utf-8-sig")
    try:
        whole = json.loads(text)
        if isinstance(whole, dict) and "steps" in whole:
            return whole
    except ValueError:
        pass
    try:
        recording = loads(text)
    except RecordingError as error:
        raise ConfigError(f"{path}: {error}") from None
    ended = recording.ended
    steps = [event.step for event in recording.events if isinstance(event, StepCompleted)]
    return {
        "question": recording.request.messages[-1].content,
        "policy": recording.request.policy,
        "speculation": dict(recording.request.speculation),
        "status": "finished" if ended else "broken off",
        "finish_reason": ended.transcript.finish if ended else None,
        "steps": [asdict(step) for step in steps],
        "answer": ended.transcript.reply.strip() if ended else "",
        "metrics": asdict(ended.metrics) if ended else None,
    }


def _fetch(trace_id: str, url: str) -> dict[str, Any]:
    from urllib.parse import quote

    from deploy.evaluation.service_client import call

    return call(url, "GET", f"/v1/traces/{quote(trace_id, safe='')}")
