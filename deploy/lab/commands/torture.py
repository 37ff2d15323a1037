"""`baton lab torture`: attacks on a service, and whether it held."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import os
import signal
import sys
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer
from rich.console import Console

if TYPE_CHECKING:
    from deploy.lab.torture.attack import AttackedService, ScenarioOutcome

EXAMPLES = """

[bold]Examples[/]

  baton lab torture --own                                   a service of its own, with faults
  baton lab torture --own --short                           in a few minutes
  baton lab torture --own --scenarios faults=200            so many faults
  baton lab torture http://127.0.0.1:8000                   one that runs
  baton lab torture URL --remote --json torture.json        a staging one elsewhere

[bold]Sizes[/]: requests of hostile, guesses, large, scrapes, reports and overload; faults; states
of redis, memory, disk and clock; seconds of capacity, flood and soak. disk (which wants root) and
clock (libfaketime) run where named. Keys are $BATON_API_KEY and, of somebody else,
$BATON_OTHER_API_KEY, and $BATON_OBSERVER_KEY where metrics want one; a service of its own has all.
"""
LONG = {
    "hostile": 10_000,
    "guesses": 1000,
    "large": 48,
    "scrapes": 40,
    "reports": 6,
    "overload": 1000,
    "capacity": 300,
    "flood": 60,
    "faults": 15,
    "redis": 6,
    "memory": 3,
    "disk": 1,
    "clock": 4,
    "soak": 3600,
}
SHORT = {
    "hostile": 200,
    "guesses": 100,
    "large": 4,
    "scrapes": 10,
    "overload": 100,
    "faults": 2,
    "redis": 6,
}
OWN = ("reports", "faults", "redis", "memory", "disk", "clock", "soak")
"""Only of a service of its own."""
NAMED = ("disk", "clock")  # only where named: they want root, or libfaketime
STORED = {"redis", "disk", "reports"}  # want a Redis of its own
KEYS, OBSERVER_KEYS = "BATON_TORTURE_KEYS", "BATON_TORTURE_OBSERVER_KEYS"
ADMIN_KEY = "BATON_TORTURE_ADMIN_KEY"


def torture(
    url: Annotated[str | None, typer.Argument(help="A service that runs.")] = None,
    own: Annotated[bool, typer.Option("--own", help="Serve a deployment for this alone.")] = False,
    config: Annotated[Path | None, typer.Option(help="With --own: its deployment file.")] = None,
    scenarios: Annotated[
        str | None,
        typer.Option(
            metavar="NAME[=SIZE],...",
            help=f"Of {', '.join(LONG)}; all of them unless named.",
        ),
    ] = None,
    short: Annotated[bool, typer.Option("--short", help="Fewer of some of them.")] = False,
    remote: Annotated[
        bool, typer.Option("--remote", help="Attack a service that is not on this machine.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Of the hostile inputs, guesses and faults.")] = 0,
    json_out: Annotated[
        Path | None, typer.Option("--json", help="Write the outcomes to this file.")
    ] = None,
) -> None:
    """Attack a service; status 1 where something did not hold."""
    from deploy.lab.torture.attack import AttackedService
    from deploy.lab.torture.run import table
    from deploy.lab.torture.run import torture as attack
    from orchestrator.errors import InvalidRequest, WorkerError

    if (url is None) != own:
        got = f"--own and {url}: scenarios go behind --scenarios" if own else "neither"
        raise InvalidRequest(f"expected a URL or --own, got {got}")
    other_key = os.environ.get("BATON_OTHER_API_KEY")
    wanted = _wanted(scenarios, SHORT if short else LONG, own, own or other_key is not None)
    if url is not None and not remote and not _is_loopback(url):
        raise InvalidRequest(f"{url} is not on this machine: say --remote if it is yours to attack")
    console = Console(highlight=False)
    outcomes: list[ScenarioOutcome] = []

    def say(text: str) -> None:
        console.print(text, style="dim", markup=False)

    async def run(target: AttackedService) -> None:
        async for outcome in attack(target, wanted, seed, say):
            outcomes.append(outcome)
            held = "held" if not outcome.broken else f"did not hold: {outcome.broken[0]}"
            say(f"{outcome.scenario}: {held}")

    try:
        if url is not None:
            key = os.environ.get("BATON_API_KEY")
            observer_key = os.environ.get("BATON_OBSERVER_KEY")
            asyncio.run(run(AttackedService(url.rstrip("/"), key, other_key, observer_key)))
        else:
            _with_own(config, wanted, lambda target: asyncio.run(run(target)))
    finally:  # of those that ended, whatever became of the next
        print(table(outcomes))
        if json_out is not None:
            rows = [outcome.json() for outcome in outcomes]
            json_out.write_text(json.dumps({"rows": rows}, indent=2) + "\n", encoding="utf-8")
    if failed := [outcome.scenario for outcome in outcomes if outcome.broken]:
        raise WorkerError(f"did not hold: {', '.join(failed)}")


torture.__doc__ = f"{torture.__doc__}{EXAMPLES}"


def _wanted(
    given: str | None, sizes: Mapping[str, int], own: bool, two_keys: bool
) -> dict[str, int]:
    """The scenarios and their sizes.

    Raises:
        InvalidRequest: an unknown one, one that this service cannot have, or a wrong size.
    """
    from orchestrator.errors import InvalidRequest

    possible = {name for name in LONG if (own or name not in OWN) and (two_keys or name != "flood")}
    if given is None:
        return {n: size for n, size in sizes.items() if n in possible and n not in NAMED}
    wanted = {}
    for part in given.split(","):
        name, says, size = part.partition("=")
        if name not in possible:
            raise InvalidRequest(
                f"--scenarios: {name!r} is none of {', '.join(n for n in LONG if n in possible)}"
                + ("" if own else f" ({', '.join(OWN)} want --own, flood $BATON_OTHER_API_KEY)")
            )
        if says and not (size.isascii() and size.isdecimal() and int(size) > 0):
            raise InvalidRequest(f"--scenarios: {part!r}: a size is a whole number above 0")
        wanted[name] = int(size) if says else sizes.get(name, LONG[name])
    return wanted


def _with_own(
    config: Path | None, wanted: Collection[str], attack: Callable[[AttackedService], None]
) -> None:
    """Serve a deployment on a port of its own, with two keys and an observer's, and attack it."""
    import secrets
    import socket

    import yaml

    from deploy.lab.torture.attack import AttackedService, BadStates
    from deploy.lab.torture.faults import OwnProcesses
    from deploy.lab.torture.own_experiment import OwnExperiment
    from deploy.lab.torture.own_machine import OwnClock, OwnDisk, OwnMemory
    from deploy.lab.torture.own_redis import own_redis
    from deploy.launch.environment import prepare

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    states: dict[str, BadStates] = {"memory": OwnMemory()}
    with ExitStack() as owned:
        # Sockets want short paths.
        folder = Path(owned.enter_context(TemporaryDirectory(prefix="bt-")))
        data = folder / "data"
        data.mkdir()
        if "disk" in wanted:
            states["disk"] = disk = OwnDisk(data)
            owned.callback(disk.close)
            os.environ["RAY_TMPDIR"] = str(data)
        store = None
        if not STORED.isdisjoint(wanted):
            states["redis"] = store = owned.enter_context(own_redis(data))
        if "clock" in wanted:  # of what is started from here on; redis-server and the library clash
            states["clock"] = clock = OwnClock(folder)
            os.environ |= clock.environment
        prepare()  # before the imports below, which import ray
        from deploy.launch.cluster import serving
        from deploy.launch.deployment_file import DEFAULT_FILE, load

        load(config or DEFAULT_FILE)  # what is wrong with it is said of the file itself
        document = yaml.safe_load((config or DEFAULT_FILE).read_text(encoding="utf-8"))
        args = document["applications"][0].setdefault("args", {})
        key, other_key, observer_key, admin_key = (secrets.token_hex(16) for _ in range(4))
        os.environ[KEYS], os.environ[OBSERVER_KEYS] = f"{key},{other_key}", observer_key
        os.environ[ADMIN_KEY] = admin_key
        args["auth"] = {
            "api_keys_env": KEYS,
            "observer_keys_env": OBSERVER_KEYS,
            "admin_key_env": ADMIN_KEY,
        }
        if store is not None:
            args["store"] = store.url
        file = folder / "torture.yaml"
        file.write_text(yaml.safe_dump(document), encoding="utf-8")
        deployment = load(file, port=port)
        service = owned.enter_context(serving(deployment, ready_s=300, on_ray=_end_on_sigterm))
        experiments = None
        if store is not None:
            from orchestrator.state.redis import RedisStore

            opened = partial(RedisStore, store.url)
            experiments = OwnExperiment(service.url, admin_key, opened)
        keys, own = (key, other_key, observer_key), OwnProcesses()
        attack(AttackedService(service.url, *keys, own, experiments, states))


def _end_on_sigterm() -> None:
    """End by SIGTERM as by Ctrl-C: what was started ends too. Ray's own handler leaves it."""

    def end(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one would leave what is not ended
        sys.exit(128 + signal.SIGTERM)

    signal.signal(signal.SIGTERM, end)


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
