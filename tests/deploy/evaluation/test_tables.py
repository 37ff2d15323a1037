"""Tables in a terminal: nothing is cut, however narrow it is."""

from __future__ import annotations

import io

from rich.console import Console

from deploy.evaluation.summary import Row
from deploy.evaluation.tables import Column, notes, show

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


def test_nothing_is_cut_however_narrow_the_terminal_is() -> None:
    for width in range(60, 200, 7):
        assert "…" not in shown(width)
    wide = shown(160)
    assert wide.count("95.1 [94, 96]") == 4
    assert wide.count("the title") == wide.count("specreason:threshold=8") == 1


def test_the_notes_say_how_the_large_model_decoded() -> None:
    assert "decoded plainly; --speculation" in notes(1, "vanilla")
    assert "plainly" not in notes(1, "chain") + notes(1, "service")
