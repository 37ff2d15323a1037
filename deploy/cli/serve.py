"""`baton serve`: a deployment on a Ray of its own, until Ctrl-C."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Annotated, Any

import typer
from rich.console import Console

from deploy.cli.common import lossy

EXAMPLES = """

[bold]Examples[/]

  baton serve                       the embedded pair on the CPU
  baton serve --port 9000           elsewhere
  baton serve deploy/local.yaml     a deployment file of your own
"""


def serve(
    config: Annotated[
        Path | None, typer.Argument(help="Deployment file; default deploy/local.yaml.")
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Port instead of the file's.")
    ] = None,
) -> None:
    """Serve a deployment file, in the foreground."""
    from deploy.service.environment import prepare

    prepare()  # before the imports below, which import ray
    from deploy.service.calibration import notes
    from deploy.service.cluster import serving
    from deploy.service.config import DEFAULT_FILE, Auth, load

    console = Console(highlight=False)
    deployment = load(config or DEFAULT_FILE, port=port)
    deployment.args.api_keys()  # missing keys are an error before anything starts
    with _stopping() as stop:
        console.print("Starting Ray and the two workers ...", style="dim")
        with serving(deployment) as url:
            key = (
                ' -H "Authorization: Bearer $KEY"' if isinstance(deployment.args.auth, Auth) else ""
            )
            for note in [*lossy(deployment.args.workers.speculation()), *notes(deployment.args)]:
                console.print(note, style="yellow")
            for method in deployment.args.workers.large.speculation.also:
                if method.lossy:
                    console.print(f"large worker, on request: {method.label}", style="yellow")
            console.print(f"Ready at [bold]{url}[/], models: {url}/v1/models. Ctrl-C stops. Try:\n")
            print(
                f"curl -s {url}/v1/chat/completions{key} -H 'Content-Type: application/json' "
                """-d '{"model": "baton", "messages": [{"role": "user", "content": """
                """"What is 37*6+12?"}]}'\n""",
                flush=True,
            )
            stop.wait()
            console.print("Stopping ...", style="dim")


serve.__doc__ = f"{serve.__doc__}{EXAMPLES}"


class _Stopped(KeyboardInterrupt):
    """A signal came while the service was starting."""


@contextmanager
def _stopping() -> Iterator[Event]:
    """An event that SIGINT and SIGTERM set; before anybody waits for it, the first interrupts.

    Further ones change nothing: what was started is being cleared away.
    """
    stop = _Waitable()

    def on_signal(*_: Any) -> None:
        first = not stop.is_set()
        stop.set()
        if first and not stop.awaited:
            raise _Stopped

    names = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(name, on_signal) for name in names]
    try:
        yield stop
    finally:
        for name, handler in zip(names, before, strict=True):
            signal.signal(name, handler)


class _Waitable(Event):
    awaited = False

    def wait(self, timeout: float | None = None) -> bool:
        self.awaited = True
        return super().wait(timeout)
