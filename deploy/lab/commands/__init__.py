"""The commands under `baton lab`.

- `options`: what they share.
- `bench_calls`: where the time of a call over vLLM goes.
- `bench_decode`: token-level methods side by side.
- `bench_start`: the service's start and memory, beside a bare Ray Serve application's.
- `bench_weights`: types of weights side by side.
- `gpu`: one GPU in a quarter of an hour.
- `reenact`: recorded dialogues through the step loop, at the costs of another pair.
- `run`: the commands of an experiment file.
- `tally`: policies over several recorded evaluations, each beside a coin.
- `torture`: attacks on a service.
- `train`: the embedded pair's training recipe.
"""

from __future__ import annotations

from importlib import import_module

import typer

lab = typer.Typer(
    help="Measure Baton: benchmarks, attacks, load, and the embedded pair's recipe.",
    no_args_is_help=True,
)
for name in (
    "bench_calls", "bench_decode", "bench_start", "bench_weights", "gpu", "reenact", "run", "tally",
    "torture", "train",
):  # fmt: skip
    command = getattr(import_module(f"{__name__}.{name}"), name)
    lab.command(name.replace("_", "-"))(command)
