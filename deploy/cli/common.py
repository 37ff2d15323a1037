"""What several commands share: options, colours, clients, progress bars."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from inspect import signature
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text as Styled

from orchestrator.errors import ConfigError, InvalidRequest
from orchestrator.types import Step

if TYPE_CHECKING:
    from deploy.evaluation.candidates import Candidate
    from deploy.evaluation.clients import Client, RequestOptions
    from deploy.service.config import Speculation, Workers

LINE_EVERY_S = 10.0  # of progress, where it is written to a file
COLOURS = {"small": "cyan", "large": "magenta", "policy": "yellow"}

Url = Annotated[
    str | None,
    typer.Option(
        envvar="BATON_URL",
        help="A running service (its key: $BATON_API_KEY); without it everything runs in-process.",
    ),
]
DEFAULT_URL = "http://127.0.0.1:8000"
ServiceUrl = Annotated[str, typer.Option("--url", envvar="BATON_URL", help="The running service.")]
Problems = Annotated[
    str,
    typer.Option(
        help="FILE.jsonl with question and answer a line, builtin:heldout|dev|strangers|train, "
        "or gym:NAME,... of reasoning-gym."
    ),
]
Limit = Annotated[int | None, typer.Option(min=1, help="How many problems.")]
Seed = Annotated[int, typer.Option(help="Which problems a generated set draws.")]
Config = Annotated[
    Path | None, typer.Option(help="Deployment file that names the two models (in-process).")
]


@asynccontextmanager
async def open_client(
    url: str | None,
    config: Path | None,
    options: RequestOptions,
    candidates: Sequence[Candidate],
    speculation: str | None = None,
    default_speculation: str | None = None,
    *,
    small: str | None = None,
    recording: bool = False,
    beside: Path | None = None,
) -> AsyncGenerator[Client, None]:
    """A client over HTTP where a url is given, else with both models in this process.

    A wrong policy or parameter of `candidates` is an error before a model is loaded. `speculation`
    replaces the large worker's method; `default_speculation` does so too, but where the large
    worker is a remote server it is ignored instead of refused. `small` replaces the small worker's
    model; `recording` keeps every answer's recording, and calls that the recordings in `beside`
    have are answered from there (both in this process only).
    """
    from deploy.evaluation.candidates import policy_of
    from deploy.evaluation.clients import HttpClient, LocalClient

    if url is not None:
        remote = HttpClient(url, options)
        try:
            yield remote
        finally:
            await remote.aclose()
        return
    from deploy.launch.deployment_file import DEFAULT_FILE, load
    from deploy.launch.workers import close, load_pair

    args = load(config or DEFAULT_FILE).args
    for candidate in candidates:
        policy_of(args, candidate)
    workers = with_small(args.workers, small)
    if small is not None:
        args.policy.params.get("learned-gate", {}).pop("gate", None)  # it knows the other model
    chosen = large_speculation(workers, speculation, default_speculation)
    if chosen is not None:  # one method alone: no request here can name another
        large = workers.large.model_copy(update={"speculation": chosen})
        workers = workers.model_copy(update={"large": large})
    changed = args.model_copy(update={"workers": workers})
    if beside is not None:
        from deploy.evaluation.cached_worker import load_recordings, opened_pair

        async with opened_pair(workers, {}) as cached:
            load_recordings(cached, beside, workers)
            yield LocalClient(changed, cached, options, recording=recording)
        return
    pair = load_pair(workers)
    try:
        yield LocalClient(changed, pair, options, recording=recording)
    finally:
        await close(pair.values())


def with_small(workers: Workers, small: str | None) -> Workers:
    """The workers with another small model, if one is named.

    Raises:
        ConfigError: the small worker is a server.
    """
    if small is None:
        return workers
    if workers.small.url is not None:
        raise ConfigError("--small: the small worker is a server; name a model there")
    chosen = workers.small.model_copy(update={"model": small})
    return workers.model_copy(update={"small": chosen})


def large_speculation(
    workers: Workers, text: str | None, default: str | None = None
) -> Speculation | None:
    """What the large worker decodes with; None where its server decides.

    Args:
        text: NAME or NAME:KEY=VALUE; what it leaves out is as in the file, where the file offers
            the method, else the method's own default, and the small model drafts.
        default: instead of the file's method, where there is no text.

    Raises:
        ConfigError, InvalidRequest: no such method or parameter, or nobody who drafts.
    """
    from deploy.evaluation.candidates import Candidate
    from deploy.service.config import Speculation

    if workers.large.url is not None:
        if text is not None:
            raise ConfigError("--speculation: the large worker's server decides; leave it out")
        return None
    chosen = Candidate.parse(text or default or workers.large.speculation.method)
    offered = {one.method: one.params for one in workers.large.speculation.offered}
    drafter = _drafter(chosen, workers)
    params = {**offered.get(chosen.policy, {}), **chosen.params}
    if drafter is not None and drafter not in params:
        if workers.small.url is not None:
            raise ConfigError(
                f"--speculation {chosen.policy} needs a draft model, and the small is a server"
            )
        params[drafter] = workers.small.model
    return Speculation(method=chosen.policy, params=params)


def _drafter(chosen: Candidate, workers: Workers) -> str | None:
    """Which of a method's parameters names its draft model; None where nothing does."""
    method = chosen.policy
    if workers.large.runs_vllm:
        return "model" if method == "draft_model" else None
    from workers.speculation import METHODS

    if method not in METHODS:
        raise InvalidRequest(f"no speculation method {method!r}; there are {', '.join(METHODS)}")
    _, _, *known = signature(METHODS[method]).parameters.values()  # target and loader come first
    names = [one.name for one in known]
    others = any(one.kind is one.VAR_KEYWORD for one in known)  # another method's
    if wrong := next((key for key in chosen.params if not others and key not in names), None):
        raise InvalidRequest(
            f"--speculation {chosen.label}: {method} has no parameter {wrong!r}; "
            f"there are {', '.join(names) or 'none'}"
        )
    return "draft" if "draft" in names else None


