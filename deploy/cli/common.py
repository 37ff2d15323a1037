"""What several commands share: options, progress bars, tables, files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text as Styled

from orchestrator.errors import ConfigError
from orchestrator.types import Step

LINE_EVERY_S = 10.0  # between lines of progress, if the console is no terminal
COLOURS = {"small": "cyan", "large": "magenta", "policy": "yellow"}

Url = Annotated[
    str | None,
    typer.Option(
        envvar="BATON_URL",
        help="A running service (its key in $BATON_API_KEY); default: run in-process.",
    ),
]
DEFAULT_URL = "http://127.0.0.1:8000"
ServiceUrl = Annotated[str, typer.Option("--url", envvar="BATON_URL", help="The running service.")]
Problems = Annotated[
    str,
    typer.Option(
        help="FILE.jsonl with a question and its answer per line; "
        "builtin:heldout|dev|strangers|train; or gym:NAME,... of reasoning-gym."
    ),
]
Limit = Annotated[int | None, typer.Option(min=1, help="How many problems.")]
Seed = Annotated[int, typer.Option(help="Which problems a generated set draws.")]
MaxTokens = Annotated[int | None, typer.Option(min=1, help="Cap on thought and answer together.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, nothing else.")]
Config = Annotated[
    Path | None, typer.Option(help="Deployment file that names the two models (in-process).")
]


class Bar:
    """A progress bar with a label; without a terminal, at most a line in `LINE_EVERY_S` seconds."""

    def __init__(self, shown: Progress) -> None:
        self._shown, self._task = shown, shown.add_task("", total=None)
        self._told = -LINE_EVERY_S

    def set_total(self, turns: int) -> None:
        """Set the number of turns."""
        self._shown.update(self._task, total=turns)
        self.set_label("begins")
        self._told = -LINE_EVERY_S  # so that the first turn gets a line too

    def advance(self, label: str) -> None:
        """Count one turn and show a label."""
        self._shown.update(self._task, advance=1)
        self.set_label(label)

    def set_label(self, label: str) -> None:
        """Show a label."""
        self._shown.update(self._task, description=label)
        now = monotonic()
        if self._shown.console.is_terminal or now - self._told < LINE_EVERY_S:
            return
        self._told, task = now, self._shown.tasks[0]
        minutes, seconds = divmod(round(task.elapsed or 0), 60)
        count = "" if task.total is None else f"{task.completed:.0f} of {task.total:.0f}, "
        print(f"{count}{minutes}:{seconds:02d}: {label}", file=self._shown.console.file, flush=True)


@contextmanager
def bar(console: Console) -> Iterator[Bar]:
    """Show a progress bar, and remove it when the work is done."""
    with Progress(
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}", style="dim"),
        console=console,
        transient=True,
    ) as shown:
        yield Bar(shown)


def wide_console() -> Console:
    """Return a console for tables: as wide as the terminal, or 160 columns without one."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=160)


def print_json(data: Any) -> None:
    """Print one line of JSON."""
    print(json.dumps(data, ensure_ascii=False))


def write(path: Path, text: str) -> None:
    """Write the file that an option names, and create its folder.

    Raises:
        ConfigError: the file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None


def lossy(speculation: Mapping[str, str]) -> list[str]:
    """Return a note for each worker whose speculation is lossy."""
    return [f"{name} worker: {method}" for name, method in speculation.items() if "lossy" in method]


def format_step(step: Step) -> Styled:
    """Format a step: its author, what became of it, its score, and its text."""
    colour = COLOURS[step.author]
    mark = "✓" if step.accepted else "–" if step.given_up else "✗"
    score = "" if step.score is None else f" {step.score:.1f}"
    line = Styled(f"{step.author:>6} {mark}{score:>5} ", style=f"bold {colour}")
    margin = "\n" + " " * line.cell_len
    text = margin.join(step.text.strip("\n").rstrip().splitlines()) or "(nothing)"
    line.append(text, style="" if step.accepted else "dim strike")
    why = f"{margin}given up: the cap left no room for an answer after it"
    return line.append(why, style="dim") if step.given_up else line


def print_table(columns: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    """Print a table; cells are text, never markup, and without columns there is no header."""
    heads = list(columns)
    table = Table(*heads, box=None, show_header=bool(heads))
    for cells in rows:
        table.add_row(*(Styled(str(cell)) for cell in cells))
    wide_console().print(table)
