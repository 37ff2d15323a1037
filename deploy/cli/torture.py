"""`baton torture`: attacks on a service, and whether it held."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer
from rich.console import Console

EXAMPLES = """

[bold]Examples[/]

  baton torture --own                              a service of its own, with faults
  baton torture http://127.0.0.1:8000              one that runs
  baton torture URL --remote --json torture.json   a staging one elsewhere
  baton torture --own --short                      in a few minutes
"""
LONG = {"hostile": 10_000, "large": 48, "overload": 1000, "faults": 4}
SHORT = {"hostile": 200, "large": 4, "overload": 100, "faults": 2}


def torture(
    url: Annotated[str | None, typer.Argument(help="A service that runs.")] = None,
    own: Annotated[bool, typer.Option("--own", help="Serve a deployment for this alone.")] = False,
    config: Annotated[Path | None, typer.Option(help="With --own: its deployment file.")] = None,
    scenarios: Annotated[
        str | None, typer.Option(help="Of hostile, large, overload and faults; default all.")
    ] = None,
    short: Annotated[bool, typer.Option("--short", help="Fewer requests of each.")] = False,
    remote: Annotated[
        bool, typer.Option("--remote", help="Attack a service that is not on this machine.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Of the hostile inputs.")] = 0,
    json_out: Annotated[
        Path | None, typer.Option("--json", help="Write the outcomes to this file.")
    ] = None,
) -> None:
    """Attack a service; status 1 where something did not hold."""
    from deploy.evaluation.torture import AttackedService, ScenarioOutcome, table
    from deploy.evaluation.torture import torture as attack
    from orchestrator.errors import InvalidRequest, WorkerError

    if (url is None) != own:
        raise InvalidRequest("name a URL, or say --own: one of them")
    wanted = SHORT if short else LONG
    if not own:
        wanted = {name: number for name, number in wanted.items() if name != "faults"}
    if scenarios is not None:
        names = scenarios.split(",")
        if unknown := sorted(set(names) - wanted.keys()):
            raise InvalidRequest(
                f"--scenarios: {unknown[0]!r} is none of {', '.join(wanted)}"
                + ("" if own else " (faults want --own)")
            )
        wanted = {name: wanted[name] for name in names}
    if url is not None and not remote and not _is_loopback(url):
        raise InvalidRequest(f"{url} is not on this machine: say --remote if it is yours to attack")
    console, outcomes = Console(highlight=False), list[ScenarioOutcome]()

    async def run(target: AttackedService) -> None:
        async for outcome in attack(target, wanted, seed):
            outcomes.append(outcome)
            held = "held" if not outcome.broken else f"did not hold: {outcome.broken[0]}"
            console.print(f"{outcome.scenario}: {held}", style="dim", markup=False)

    key = os.environ.get("BATON_API_KEY")
    if url is not None:
        asyncio.run(run(AttackedService(url.rstrip("/"), key)))
    else:
        _with_own(config, lambda target: asyncio.run(run(target)))
    print(table(outcomes))
    if json_out is not None:
        rows = [outcome.json() for outcome in outcomes]
        json_out.write_text(json.dumps({"rows": rows}, indent=2) + "\n", encoding="utf-8")
    if failed := [outcome.scenario for outcome in outcomes if outcome.broken]:
        raise WorkerError(f"did not hold: {', '.join(failed)}")


torture.__doc__ = f"{torture.__doc__}{EXAMPLES}"


def _with_own(config: Path | None, attack: Callable[..., None]) -> None:
    """Serve a deployment on a port of its own, and attack it."""
    import socket

    from deploy.service.environment import prepare

    prepare()  # before the imports below, which import ray
    from deploy.evaluation.torture import AttackedService
    from deploy.service.cluster import serving
    from deploy.service.config import DEFAULT_FILE, load

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with serving(load(config or DEFAULT_FILE, port=port)) as service:
        attack(AttackedService(service.url, os.environ.get("BATON_API_KEY"), _signal_one))


def _signal_one(kind: str, sign: signal.Signals) -> None:
    """Send a signal to the first replica of a kind."""
    from deploy.service.cluster import descendants

    for pid in sorted(descendants(os.getpid())):
        with suppress(OSError):
            line = Path(f"/proc/{pid}/cmdline").read_bytes()
            if b"ServeReplica:" in line and f":{kind}".encode() in line:
                os.kill(pid, sign)
                return


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