class Bar:
    """A bar of so many turns, with what is being done beside it.

    Where the console is no terminal, a line now and then instead.
    """

    def __init__(self, shown: Progress) -> None:
        self._shown, self._task = shown, shown.add_task("", total=None)
        self._told = -LINE_EVERY_S

    def total(self, turns: int, done: int = 0) -> None:
        """How many turns there are, and how many of them an earlier run has taken."""
        self._shown.update(self._task, total=turns, completed=done)
        self.tell("begins")
        self._told = -LINE_EVERY_S  # the first turn is told too

    def turn(self, label: str) -> None:
        """The next turn begins."""
        self._shown.update(self._task, advance=1)
        self.tell(label)

    def tell(self, label: str) -> None:
        """What is being done."""
        self._shown.update(self._task, description=label)
        now = monotonic()
        if self._shown.console.is_terminal or now - self._told < LINE_EVERY_S:
            return
        self._told, task = now, self._shown.tasks[0]
        minutes, seconds = divmod(round(task.elapsed or 0), 60)
        of = "" if task.total is None else f"{task.completed:.0f} of {task.total:.0f}, "
        print(f"{of}{minutes}:{seconds:02d}: {label}", file=self._shown.console.file, flush=True)


@contextmanager
def bar(console: Console) -> Iterator[Bar]:
    """A progress bar that goes when the work is done."""
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
    return [f"{name} worker: {method}" for name, method in speculation.items() if "lossy" in method]


def line_of(step: Step) -> Styled:
    """A step: author, score, whether it stayed, and beside that its text, line by line."""
    colour = COLOURS[step.author]
    mark = "✓" if step.accepted else "✗"
    score = "" if step.score is None else f" {step.score:.1f}"
    line = Styled(f"{step.author:>6} {mark}{score:>5} ", style=f"bold {colour}")
    margin = "\n" + " " * line.cell_len
    text = margin.join(step.text.strip("\n").rstrip().splitlines()) or "(nothing)"
    return line.append(text, style="" if step.accepted else "dim strike")


def add_row(table: Table, *cells: object) -> None:
    """Cells as they are, never as markup: people wrote them."""
    table.add_row(*(Styled(str(cell)) for cell in cells))
