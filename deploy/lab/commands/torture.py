"""`baton lab torture`: attacks on a service, and whether it held."""

from __future__ import annotations

import asyncio
import ipaddress
import os
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer
from rich.console import Console

from deploy.cli.common import wide_console
from orchestrator.errors import InvalidRequest, WorkerError

if TYPE_CHECKING:
    from deploy.lab.torture.attack import AttackedService, ScenarioOutcome


def torture(
    url: Annotated[str | None, typer.Argument(help="A running service.")] = None,
    own: Annotated[bool, typer.Option("--own", help="Start a service for this.")] = False,
    scenarios: Annotated[
        str | None, typer.Option(metavar="NAME[=SIZE],...", help="All that can run, unless named.")
    ] = None,
    remote: Annotated[
        bool, typer.Option("--remote", help="Attack a service that is not on this machine.")
    ] = False,
) -> None:
    """Attack a service; status 1 if something did not hold.

    [bold]Examples[/]

      baton lab torture --own                                   a service started for this

      baton lab torture --own --scenarios faults=200,soak       some scenarios, one of another size

      baton lab torture http://127.0.0.1:8000                   a running one

      baton lab torture URL --remote                            a staging one elsewhere

    [bold]Scenarios[/]: hostile, guesses, overload, capacity; with --own faults, redis, soak. Sizes
    are requests, faults, states of redis, or seconds of capacity and soak. Keys are $BATON_API_KEY
    and, of another client, $BATON_OTHER_API_KEY.
    """
    from deploy.evaluation.tables import show
    from deploy.lab.torture import run
    from deploy.lab.torture.attack import AttackedService

    if (url is None) != own:
        got = f"--own and {url}: name scenarios after --scenarios" if own else "neither"
        raise InvalidRequest(f"expected a URL or --own, got {got}")
    wanted = _wanted(scenarios, own)
    if url is not None and not remote and not _is_loopback(url):
        raise InvalidRequest(f"{url} is not on this machine: add --remote if it is yours to attack")
    console = Console(highlight=False)
    outcomes: list[ScenarioOutcome] = []

    def say(text: str) -> None:
        console.print(text, style="dim", markup=False)

    async def attack(target: AttackedService) -> None:
        async for outcome in run.torture(target, wanted, say):
            outcomes.append(outcome)
            held = "held" if not outcome.broken else f"did not hold: {outcome.broken[0]}"
            say(f"{outcome.scenario}: {held}")

    try:
        if url is not None:
            key, other_key = map(os.environ.get, ("BATON_API_KEY", "BATON_OTHER_API_KEY"))
            asyncio.run(attack(AttackedService(url.rstrip("/"), key, other_key)))
        else:
            with run.own_service() as target:
                asyncio.run(attack(target))
    finally:  # report the scenarios that ended even if the next one fails
        show([one.row() for one in outcomes], run.COLUMNS, wide_console())
    if failed := [outcome.scenario for outcome in outcomes if outcome.broken]:
        raise WorkerError(f"did not hold: {', '.join(failed)}")


def _wanted(given: str | None, own: bool) -> dict[str, int]:
    """The scenarios and their sizes.

    Raises:
        InvalidRequest: an unknown one, one that this service cannot have, or a wrong size.
    """
    from deploy.lab.torture.run import OWN, SCENARIOS

    possible = {n: size for n, (_, size) in SCENARIOS.items() if own or n not in OWN}
    if given is None:
        return possible
    wanted = {}
    for part in given.split(","):
        name, named, size = part.partition("=")
        if name not in possible:
            raise InvalidRequest(
                f"--scenarios: expected one of {', '.join(possible)}, got {name!r}"
                + ("" if own else f" ({', '.join(OWN)} need --own)")
            )
        if named and not (size.isascii() and size.isdecimal() and int(size) > 0):
            raise InvalidRequest(f"--scenarios: {part!r}: a size is a whole number above 0")
        wanted[name] = int(size) if named else possible[name]
    return wanted


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
