"""`baton lab tally`: policies over several recorded evaluations, each beside a coin."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deploy.cli.common import AsJson, print_json, print_table


def tally(
    folders: Annotated[list[Path], typer.Argument(help="Folders of baton eval --recordings.")],
    as_json: AsJson = False,
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
        print_json({"rows": found})
        return
    print_table(
        ["policy", "problems", "right %", "large tokens %", "points to large-only",
         "points above a coin"],
        (
            [row["policy"], row["problems"], _points(row["accuracy"], ""),
             f"{row['large_share']:.0%}", _points(row["to_large"]), _points(row["above_coin"])]
            for row in found
        ),
    )  # fmt: skip


def _points(values: list[float] | None, sign: str = "+") -> str:
    if values is None:
        return ""
    middle, low, high = (format(100 * value, f"{sign}.1f") for value in values)
    return f"{middle} [{low}, {high}]"
