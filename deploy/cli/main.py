"""`baton`: the command line. Each command is a file in deploy/cli.

Errors are one line on stderr and an exit status above 0: 1 for a failure, 2 for a wrong
command line or request, 130 for Ctrl-C. `BATON_DEBUG=1` shows the traceback.
"""

from __future__ import annotations

import os
import sys
from importlib import metadata
from importlib.util import find_spec
from typing import Annotated

import typer

from deploy.cli.ask import ask
from deploy.cli.calibrate import calibrate
from deploy.cli.check_config import check_config
from deploy.cli.eval import evaluate
from deploy.cli.experiment import experiment
from deploy.cli.learn import learn
from deploy.cli.policy import policy
from deploy.cli.serve import serve
from deploy.cli.trace import trace
from deploy.launch.environment import prepare_torch
from orchestrator.errors import BatonError, InvalidRequest

app = typer.Typer(
    name="baton",
    help="Reasoning with two models: a small one thinks, a large one judges and takes over.",
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"baton {metadata.version('baton')}")
        raise typer.Exit


@app.callback()
def baton(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Handle the options of `baton` itself."""


app.command("serve")(serve)
app.command("ask")(ask)
app.command("eval")(evaluate)
app.command("calibrate")(calibrate)
app.command("check-config")(check_config)
app.add_typer(experiment, name="experiment")
app.add_typer(learn, name="learn")
app.add_typer(policy, name="policy")
app.add_typer(trace, name="trace")
if find_spec("deploy.lab"):  # a checkout; the wheel has no laboratory
    from deploy.lab.commands import lab

    app.add_typer(lab, name="lab")


def main() -> None:
    """The console script."""
    prepare_torch()
    try:
        status = app(sys.argv[1:] or ["--help"], prog_name="baton", standalone_mode=False)
    except typer.TyperException as error:
        context = getattr(error, "ctx", None)
        hint = f" (try: {context.command_path} --help)" if context is not None else ""
        status = _fail(f"{getattr(error, 'format_message', error.__str__)()}{hint}", 2)
    except (typer.Abort, KeyboardInterrupt):
        status = _fail("interrupted", 130)
    except BatonError as error:
        if os.environ.get("BATON_DEBUG"):
            raise
        status = _fail(str(error), 2 if isinstance(error, InvalidRequest) else 1)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # `baton ... | head`
        status = 1
    except Exception as error:
        if os.environ.get("BATON_DEBUG"):
            raise
        status = _fail(f"{type(error).__name__}: {error} (BATON_DEBUG=1 shows where)", 1)
    sys.exit(status if isinstance(status, int) else 0)


def _fail(message: str, status: int) -> int:
    print(f"baton: {' '.join(message.split())}", file=sys.stderr)
    return status


if __name__ == "__main__":
    main()
