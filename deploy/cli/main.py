"""`baton`: the command line. Each command is a file in deploy/cli.

Errors are one line on stderr and an exit status above 0: 1 for a failure, 2 for a wrong
command line or request, 130 for Ctrl-C. `BATON_DEBUG=1` shows the traceback.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from importlib import import_module, metadata
from importlib.util import find_spec
from typing import Annotated

import typer

from deploy.launch.environment import prepare_torch
from orchestrator.errors import BatonError, InvalidRequest

INTERRUPTED = 130
COMMANDS = {  # by name: its module and what it is there
    "serve": ("deploy.cli.serve", "serve"),
    "ask": ("deploy.cli.ask", "ask"),
    "eval": ("deploy.cli.eval", "evaluate"),
    "calibrate": ("deploy.cli.calibrate", "calibrate"),
    "check-config": ("deploy.cli.check_config", "check_config"),
    "experiment": ("deploy.cli.experiment", "experiment"),
    "learn": ("deploy.cli.learn", "learn"),
    "policy": ("deploy.cli.policy", "policy"),
    "trace": ("deploy.cli.trace", "trace"),
}
if find_spec("deploy.lab"):  # a checkout; the wheel has no laboratory
    COMMANDS["lab"] = ("deploy.lab.commands", "lab")


def _version(wanted: bool) -> None:
    if wanted:
        print(f"baton {metadata.version('baton')}")
        raise typer.Exit


def baton(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Handle the options of `baton` itself."""


def program(names: Iterable[str] = COMMANDS) -> typer.Typer:
    """Return the program with these commands, whose modules are imported here."""
    app = typer.Typer(
        name="baton",
        help="Reasoning with two models: a small one thinks, a large one judges and takes over.",
        add_completion=False,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
    )
    app.callback()(baton)
    for name in names:
        module, attribute = COMMANDS[name]
        command = getattr(import_module(module), attribute)
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name, help=_help(command, f"baton {name}"))
        else:
            app.command(name)(command)
    app.info.help = _help(app, "baton")
    return app


def _help(group: typer.Typer, called: str) -> str:
    """Return a group's help, with an example of each of its commands."""
    texts = [one.callback.__doc__ or "" for one in group.registered_commands if one.callback]
    found = [re.search(rf"^ +({called} .+)", text, re.MULTILINE) for text in texts]
    examples = [f"  {one[1]}" for one in found if one]
    return "\n".join((f"{group.info.help}\n\n[bold]Examples[/]\n", *examples))


def main() -> None:
    """The console script."""
    prepare_torch()
    try:
        called = [name for name in sys.argv[1:2] if name in COMMANDS]  # `serve` starts sooner alone
        app = program(called or COMMANDS)
        status = app(sys.argv[1:] or ["--help"], prog_name="baton", standalone_mode=False)
        if status == INTERRUPTED:  # typer returns it for Ctrl-C
            raise KeyboardInterrupt
    except typer.TyperException as error:
        context = getattr(error, "ctx", None)
        hint = f" (try: {context.command_path} --help)" if context is not None else ""
        status = _fail(f"{getattr(error, 'format_message', error.__str__)()}{hint}", 2)
    except (typer.Abort, KeyboardInterrupt):
        status = _fail("interrupted", INTERRUPTED)
    except BatonError as error:
        if os.environ.get("BATON_DEBUG"):
            raise
        status = _fail(str(error), 2 if isinstance(error, InvalidRequest) else 1)
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
