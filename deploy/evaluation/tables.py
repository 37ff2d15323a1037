"""Prints rows as tables: a column is a heading and a function that formats a row."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from deploy.evaluation.candidates import BASELINE
from deploy.evaluation.summary import Row

Column = tuple[str, Callable[[Row], str]]


def label(row: Row) -> str:
    """Return the policy, with its budget if it has one."""
    budget = row["budget"]
    return str(row["policy"]) + ("" if budget is None else f" @{budget}")


def accuracy(row: Row) -> str:
    low, high = row["accuracy_low"], row["accuracy_high"]
    return f"{100 * row['accuracy']:.1f} [{100 * low:.0f}, {100 * high:.0f}]"


def difference(row: Row) -> str:
    """Percentage points over or under large-only, with their interval."""
    if row["policy"] == BASELINE:
        return ""
    low, high = 100 * row["difference_low"], 100 * row["difference_high"]
    return f"{100 * row['difference']:+.1f} [{low:+.0f}, {high:+.0f}]"


def speedup(row: Row) -> str:
    """Return the speedup over large-only, with its interval if one was measured."""
    if row["policy"] == BASELINE or "speedup_low" not in row:
        return f"{row['speedup']:.2f}x"
    return f"{row['speedup']:.2f}x [{row['speedup_low']:.2f}, {row['speedup_high']:.2f}]"


MAIN: list[Column] = [
    ("policy", label),
    ("accuracy % [95 %]", accuracy),
    ("difference to large-only", difference),
    ("p50/p95 ms", lambda row: f"{row['p50_ms']:.0f}/{row['p95_ms']:.0f}"),
    ("speedup [95 %]", speedup),
    ("tokens small+large", lambda row: f"{row['small_tokens']:.0f}+{row['large_tokens']:.0f}"),
    ("large share", lambda row: f"{row['large_share']:.0%}"),
]
WORK: list[Column] = [
    ("policy", label),
    ("output tokens", lambda row: f"{row['output_tokens']:.0f}"),
    ("discarded tokens", lambda row: f"{row['discarded_tokens']:.1f}"),
    ("accepted steps", lambda row: f"{row['accepted_steps']:.1f} of {row['steps']:.1f}"),
    ("judge calls", lambda row: f"{row['judge_calls']:.1f}"),
    ("large passes", lambda row: f"{row['large_passes']:.0f}"),
    ("ms small", lambda row: f"{row['ms']['small']:.0f}"),
    ("ms large", lambda row: f"{row['ms']['large']:.0f}"),
    ("ms judge", lambda row: f"{row['ms']['classify']:.0f}"),
    ("ms rest", lambda row: f"{row['ms']['rest']:.0f}"),
    ("ms overlap", lambda row: f"{row['ms']['overlap']:.0f}"),
]


def notes(concurrency: int, speculation: str) -> str:
    """Return the text under the tables."""
    text = (
        "Speedup: summed wall time of large-only over the policy's. Tokens, calls, passes and "
        "milliseconds of the breakdown are means per problem; overlap is work done in parallel."
    )
    if concurrency > 1:
        text += f" Measured at concurrency {concurrency}; compare speedups only at 1."
    if speculation == "vanilla":
        text += " The large model decoded plainly; --speculation names another method."
    if "lossy" in speculation:
        text += f" The large worker speculates: {speculation}. So its text is not its model's own."
    return text


def show(
    table: Sequence[Row], columns: Sequence[Column], console: Console, title: str = ""
) -> None:
    """Print rows as a table; a column that is too wide for the console is folded."""
    # Title and cells are text, never markup.
    grid = Table(box=SIMPLE_HEAD, title=Text(title) if title else None, title_justify="left")
    for index, (head, _) in enumerate(columns):
        grid.add_column(head, justify="right" if index else "left", overflow="fold")
    for row in table:
        grid.add_row(*(Text(cell(row)) for _, cell in columns))
    console.print(grid)
