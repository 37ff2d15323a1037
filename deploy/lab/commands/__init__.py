"""The commands under `baton lab`.

- `options`: what they share.
- `bench_calls`: the time of a call through several workers.
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

import typer

from deploy.lab.commands.bench_calls import bench_calls
from deploy.lab.commands.bench_decode import bench_decode
from deploy.lab.commands.bench_start import bench_start
from deploy.lab.commands.bench_weights import bench_weights
from deploy.lab.commands.gpu import gpu
from deploy.lab.commands.reenact import reenact
from deploy.lab.commands.run import run
from deploy.lab.commands.tally import tally
from deploy.lab.commands.torture import torture
from deploy.lab.commands.train import train

lab = typer.Typer(
    help="Measure Baton: benchmarks, attacks, load, and the embedded pair's recipe.",
    no_args_is_help=True,
)
lab.command("bench-calls")(bench_calls)
lab.command("bench-decode")(bench_decode)
lab.command("bench-start")(bench_start)
lab.command("bench-weights")(bench_weights)
lab.command("gpu")(gpu)
lab.command("reenact")(reenact)
lab.command("run")(run)
lab.command("tally")(tally)
lab.command("torture")(torture)
lab.command("train")(train)
