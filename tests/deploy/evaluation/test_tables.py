"""Tables in a terminal: nothing is cut, however narrow it is."""

from __future__ import annotations

import io

from rich.console import Console

from deploy.evaluation.summary import Row
from deploy.evaluation.tables import Column, show

ROWS: list[Row] = [
    {"policy": "specreason:threshold=5", "figure": "95.1 [94, 96]"},
    {"policy": "specreason:threshold=8", "figure": "94.0 [93, 95]"},
]
COLUMNS: list[Column] = [
    ("policy", lambda row: str(row["policy"])),
    *((f"measured figure {n}", lambda row: str(row["figure"])) for n in range(4)),
]


def shown(width: int) -> str:
    out = io.StringIO()
    show(ROWS, COLUMNS, Console(file=out, width=width), "the title")
    return out.getvalue()


def test_a_wide_terminal_shows_a_table_a_narrow_one_a_block_a_row() -> None:
    for width in range(30, 200, 3):
        assert "…" not in shown(width)
    wide, narrow = shown(160), shown(60)
    for text in (wide, narrow):
        assert text.count("95.1 [94, 96]") == 4
        assert text.count("the title") == text.count("specreason:threshold=8") == 1
    assert wide.count("measured figure 3") == 1
    assert narrow.count("measured figure 3") == 2
    assert max(map(len, narrow.splitlines())) <= 60
