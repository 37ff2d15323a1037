"""Names and rooms: one meaning to a public class name, and every room lists its files."""

from __future__ import annotations

import ast
import re
from pathlib import Path

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


def _words(*pages: Path) -> int:
    return sum(len(page.read_text(encoding="utf-8").split()) for page in pages)


def test_pages_are_few_and_short() -> None:
    pages = list((ROOT / "docs").rglob("*.md"))
    assert len(pages) <= 8
    assert _words(*pages) <= 14_000
    assert _words(ROOT / "README.md") <= 800
    assert _words(ROOT / "deploy/lab/results/README.md") <= 900
    assert len((ROOT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()) <= 60


def _anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_of_pages_lead_somewhere() -> None:
    folders = (ROOT / "docs", ROOT / "deploy", ROOT / "workers")
    pages = [*ROOT.glob("*.md"), *(page for folder in folders for page in folder.rglob("*.md"))]
    broken = []
    for page in pages:
        for link in re.findall(r"\]\(([^):]+)\)", page.read_text(encoding="utf-8")):
            path, _, anchor = link.partition("#")
            to = page.parent / path if path else page
            if not to.exists() or (anchor and anchor not in _anchors(to)):
                broken.append((str(page.relative_to(ROOT)), link))
    assert broken == []
