"""What several commands share: options, colours, ways to ask."""

from __future__ import annotations

import getpass
import json
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import datetime
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text as Styled

from orchestrator.errors import ConfigError
from orchestrator.types import Step

if TYPE_CHECKING:
    from deploy.evaluation.askers import Asker, Options
    from deploy.evaluation.evaluate import Contender
    from deploy.service.config import WorkerSpec

COLOURS = {"small": "cyan", "large": "magenta", "policy": "yellow"}

Url = Annotated[
    str | None, typer.Option(help="A running service; without it everything runs in-process.")
]
DEFAULT_URL = "http://127.0.0.1:8000"
ServiceUrl = Annotated[str, typer.Option("--url", envvar="BATON_URL", help="The running service.")]
AsJson = Annotated[bool, typer.Option("--json", help="The service's answer as JSON.")]
Note = Annotated[str, typer.Option(help="Why, for those who read it later.")]
Problems = Annotated[
    str,
    typer.Option(
        help="FILE.jsonl with question and answer a line, or builtin:heldout|dev|strangers."
    ),
]
Limit = Annotated[int | None, typer.Option(min=1, help="How many problems.")]
Seed = Annotated[int, typer.Option(help="Which problems a builtin set draws.")]
Config = Annotated[
    Path | None, typer.Option(help="Deployment file that names the two models (in-process).")
]


@asynccontextmanager
async def asking(
    url: str | None,
    config: Path | None,
    options: Options,
    contenders: Sequence[Contender],
    speculation: str | None = None,
    default_speculation: str | None = None,
    *,
    small: str | None = None,
    recording: bool = False,
) -> AsyncGenerator[Asker, None]:
    """Over HTTP where a url is given, else with both models in this process.

    `contenders` are what will be asked: a wrong name or parameter is told before a model is
    loaded. `speculation` replaces the large worker's method; `default_speculation` does so too, but
    where the large worker is a remote server it is passed over instead of refused. `small` replaces
    the small worker's model; `recording` keeps every answer's recording (in this process only).
    """
    from deploy.evaluation.askers import HttpAsker, LocalAsker, policy_of

    if url is not None:
        remote = HttpAsker(url, options)
        try:
            yield remote
        finally:
            await remote.aclose()
        return
    from deploy.service.config import DEFAULT_FILE, Speculation, load
    from deploy.service.workers import close, load_pair

    args = load(config or DEFAULT_FILE).args
    for contender in contenders:
        policy_of(args, contender)
    workers = args.workers
    if speculation is not None and workers.large.url is not None:
        raise ConfigError("--speculation: the large worker's server decides; leave it out")
    if workers.large.url is None:  # one method alone: nobody here can name another
        if speculation is None:
            speculation = default_speculation or workers.large.speculation.method
        known = {one.method: one.params for one in workers.large.speculation.offered}
        params = known.get(speculation)
        if params is None:
            params = _draft(speculation, workers.small)
        chosen = Speculation(method=speculation, params=params)
        large = workers.large.model_copy(update={"speculation": chosen})
        workers = workers.model_copy(update={"large": large})
    if small is not None:
        if workers.small.url is not None:
            raise ConfigError("--small: the small worker is a server; name a model there")
        chosen_small = workers.small.model_copy(update={"model": small})
        workers = workers.model_copy(update={"small": chosen_small})
    pair = load_pair(workers)
    try:
        told = args.model_copy(update={"workers": workers})
        yield LocalAsker(told, pair, options, recording=recording)
    finally:
        await close(pair.values())


def _draft(method: str, small: WorkerSpec) -> dict[str, Any]:
    """A method's parameters where the file has none: the small model drafts."""
    from workers.speculation import METHODS

    if method not in METHODS or "draft" not in signature(METHODS[method]).parameters:
        return {}
    if small.url is not None:
        raise ConfigError(f"--speculation {method} needs a draft model, and the small is a server")
    return {"draft": small.model}


class Bar:
    """A bar of so many turns, with what is being done beside it."""

    def __init__(self, progress: Progress) -> None:
        self._progress, self._task = progress, progress.add_task("", total=None)

    def total(self, turns: int) -> None:
        self._progress.update(self._task, total=turns)

    def turn(self, label: str) -> None:
        """The next turn begins."""
        self._progress.update(self._task, advance=1, description=label)

    def tell(self, label: str) -> None:
        self._progress.update(self._task, description=label)


def progress(console: Console) -> Progress:
    return Progress(
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}", style="dim"),
        console=console,
        transient=True,
    )


@contextmanager
def bar(console: Console) -> Iterator[Bar]:
    """A progress bar that goes when the work is done."""
    with progress(console) as shown:
        yield Bar(shown)


def wide_console() -> Console:
    """For tables: as wide as the terminal, and wide enough where there is none."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=160)


def write(path: Path, text: str) -> None:
    """Write a file that an option names, its folder too.

    Raises:
        ConfigError: the file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None


def lossy(speculation: Mapping[str, str]) -> list[str]:
    """A note for each worker whose speculation changes what it says."""
    return [f"{name} worker: {told}" for name, told in speculation.items() if "lossy" in told]


def line_of(step: Step) -> Styled:
    """A step in one paragraph: author, score, whether it stayed, text."""
    colour = COLOURS[step.author]
    mark = "✓" if step.accepted else "✗"
    score = "" if step.score is None else f" {step.score:.1f}"
    told = Styled(f"{step.author:>6} {mark}{score:>5} ", style=f"bold {colour}")
    text = " ".join(step.text.split()) or "(nothing)"
    return told.append(text, style="" if step.accepted else "dim strike")


def ask_service(url: str, method: str, path: str, body: Any = None, **more: Any) -> dict[str, Any]:
    """What a service answers; see `deploy.evaluation.service_client.call`."""
    from deploy.evaluation.service_client import call  # not above: most commands ask no service

    return call(url, method, path, body, **more)


def dump(told: Any) -> None:
    """A service's answer as one line of JSON."""
    print(json.dumps(told, ensure_ascii=False))


def add_row(table: Table, *cells: object) -> None:
    """Cells as they are, never as markup: people wrote them."""
    table.add_row(*(Styled(str(cell)) for cell in cells))


def moment(seconds: float | None) -> str:
    """A time in seconds since 1970, in words."""
    return "" if seconds is None else f"{datetime.fromtimestamp(seconds):%Y-%m-%d %H:%M:%S}"


def default_author() -> str:
    """Who changes something, where nobody says; the user's name."""
    with suppress(OSError, KeyError):
        return getpass.getuser()[:128]
    return ""
