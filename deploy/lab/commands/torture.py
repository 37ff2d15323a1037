"""`baton lab torture`: attacks on a service, and whether it held."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from deploy.cli.common import print_table
from orchestrator.errors import InvalidRequest, WorkerError

if TYPE_CHECKING:
    from deploy.lab.torture.attack import ScenarioOutcome
    from deploy.lab.torture.own import AttackedService


def torture(
    url: Annotated[
        str | None, typer.Argument(help="A running service that you may attack; none: start one.")
    ] = None,
    scenarios: Annotated[
        str | None, typer.Option(metavar="NAME[=SIZE],...", help="All that can run, unless named.")
    ] = None,
) -> None:
    """Attack a service; status 1 if something did not hold.

    [bold]Examples[/]

      baton lab torture                                   a service started for this

      baton lab torture --scenarios faults=200,overload   some scenarios, one of another size

      baton lab torture http://127.0.0.1:8000             a running one, its key in $BATON_API_KEY

    [bold]Scenarios[/]: overload, capacity; without a URL faults. Sizes are requests, seconds of
    capacity, or faults.
    """
    from deploy.lab.torture import run
    from deploy.lab.torture.own import AttackedService, own_service

    wanted = _wanted(scenarios, own=url is None)
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
            key = os.environ.get("BATON_API_KEY")
            asyncio.run(attack(AttackedService(url.rstrip("/"), key)))
        else:
            with own_service() as target:
                asyncio.run(attack(target))
    finally:  # report the scenarios that ended even if the next one fails
        print_table(["scenario", "requests", "held", "seen"], (one.row() for one in outcomes))
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
                + ("" if own else f" ({', '.join(OWN)} needs a service of ours: name no URL)")
            )
        if named and not (size.isascii() and size.isdecimal() and int(size) > 0):
            raise InvalidRequest(f"--scenarios: {part!r}: a size is a whole number above 0")
        wanted[name] = int(size) if named else possible[name]
    return wanted
