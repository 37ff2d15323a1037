"""`baton lab bench-decode`: token-level methods side by side, transformers among them."""

from __future__ import annotations

import json
import re
from typing import Annotated

import typer
from rich.console import Console

from deploy.cli.common import bar, wide_console, write
from deploy.evaluation.candidates import Candidate
from deploy.lab.commands.options import Device, JsonFile, ModelName, Threads, counts, numbers
from orchestrator.errors import InvalidRequest


def bench_decode(
    methods: Annotated[
        str | None,
        typer.Option(help="Comma-separated; parameters as chain:gamma=4. None: all there are."),
    ] = None,
    model: ModelName = "embedded:large",
    draft: Annotated[
        str, typer.Option(help="The draft model; embedded:draft is a weak one; none: without.")
    ] = "embedded:small",
    problems: Annotated[
        str, typer.Option(help="Whose questions are decoded, as --problems of baton eval.")
    ] = "builtin:dev",
    prompts: Annotated[int, typer.Option(min=2, help="How many of them.")] = 12,
    rounds: Annotated[int, typer.Option(min=1, help="Turns of every method on a prompt.")] = 3,
    max_new: Annotated[
        int, typer.Option("--max-new", "--new-tokens", min=2, help="Most tokens of an answer.")
    ] = 128,
    temperature: Annotated[str, typer.Option(help="One or several, as 0,1.")] = "0,1",
    streams: Annotated[str, typer.Option(help="Prompts at once; several as 1,4.")] = "1",
    device: Device = "cpu",
    dtype: Annotated[str | None, typer.Option(help="Of the computation.")] = None,
    threads: Threads = None,
    seed: Annotated[int, typer.Option(help="Which problems, and the draws.")] = 0,
    as_json: JsonFile = None,
) -> None:
    """Time token-level methods on one model, in turns on the same prompts.

    transformers' generate and assisted generation run among them, on the stock network with the
    same threads. At temperature 0 every lossless method must write what plain decoding writes.

    [bold]Examples[/]

      baton lab bench-decode

      baton lab bench-decode --methods chain,spectr --draft embedded:draft --temperature 1

      baton lab bench-decode --methods chain:gamma=3 --streams 1,4 --json build/decode.json
    """
    chosen = None if methods is None else _methods(methods)
    warmths = numbers("--temperature", temperature, least=0)
    widths = counts("--streams", streams)
    if any(prompts % width for width in widths):
        raise InvalidRequest(f"--prompts {prompts}: want a multiple of each of --streams {streams}")
    import torch
    from transformers.utils.logging import disable_progress_bar, set_verbosity_error

    from deploy.evaluation.tables import show
    from deploy.lab.bench.run import COLUMNS, DecodeSettings, bench, notes

    disable_progress_bar()
    set_verbosity_error()
    settings = DecodeSettings(
        model, None if draft == "none" else draft, device, dtype, threads, prompts, rounds, max_new,
        warmths, widths, seed, problems,
    )  # fmt: skip
    before = torch.get_num_threads()
    try:
        with bar(Console(stderr=True)) as shown:
            data = bench(settings, chosen, shown)
    finally:
        torch.set_num_threads(before)
    if as_json is not None:
        write(as_json, json.dumps(data, indent=2) + "\n")
    console = wide_console()
    for case in dict.fromkeys((row["temperature"], row["streams"]) for row in data["rows"]):
        table = [row for row in data["rows"] if (row["temperature"], row["streams"]) == case]
        show(table, COLUMNS, console, f"Temperature {case[0]:g}, streams: {case[1]}")
    for line in notes(data):
        console.print(f"- {line}", style="dim", markup=False)


def _methods(text: str) -> list[Candidate]:
    """The entries of the option; a comma inside brackets belongs to a value."""
    from deploy.lab.bench.candidates import PEERS
    from workers.speculation import METHODS

    found = [Candidate.parse(part) for part in re.split(r",(?![^\[]*\])", text)]
    for one in found:
        if one.policy not in (*PEERS, *METHODS):
            known = ", ".join((*PEERS, *METHODS))
            raise InvalidRequest(f"no method {one.policy!r}; there are {known}")
    return found
