"""What `baton policy` and `baton experiment` share: reading a service's state, and changing it."""

from __future__ import annotations

import getpass
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import datetime
from typing import Annotated, Any

import typer

from deploy.cli.common import print_json, wide_console
from deploy.evaluation.service_client import call

Note = Annotated[str, typer.Option(help="Why, for those who read it later.")]
Reply = dict[str, Any]


def show_reply(
    url: str, path: str, as_json: bool, show: Callable[[Reply], None], **query: Any
) -> None:
    """GET `path` of the service at `url`; print it as JSON, or let `show` print it."""
    reply = call(url, "GET", path, **query)
    print_json(reply) if as_json else show(reply)


def change(
    url: str,
    method: str,
    path: str,
    body: dict[str, Any],
    as_json: bool,
    sentence: Callable[[Reply], str],
) -> None:
    """Send a change with the admin key; print the reply as JSON, or as a sentence.

    If `body` names no author, the user is the author.
    """
    reply = call(url, method, path, {"author": default_author(), **body}, admin=True)
    print_json(reply) if as_json else print(sentence(reply))


def print_heading(title: str, details: Iterable[str | None]) -> None:
    """Print a title, and below it the details that are not empty."""
    console = wide_console()
    console.print(title, style="bold", markup=False)
    console.print(", ".join(part for part in details if part), style="dim", markup=False)


def format_time(seconds: float | None) -> str:
    """Format a Unix time as local date and time; None is empty."""
    return "" if seconds is None else f"{datetime.fromtimestamp(seconds):%Y-%m-%d %H:%M:%S}"


def default_author() -> str:
    """Return the user's login name; empty if it is not known."""
    with suppress(OSError, KeyError):
        return getpass.getuser()[:128]
    return ""
