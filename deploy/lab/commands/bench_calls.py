"""`baton lab bench-calls`: what a call takes through several workers, side by side."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from deploy.cli.common import bar, wide_console, write
from deploy.lab.commands.options import JsonFile, counts
from orchestrator.errors import InvalidRequest


def bench_calls(
    files: Annotated[
        list[Path], typer.Argument(help="Deployment files; the large worker of each is timed.")
    ],
    prefixes: Annotated[
        str, typer.Option(help="Tokens before each call; several as 100,800.")
    ] = "100,800",
    repeats: Annotated[int, typer.Option(min=1, help="Calls of each kind; medians count.")] = 20,
    streams: Annotated[
        str | None,
        typer.Option(help="Instead: tokens a second at this many generations at once, as 1,8."),
    ] = None,
    tokens: Annotated[
        int, typer.Option(min=1, help="Of each generation, at most (with --streams).")
    ] = 64,
    profile: Annotated[
        bool,
        typer.Option(
            "--profile", help="Instead: where the time goes over vLLM, beside vLLM's own calls."
        ),
    ] = False,
    as_json: JsonFile = None,
) -> None:
    """Milliseconds of a generation, a judge's call and a verification through several workers.

    Each is in this process, or a server where the file names a url. Ratios are to the first file's.

    [bold]Examples[/]

      baton lab bench-calls deploy/local.yaml vllm.yaml vllm-http.yaml

      baton lab bench-calls deploy/local.yaml vllm.yaml --streams 1,8 --repeats 3

      baton lab bench-calls vllm.yaml --profile
    """
    sizes = counts("--prefixes", prefixes)
    at_once = counts("--streams", streams) if streams else []
    if len({file.stem for file in files}) < len(files):
        raise InvalidRequest("two files have one name, which is the row's: rename one")
    from deploy.evaluation.tables import show
    from deploy.lab.bench import calls, vllm_calls
    from deploy.launch.deployment_file import load
    from deploy.launch.workers import close, open_worker

    specs = {file.stem: load(file).args.workers.large for file in files}
    if profile and [spec.engine for spec in specs.values()] != ["vllm"]:
        raise InvalidRequest("--profile: give one file, whose large worker has the engine vllm")

    async def run() -> list[Any]:
        workers: dict[str, Any] = {}
        try:
            for name, spec in specs.items():
                workers[name] = open_worker(spec)
            with bar(Console(stderr=True)) as shown:
                if profile:
                    (worker,) = workers.values()
                    return await vllm_calls.bench_vllm(
                        worker, sizes, repeats=repeats, tell=shown.set_label
                    )
                if at_once:
                    return await calls.bench_streams(
                        workers, at_once, tokens=tokens, repeats=repeats, tell=shown.set_label
                    )
                return await calls.bench_calls(
                    workers, sizes, repeats=repeats, tell=shown.set_label
                )
        finally:
            await close(workers.values())

    rows = asyncio.run(run())
    columns = calls.STREAM_COLUMNS if at_once else calls.COLUMNS
    columns = vllm_calls.COLUMNS if profile else columns
    if as_json is not None:
        write(as_json, json.dumps({"files": [str(file) for file in files], "rows": rows}) + "\n")
    show(rows, columns, wide_console())
