"""`baton lab bench-start`: a start of the service beside one of a bare Ray Serve application."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer

from deploy.cli.common import print_table
from deploy.lab.commands.options import JsonFile


def bench_start(
    file: Annotated[Path, typer.Argument(help="The deployment file of Baton's service.")] = Path(
        "deploy/local.yaml"
    ),
    rounds: Annotated[int, typer.Option(min=1, help="Starts of each; medians count.")] = 3,
    as_json: JsonFile = None,
) -> None:
    """Seconds and CPU seconds until ready, then processes and their memory (PSS).

    The two take turns. A first start after an installation compiles modules; it does not count.
    """
    import json
    from tempfile import TemporaryDirectory

    from deploy.cli.common import write
    from deploy.lab.peers import servers
    from deploy.lab.processes import running

    rows: dict[str, list[dict[str, Any]]] = {"Baton": [], "bare Ray Serve": []}
    with TemporaryDirectory() as folder:
        for _ in range(rounds):
            for who, how in (
                ("Baton", servers.baton(file, Path(folder), lambda args: None)),
                ("bare Ray Serve", servers.bare_serve()),
            ):
                with running(how, Path(folder, "log")) as server:
                    rows[who].append({"seconds": server.start_s, "processes": server.listed()})
    if as_json is not None:
        write(as_json, json.dumps(rows))
    found = {who: _medians(starts) for who, starts in rows.items()}
    pairs = zip(*found.values(), strict=True)
    ratios = ["Baton / bare", *(f"{ours / theirs:.2f}x" for ours, theirs in pairs)]
    print_table(
        ["", "seconds", "CPU seconds", "processes", "MB"],
        [*([who, *(f"{value:.1f}" for value in of)] for who, of in found.items()), ratios],
    )
    print_table(
        ["process of Baton", "CPU seconds", "MB"],
        (
            [one["command"], f"{one['cpu_s']:.1f}", f"{one['mb']:.0f}"]
            for one in rows["Baton"][-1]["processes"]
        ),
    )


def _medians(starts: list[dict[str, Any]]) -> list[float]:
    figures = [
        (
            start["seconds"],
            sum(one["cpu_s"] for one in start["processes"]),
            len(start["processes"]),
            sum(one["mb"] for one in start["processes"]),
        )
        for start in starts
    ]
    return [median(column) for column in zip(*figures, strict=True)]
