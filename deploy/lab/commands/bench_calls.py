"""`baton lab bench-calls`: where the time of a call over vLLM goes."""

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
    file: Annotated[
        Path, typer.Argument(help="A deployment file whose large worker has the engine vllm.")
    ],
    prefixes: Annotated[
        str, typer.Option(help="Tokens before each call; several as 100,800.")
    ] = "100,800",
    repeats: Annotated[int, typer.Option(min=1, help="Calls of each kind; medians count.")] = 20,
    as_json: JsonFile = None,
) -> None:
    """Milliseconds of calls through the worker over vLLM, beside vLLM's own calls.

    [bold]Examples[/]

      baton lab bench-calls vllm.yaml --prefixes 100
    """
    sizes = counts("--prefixes", prefixes)
    from deploy.evaluation.tables import show
    from deploy.lab.bench.vllm_calls import COLUMNS, bench_vllm
    from deploy.launch.deployment_file import load
    from deploy.launch.workers import close, open_worker

    spec = load(file).args.workers.large
    if spec.engine != "vllm":
        raise InvalidRequest(f"{file}: expected the engine vllm of the large worker")

    async def run() -> list[Any]:
        worker = open_worker(spec)
        try:
            with bar(Console(stderr=True)) as shown:
                return await bench_vllm(worker, sizes, repeats=repeats, tell=shown.set_label)
        finally:
            await close([worker])

    rows = asyncio.run(run())
    if as_json is not None:
        write(as_json, json.dumps({"file": str(file), "rows": rows}) + "\n")
    show(rows, COLUMNS, wide_console())
