"""`baton serve`: a deployment on a separate Ray, until Ctrl-C or SIGTERM."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import ValidationError
from rich.console import Console

from deploy.cli.common import lossy, write
from orchestrator.errors import ConfigError, InvalidRequest

if TYPE_CHECKING:
    from deploy.launch.plan import DeploymentPlan
    from deploy.launch.source import Source
    from orchestrator.loop.actions import WorkerName

SIGNALS = (signal.SIGINT, signal.SIGTERM)
CHECK_S = 1.0  # between looks at whether Ray lives


def serve(
    config: Annotated[
        Path | None, typer.Argument(help="Deployment file; default deploy/local.yaml.")
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Port instead of the file's.")
    ] = None,
    small: Annotated[
        str | None,
        typer.Option(
            metavar="WHAT",
            help="With --large: a Hugging Face id, a folder, a GGUF file, or a server, "
            "[MODEL@]http://HOST:PORT/v1; the file is written for you.",
        ),
    ] = None,
    large: Annotated[
        str | None, typer.Option(metavar="WHAT", help="As --small, the large model.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Where the file for --small and --large is written: baton.yaml."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print that file; write and serve nothing.")
    ] = False,
    grace: Annotated[
        float, typer.Option(min=0, help="Seconds in which SIGTERM lets answers be finished.")
    ] = 30.0,
    ready_within: Annotated[
        float | None,
        typer.Option(min=1, help="Seconds to become ready; default: as long as models load."),
    ] = None,
    metrics_port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="Port for Prometheus, on loopback; default: any."),
    ] = None,
) -> None:
    """Serve a deployment file, in the foreground. SIGTERM finishes what is under way, Ctrl-C ends
    it; the exit status is 1 if Ray dies.

    [bold]Examples[/]

      baton serve                       the embedded pair on the CPU
      baton serve --port 9000           elsewhere
      baton serve deploy/local.yaml     a deployment file of your own
      baton serve --small Qwen/Qwen3-1.7B --large Qwen/Qwen3-8B --dry-run   a file for this machine
      baton serve --small http://127.0.0.1:8001/v1 --large Qwen/Qwen3-8B@http://10.0.0.7:8000/v1

    WHAT may be followed by fields of a worker: MODEL@URL,api_key_env=LARGE_KEY,max_len=16384
    """
    if small is not None or large is not None or dry_run or out is not None:
        from deploy.launch.meanwhile import LOOPBACK, want_port

        sources = _sources(config, small, large)
        port = port or 8000
        if not dry_run:
            want_port(LOOPBACK, port, "--port")  # before planning takes time and writes a file
        text = asyncio.run(_plan(sources)).text(port)
        if dry_run:
            print(text, end="")
            return
        config = out or Path("baton.yaml")
        _write_new(config, text)
    from deploy.launch.environment import prepare

    prepare()  # before the imports below, which import ray
    from deploy.launch.cluster import serving
    from deploy.launch.deployment_file import DEFAULT_FILE, load
    from deploy.launch.workers import want_engines
    from deploy.service.config import Auth
    from deploy.service.notes import notes
    from workers.heap import give_back

    console = Console(highlight=False, soft_wrap=True)
    deployment = load(config or DEFAULT_FILE, port=port)
    want_engines(deployment.args.workers)
    deployment.args.access()  # missing keys are an error before anything starts
    give_back()  # what the plan took, for as long as this process waits
    with _stopping() as stop:
        for note in notes(deployment.args):
            console.print(note, style="yellow", markup=False)
        console.print("Starting Ray and the two workers ...", style="dim")
        with serving(
            deployment,
            ready_s=ready_within,
            metrics_port=metrics_port,
            check=stop.check,
            on_ray=stop.interrupt,
            tell=lambda message: console.print(message, style="dim", markup=False),
        ) as service:
            url = service.url
            key = (
                ' -H "Authorization: Bearer ${BATON_API_KEY:?set it to an API key}"'
                if isinstance(deployment.args.auth, Auth)
                else ""
            )
            for note in lossy(deployment.args.workers.speculation()):
                console.print(note, style="yellow")
            for method in deployment.args.workers.large.speculation.also:
                if method.lossy:
                    console.print(f"large worker, on request: {method.label}", style="yellow")
            console.print(f"Ready at [bold]{url}[/], in a browser: {url}/ui. Ctrl-C stops. Try:\n")
            print(
                f"curl -s {url}/v1/chat/completions{key} -H 'Content-Type: application/json' "
                """-d '{"model": "baton", "messages": [{"role": "user", "content": """
                """"What is 37*6+12?"}]}'\n""",
                flush=True,
            )
            while not stop.wait(CHECK_S):
                for line in service.check():
                    console.print(line, style="red", markup=False)
            seconds = 0.0 if stop.hurried else grace
            console.print("Stopping ...", style="dim")
            if left := service.drain(seconds, lambda: stop.hurried):
                console.print(f"{left} answers were cut short.", style="yellow")


