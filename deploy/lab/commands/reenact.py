"""`baton lab reenact`: recorded dialogues through the real loop, at the costs of another pair."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console

from deploy.cli.common import bar, wide_console, write
from deploy.lab.commands.options import JsonFile, counts


def reenact(
    costs: Annotated[
        str, typer.Option(help="A file of costs, or the name of one in deploy/lab/costs.")
    ] = "measured-1.5b-32b-h100",
    clients: Annotated[
        str | None, typer.Option(help="Clients at once; by default those of 1,8,32 with figures.")
    ] = None,
    run_ahead: Annotated[
        int,
        typer.Option(
            min=0, help="Tokens that the small model runs ahead; all that can be are used."
        ),
    ] = 0,
    as_json: JsonFile = None,
) -> None:
    """Play recorded dialogues through the step loop and the policies, over virtual workers.

    A virtual worker gives the recorded answer after the time that a file of costs says. The
    error of each row that was measured on the hardware itself follows.

    [bold]Examples[/]

      baton lab reenact

      baton lab reenact --costs r1-1.5b-32b-h100 --clients 1 --json reenacted.json

      baton lab reenact --costs mine.yaml --run-ahead 64
    """
    from deploy.evaluation.tables import show
    from deploy.lab.call_costs import load_costs
    from deploy.lab.reenact import dialogues, rows

    pair = load_costs(costs)
    usual = ",".join(str(count) for count in (1, 8, 32) if count <= pair.most)
    at_once = counts("--clients", clients or usual)
    played = dialogues.shipped()
    with bar(Console(stderr=True)) as shown:
        found = rows.table(played, pair, at_once, run_ahead, shown.set_label)
    measured = rows.against_measured(played, pair)
    if as_json is not None:
        settings = {"costs": pair.model_dump(mode="json"), "run_ahead": run_ahead}
        data = {"rows": found, "measured": measured, **settings}
        write(as_json, json.dumps(data, indent=2) + "\n")
    console = wide_console()
    show(found, rows.COLUMNS, console, f"Virtual workers at the costs of {pair.name}")
    if measured:
        show(measured, rows.MEASURED_COLUMNS, console, "Beside what was measured")
    for line in (*pair.sources, *pair.assumptions):
        console.print(f"- {line}", style="dim", markup=False)
