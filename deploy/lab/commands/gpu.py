"""`baton lab gpu`: one GPU measured in a quarter of an hour."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
import yaml

from deploy.cli.common import write
from deploy.lab.commands.options import Device, named
from orchestrator.errors import BatonError, ConfigError


def gpu(
    out: Annotated[Path, typer.Option(help="A folder for rows, page and costs.")] = Path(
        "build/gpu"
    ),
    device: Device = "cuda",
    only: Annotated[
        str | None, typer.Option(help="Stages to run, comma-separated; none: all.")
    ] = None,
) -> None:
    """Measure one GPU in 15 minutes: our engine, costs of calls, and recorded dialogues.

    Weights are random, in the shapes of Qwen2.5 1.5B and 32B: nothing is downloaded. Rows are kept
    as they come, and a run that was interrupted continues. With [bold]--device cpu[/] all stages
    run over tiny models, which shows that they work.

    [bold]Examples[/]

      baton lab gpu

      baton lab gpu --device cpu --out build/gpu-trial
    """
    import torch

    from deploy.lab.gpu import plan, report

    names = named("--only", only, (stage.name for stage in plan.STAGES))
    chosen = [stage for stage in plan.STAGES if stage.name in names]
    if device != "cpu" and not torch.cuda.is_available():
        raise ConfigError("no GPU: run it on a machine with one, or try it with --device cpu")
    path = out / "rows.jsonl"
    plan.run_stages(path, device, chosen)
    rows = plan.rows_of(path)
    name = "a CPU, tiny models" if device == "cpu" else torch.cuda.get_device_name()
    text = report.page(rows, name)
    write(out / "page.md", text)
    if (costs := report.costs(rows, name)) is not None:
        data = costs.model_dump(mode="json", exclude_defaults=True)
        write(out / "costs.yaml", yaml.safe_dump(data, sort_keys=False))
    print(text)
    if failed := [name for name in names if not plan.has(rows, stage=name, row="ended")]:
        raise BatonError(f"stages that did not end: {', '.join(failed)}; their logs are in {out}")
