"""`baton lab tally`: policies over several recorded evaluations, each beside a coin."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from deploy.cli.common import add_row, wide_console


def tally(
    folders: Annotated[list[Path], typer.Argument(help="Folders of baton eval --recordings.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the rows as JSON.")] = False,
) -> None:
    """Compare policies with `large-only` and with a coin at the same share of large tokens.

    A policy that is not above the coin decides no better than chance. Folders of the same problems
    count as one evaluation.

    [bold]Examples[/]

      baton lab tally build/results-real/gsm_symbolic build/results-real/chain_sum
    """
    from deploy.lab.tally import rows
    from deploy.lab.tally import tally as tally_of

    found = rows(tally_of(folders))
    if as_json:
        print(json.dumps({"rows": found}, indent=2))
        return
    table = Table(
        "policy", "problems", "right %", "large tokens %", "points to large-only",
        "points above a coin", box=None,
    )  # fmt: skip
    for row in found:
        add_row(
            table, row["policy"], row["problems"], _points(row["accuracy"], ""),
            f"{row['large_share']:.0%}", _points(row["to_large"]), _points(row["above_coin"]),
        )  # fmt: skip
    wide_console().print(table)


def _points(values: list[float] | None, sign: str = "+") -> str:
    if values is None:
        return ""
    middle, low, high = (format(100 * value, f"{sign}.1f") for value in values)
    return f"{middle} [{low}, {high}]"