def _sources(config: Path | None, small: str | None, large: str | None) -> dict[WorkerName, Source]:
    """Return the two models that the command line names."""
    if small is None or large is None:
        raise InvalidRequest("name both models, --small and --large: a file is written for the two")
    if config is not None:
        raise InvalidRequest(f"{config}: name a deployment file, or --small and --large, not both")
    from deploy.launch.source import Source

    return {"small": Source.parse(small), "large": Source.parse(large)}


async def _plan(sources: dict[WorkerName, Source]) -> DeploymentPlan:
    """Return a plan whose workers have been checked."""
    from deploy.launch.plan import look, plan
    from deploy.launch.sizes import Machine
    from deploy.service.config import explain
    from deploy.service.worker_spec import Workers

    here = any(source.url is None for source in sources.values())
    machine = Machine.look() if here else None
    small, large = await asyncio.gather(look(sources["small"]), look(sources["large"]))
    settings = {name: source.settings for name, source in sources.items()}
    made = plan(small, large, machine, settings)
    try:
        Workers.model_validate(made.workers)
    except ValidationError as error:
        raise ConfigError(f"--{explain(error, Workers)}") from None
    return made


def _write_new(path: Path, text: str) -> None:
    """Write a file, unless another one is there."""
    if path.exists() and path.read_text(encoding="utf-8") != text:
        raise ConfigError(
            f"{path} exists and is another file: serve it (`baton serve {path}`), or name another "
            "by --out"
        )
    write(path, text)
    print(f"Wrote {path}:\n")
    print("".join(line for line in text.splitlines(True) if line.startswith("#")))


class _Stopped(KeyboardInterrupt):
    """A signal came while the service was starting."""


class _Stop(Event):
    """Set by SIGINT and SIGTERM. Between `interrupt` and `wait`, the first of them interrupts."""

    interrupts = False
    hurried = False  # whether a SIGINT came: nothing more is waited for

    def listen(self) -> None:
        """Have the signals handled here."""
        for name in SIGNALS:
            signal.signal(name, self._on_signal)

    def check(self) -> None:
        """Raise _Stopped if a signal came; listen on, also if Ray has installed its handlers.

        A SIGTERM may still wait: this thread blocks it for minutes if Ray starts slowly.
        """
        self.listen()
        if self.is_set() or signal.SIGTERM in signal.sigpending():
            raise _Stopped

    def interrupt(self) -> None:
        """Raise _Stopped if a signal came, or as soon as one comes."""
        self.interrupts = True
        self.check()

    def wait(self, timeout: float | None = None) -> bool:
        self.interrupts = False
        return super().wait(timeout)

    def _on_signal(self, number: int, _: Any) -> None:
        first = not self.is_set()
        self.hurried |= number == signal.SIGINT
        self.set()
        if first and self.interrupts:
            raise _Stopped


@contextmanager
def _stopping() -> Iterator[_Stop]:
    """What SIGINT and SIGTERM set; once it is, further ones interrupt nothing. SIGTERM
    while a service starts is no failure."""
    stop, before = _Stop(), [signal.getsignal(name) for name in SIGNALS]
    stop.listen()
    try:
        yield stop
    except _Stopped:
        if stop.hurried:
            raise
        print("baton: stopped before it was ready", file=sys.stderr)
    finally:
        for name, handler in zip(SIGNALS, before, strict=True):
            signal.signal(name, handler)
