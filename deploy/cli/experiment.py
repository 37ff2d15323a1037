"""`baton experiment`: policies compared on a running service."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer
import yaml

from deploy.cli.administration import Note, Reply, change, format_time, print_heading, show_reply
from deploy.cli.common import DEFAULT_URL, AsJson, ServiceUrl, print_table, wide_console
from orchestrator.errors import ConfigError
from orchestrator.validation import with_numbers

experiment = typer.Typer(help="Compare policies in production: start, watch, read, stop.")

Which = Annotated[str, typer.Argument(metavar="NAME", help="The experiment.")]


@experiment.command("list")
def overview(url: ServiceUrl = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Every experiment, its state, and who gets what now.

    [bold]Examples[/]

      baton experiment list

      baton experiment list --url http://10.0.0.7:8000 --json
    """
    show_reply(url, "/v1/experiments", as_json, _print_all)


@experiment.command("show")
def show(which: Which, url: ServiceUrl = DEFAULT_URL, as_json: AsJson = False) -> None:
    """One experiment: its document, its arms, and what has been decided since.

    [bold]Examples[/]

      baton experiment show thresholds

      baton experiment show thresholds --json
    """
    show_reply(url, _path(which), as_json, _print_one)


@experiment.command("start")
def start(
    document: Annotated[
        Path, typer.Argument(metavar="FILE", help="The experiment in YAML or JSON; - reads stdin.")
    ],
    url: ServiceUrl = DEFAULT_URL,
    note: Note = "",
    as_json: AsJson = False,
) -> None:
    """Start an experiment; requests for the model `baton` take part from now on.

    Wants the admin key in $BATON_ADMIN_KEY where the service has one.

    [bold]Examples[/]

      baton experiment start thresholds.yaml

      echo '{"name": "thresholds", "arms": [
        {"name": "five", "policy": "specreason", "params": {"threshold": 5}},
        {"name": "seven", "policy": "specreason", "params": {"threshold": 7}}],
        "goal": {"metric": "ms"}}' | baton experiment start -
    """
    given = _read(document)
    if note:
        given["note"] = note
    change(url, "POST", "/v1/experiments", given, as_json, _begun)


@experiment.command("stop")
def stop(
    which: Which, url: ServiceUrl = DEFAULT_URL, note: Note = "", as_json: AsJson = False
) -> None:
    """End an experiment; everybody gets the active policy again. Its report stays.

    [bold]Examples[/]

      baton experiment stop thresholds --note "seven it is"
    """
    path, body = f"{_path(which)}/stop", {"note": note}
    change(url, "POST", path, body, as_json, lambda reply: f"{reply['id']} is stopped")


@experiment.command("remove")
def remove(
    which: Which, url: ServiceUrl = DEFAULT_URL, note: Note = "", as_json: AsJson = False
) -> None:
    """Forget an experiment that has ended, or that this release cannot read, with its report.

    [bold]Examples[/]

      baton experiment remove thresholds
    """
    path, body = f"{_path(which)}/remove", {"note": note}
    change(url, "POST", path, body, as_json, lambda reply: f"{reply['id']} is removed")


@experiment.command("report")
def readout(which: Which, url: ServiceUrl = DEFAULT_URL, as_json: AsJson = False) -> None:
    """The readout of an experiment so far; its intervals hold at any number of looks.

    [bold]Examples[/]

      baton experiment report thresholds

      baton experiment report thresholds --json
    """
    show_reply(url, f"{_path(which)}/report", as_json, _print_report)


def _path(name: str) -> str:
    return f"/v1/experiments/{quote(name, safe='')}"


def _print_all(reply: Reply) -> None:
    rows = []
    for row in reply["data"]:
        state = row["state"] or {"started": None, "stopped": {}}
        status = f"{row['status']}, not in effect" if row["trouble"] else row["status"]
        arms = ", ".join(f"{name} {share:.0%}" for name, share in row["weights"].items())
        when, stopped = format_time(state["started"]), ", ".join(state["stopped"])
        rows.append((row["id"], status, when, f"{row['coverage']:.0%}", arms, stopped))
    print_table(("experiment", "status", "since", "coverage", "arms", "stopped"), rows)
    for row in reply["data"]:
        if row["trouble"]:
            print(f"{row['id']} is not in effect: {row['trouble']}")


def _print_report(reply: Reply) -> None:
    console = wide_console()
    console.print(reply["sentence"], style="bold", markup=False)
    if ratio := reply["sample_ratio"]:
        counts = ", ".join(f"{arm} {count}" for arm, count in ratio["counts"].items())
        sound = "as intended" if ratio["ok"] else "NOT as intended"
        console.print(f"sample ratio {sound}: {counts} (p {ratio['p']:.2g})", markup=False)
    if 0 < reply["coverage"] < 1:
        console.print(f"{reply['coverage']:.0%} of the units take part by now", markup=False)
    rows = []
    for row in reply["comparisons"]:
        value = reply["arms"].get(row["arm"], {}).get(row["metric"], {}).get("mean")
        found = row["always_valid"]
        difference = _number(found["estimate"]), _interval(found)
        rows.append((row["arm"], row["metric"], _number(value), row["against"], *difference))
    print_table(("arm", "metric", "value", "against", "difference", "always valid"), rows)
    for row in reply["bounds"]:
        sure = "kept" if row["surely"] else "broken" if row["broken"] else "not sure yet"
        bound = f"{row['arm']}: {row['metric']} at most {row['by']:g} worse than {row['than']}"
        console.print(f"{bound}: {sure}, {_interval(row['always_valid'])}", markup=False)


def _print_one(reply: Reply) -> None:
    if reply["trouble"]:
        print(f"{reply['id']} is not in effect: {reply['trouble']}")
    if reply["experiment"] is None:
        return
    document, state = reply["experiment"], reply["state"]
    details = (format_time(state["started"]), document["author"], document["note"])
    print_heading(f"{reply['id']}, {reply['status']}", details)
    rows = []
    for name, arm in reply["arms"].items():
        policy = f"{arm['policy']}@{arm['version']}" if arm["version"] else arm["policy"]
        share = f"{reply['weights'][name]:.1%}" if name in reply["weights"] else "shadow"
        if arm["speculation"] is not None:
            policy += f", {arm['speculation']}"
        why = state["stopped"].get(name, {}).get("why", "")
        rows.append((name, share, policy, json.dumps(arm["params"], ensure_ascii=False), why))
    print_table(("arm", "weight", "policy", "parameters", "stopped"), rows)


def _read(path: Path) -> dict[str, Any]:
    try:
        text = sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8-sig")
        given = with_numbers(yaml.safe_load(text.removeprefix("\ufeff")))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: {error}") from None
    if not isinstance(given, dict):
        raise ConfigError(f"{path}: an experiment is a mapping of names to values")
    return given


def _interval(reply: dict[str, Any]) -> str:
    return f"[{_number(reply['low'])}, {_number(reply['high'])}]"


def _number(value: float | None) -> str:
    return "?" if value is None else f"{value:.4g}"


def _begun(reply: Reply) -> str:
    return f"{reply['id']} has started (run {reply['run']})"
