"""Names and rooms: one meaning to a public class name, and every room lists its files."""

from __future__ import annotations

import ast
import re

import pytest

from tests.house.measure import PACKAGES, public_classes
from tests.test_imports import ROOT

ROOMS = sorted(
    path.parent for package in PACKAGES for path in (ROOT / package).rglob("__init__.py")
)
LISTED = re.compile(r"^- `(\w+)`", re.MULTILINE)


def test_no_two_public_classes_share_a_name() -> None:
    twice = {name: places for name, places in public_classes(ROOT).items() if len(places) > 1}
    assert twice == {}


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: str(room.relative_to(ROOT)))
def test_a_room_lists_its_files(room) -> None:  # type: ignore[no-untyped-def]
    docstring = ast.get_docstring(ast.parse((room / "__init__.py").read_text(encoding="utf-8")))
    assert docstring
    modules = {path.stem for path in room.glob("*.py")} - {"__init__"}
    rooms = {path.parent.name for path in room.glob("*/__init__.py")}
    listed = LISTED.findall(docstring)
    assert len(listed) == len(set(listed))
    assert set(listed) == modules | rooms
