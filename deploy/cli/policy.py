"""`baton policy`: published versions, and the one that is active, of a running service."""

from __future__ import annotations

import json
from typing import Annotated, Any
from urllib.parse import quote

import typer
from rich.table import Table

from deploy.cli.common import (
    DEFAULT_URL,
    AsJson,
    Note,
    ServiceUrl,
    add_row,
    ask_service,
    default_author,
    dump,
    moment,
    wide_console,
)

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
    told = ask_service(url, "GET", "/v1/policies")
    if as_json:
        dump(told)
        return
    table = Table("policy", "versions", "active", box=None)
    active = told["active"] or f"{told['default']} (the deployment file's)"
    for row in told["data"]:
        mine = active if active.partition("@")[0].partition(" ")[0] == row["policy"] else ""
        add_row(table, row["policy"], row["latest"] or "-", mine)
    wide_console().print(table)
    if told["degraded"]:
        print(f"the store is not in order: {told['degraded']}")


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
    if which == "active" or "@" in which:
        told = ask_service(url, "GET", f"/v1/policies/{quote(which, safe='@')}")
        dump(told) if as_json else _print_version(told)
        return
    told = ask_service(url, "GET", f"/v1/policies/{quote(which, safe='@')}", count=count)
    if as_json:
        dump(told)
        return
    table = Table("version", "when", "author", "note", box=None)
    for row in told["data"]:
        add_row(table, row["id"], moment(row["created"]), row["author"], row["note"])
    wide_console().print(table)


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
    as_json: AsJson = False,
) -> None:
    """Publish a version of a policy; parameters that are not given are the deployment file's.

    Wants the admin key in $BATON_ADMIN_KEY where the service has one.

    [bold]Examples[/]

      baton policy publish specreason:threshold=7 --note "fewer rewrites"

      baton policy publish bild:fallback=0.4:rollback=3 --no-activate   for an experiment
    """
    from deploy.evaluation.evaluate import Contender

    given = Contender.parse(what)
    body = {
        "policy": given.policy,
        "params": given.params,
        "note": note,
        "author": default_author() if author is None else author,
        "activate": activate,
    }
    told = ask_service(url, "POST", "/v1/policies", body, admin=True)
    if as_json:
        dump(told)
    else:
        print(f"{told['id']} is published{' and active' if activate else ''}")


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
    _activate(which, url, note, as_json)


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
    """Back to what was active before, or to a version by name.

    [bold]Examples[/]

      baton policy rollback --note "too many rewrites"

      baton policy rollback specreason@3
    """
    if to is not None:
        _activate(to, url, note, as_json)
        return
    body = {"note": note, "author": default_author()}
    told = ask_service(url, "POST", "/v1/policies/rollback", body, admin=True)
    dump(told) if as_json else print(f"{_name(told)} is active")


@policy.command("history")
def history(url: ServiceUrl = DEFAULT_URL, count: Count = 20, as_json: AsJson = False) -> None:
    """Who changed what, newest first.

    [bold]Examples[/]

      baton policy history --count 5
    """
    told = ask_service(url, "GET", "/v1/policies/history", count=count)
    if as_json:
        dump(told)
        return
    table = Table("when", "what", "version", "before", "author", "key", "note", box=None)
    for row in told["data"]:
        cells = (
            row.get(key) or "" for key in ("action", "what", "before", "author", "key", "note")
        )
        add_row(table, moment(row.get("at")), *cells)
    wide_console().print(table)


def _activate(which: str, url: str, note: str, as_json: bool) -> None:
    version = None if which == DEFAULT else which
    body = {"version": version, "note": note, "author": default_author()}
    told = ask_service(url, "PUT", "/v1/policies/active", body, admin=True)
    dump(told) if as_json else print(f"{_name(told)} is active")


def _print_version(told: dict[str, Any]) -> None:
    console = wide_console()
    console.print(_name(told), style="bold", markup=False)
    by = [moment(told["created"]), told["author"], told["note"]]
    console.print(", ".join(part for part in by if part), style="dim", markup=False)
    table = Table(box=None, show_header=False)
    for key, value in told["params"].items():
        add_row(table, key, json.dumps(value, ensure_ascii=False))
    console.print(table)


def _name(told: dict[str, Any]) -> str:
    return str(told["id"]) if told["version"] else f"{told['id']} (the deployment file's)"
