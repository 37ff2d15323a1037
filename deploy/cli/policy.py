"""`baton policy`: published versions, and the one that is active, of a running service."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from deploy.cli.administration import (
    Note,
    Reply,
    change,
    default_author,
    format_time,
    print_heading,
    show_reply,
)
from deploy.cli.common import DEFAULT_URL, AsJson, ServiceUrl, print_table
from deploy.evaluation.candidates import Candidate
from deploy.service.calibration import read
from orchestrator.errors import ConfigError

policy = typer.Typer(help="Publish policies, see which is active, roll back.")

Count = Annotated[int, typer.Option(min=1, max=1000, help="How many at most, newest first.")]
DEFAULT = "default"


@policy.command("list")
def overview(url: ServiceUrl = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Every policy with its newest version, and what is active.

    [bold]Examples[/]

      baton policy list

      baton policy list --url http://10.0.0.7:8000 --json
    """
    show_reply(url, "/v1/policies", as_json, _print_policies)


@policy.command("show")
def show(
    which: Annotated[
        str, typer.Argument(metavar="NAME[@VERSION]|active", help="A policy or a version of it.")
    ],
    url: ServiceUrl = DEFAULT_URL,
    as_json: AsJson = False,
    count: Count = 20,
) -> None:
    """One version with its parameters, or the versions of a policy.

    [bold]Examples[/]

      baton policy show active

      baton policy show specreason            its versions, newest first

      baton policy show specreason@3 --json
    """
    path = f"/v1/policies/{quote(which, safe='@')}"
    if which == "active" or "@" in which:
        show_reply(url, path, as_json, _print_version)
    else:
        show_reply(url, path, as_json, _print_versions, count=count)


@policy.command("publish")
def publish(
    what: Annotated[
        str, typer.Argument(metavar="NAME[:PARAMETER=VALUE...]", help="As in `baton eval`.")
    ],
    url: ServiceUrl = DEFAULT_URL,
    note: Note = "",
    author: Annotated[str | None, typer.Option(help="Default: the user's name.")] = None,
    activate: Annotated[
        bool, typer.Option(help="Make it what the model `baton` means, at once.")
    ] = True,
    calibration: Annotated[
        Path | None,
        typer.Option(help="Parameters from the file that `baton calibrate --out` wrote."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Publish a version of a policy; parameters that are not given are the deployment file's.

    Wants the admin key in $BATON_ADMIN_KEY where the service has one.

    [bold]Examples[/]

      baton policy publish specreason:threshold=7 --note "fewer rewrites"

      baton policy publish bild:fallback=0.4:rollback=3 --no-activate   for an experiment

      baton policy publish specreason --calibration pair.json
    """
    given = Candidate.parse(what)
    measured: dict[str, Any] = {}
    if calibration is not None:
        measured = read(calibration).params(given.policy)
        if not measured:
            raise ConfigError(f"{calibration}: {given.policy} is not calibrated in it")
    body = {
        "policy": given.policy,
        "params": {**measured, **given.params},
        "note": note,
        "author": default_author() if author is None else author,
        "activate": activate,
    }
    state = "published and active" if activate else "published"
    change(url, "POST", "/v1/policies", body, as_json, lambda reply: f"{reply['id']} is {state}")


@policy.command("activate")
def activate(
    which: Annotated[
        str, typer.Argument(metavar="NAME@VERSION|default", help="default: the deployment file's.")
    ],
    url: ServiceUrl = DEFAULT_URL,
    note: Note = "",
    as_json: AsJson = False,
) -> None:
    """Make a published version what the model `baton` means.

    [bold]Examples[/]

      baton policy activate specreason@3

      baton policy activate default
    """
    body = {"version": None if which == DEFAULT else which, "note": note}
    change(url, "PUT", "/v1/policies/active", body, as_json, _is_active)


@policy.command("rollback")
def rollback(
    url: ServiceUrl = DEFAULT_URL,
    to: Annotated[
        str | None,
        typer.Argument(metavar="[NAME@VERSION|default]", help="Default: what was active before."),
    ] = None,
    note: Note = "",
    as_json: AsJson = False,
) -> None:
    """Back to what was active before, or to a version by name; again: one further back.

    [bold]Examples[/]

      baton policy rollback --note "too many rewrites"

      baton policy rollback specreason@3
    """
    body = {"note": note, **({} if to is None else {"to": to})}
    change(url, "POST", "/v1/policies/rollback", body, as_json, _is_active)


@policy.command("history")
def history(url: ServiceUrl = DEFAULT_URL, count: Count = 20, as_json: AsJson = False) -> None:
    """Who changed what, newest first.

    [bold]Examples[/]

      baton policy history --count 5
    """
    show_reply(url, "/v1/policies/history", as_json, _print_history, count=count)


def _print_policies(reply: Reply) -> None:
    active = reply["active"] or f"{reply['default']} (the deployment file's)"
    if reply["answering"] != reply["active"]:
        answering = reply["answering"] or f"{reply['default']}, the deployment file's,"
        active += f", not in effect: {answering} answers"
    name = active.partition("@")[0].partition(" ")[0]
    if reply["answering"] is None and (busy := reply["when_busy"]):
        active += f"; {busy['policy']} while {busy['answers']} answers or more are made"
    rows = (
        (row["policy"], row["latest"] or "-", active if row["policy"] == name else "")
        for row in reply["data"]
    )
    print_table(("policy", "versions", "active"), rows)
    if reply["degraded"]:
        print(f"not everything is in order: {reply['degraded']}")


def _print_versions(reply: Reply) -> None:
    rows = (
        (row["id"], format_time(row["created"]), row["author"], row["note"], _trouble(row))
        for row in reply["data"]
    )
    print_table(("version", "when", "author", "note", ""), rows)


def _print_history(reply: Reply) -> None:
    keys = ("action", "what", "before", "author", "key", "note")
    rows = (
        (format_time(row.get("at")), *(row.get(key) or "" for key in keys)) for row in reply["data"]
    )
    print_table(("when", "what", "version", *keys[2:]), rows)


def _print_version(reply: Reply) -> None:
    details = (format_time(reply["created"]), reply["author"], reply["note"], _trouble(reply))
    print_heading(_name(reply), details)
    params = reply["params"].items()
    print_table((), ((key, json.dumps(value, ensure_ascii=False)) for key, value in params))


def _is_active(reply: Reply) -> str:
    return f"{_name(reply)} is active"


def _trouble(reply: Reply) -> str:
    return f"not in effect: {reply['trouble']}" if reply["trouble"] else ""


def _name(reply: Reply) -> str:
    return str(reply["id"]) if reply["version"] else f"{reply['id']} (the deployment file's)"
