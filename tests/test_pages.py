"""The pages are short, their links lead somewhere, and they name what a user can set."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from deploy.lab import site
from deploy.service.config import Args
from policies import POLICIES
from tests.test_imports import ROOT
from workers.speculation import METHODS

DOCS = sorted((ROOT / "docs").rglob("*.md"))


def _words(*pages: Path) -> int:
    return sum(len(page.read_text(encoding="utf-8").split()) for page in pages)


def test_pages_are_few_and_short() -> None:
    assert len(DOCS) <= 8
    assert _words(*DOCS) <= 14_000
    assert _words(ROOT / "README.md") <= 800
    assert _words(ROOT / "deploy/lab/results/README.md") <= 900


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


def test_the_site_has_every_page_and_what_they_link_to(tmp_path: Path) -> None:
    """`make docs` builds it; links then hold as they do here."""
    assert {ROOT / path for path in re.findall(r"\]\(([^:)]+)\)", site.llms())} == set(DOCS)
    site.stage(tmp_path / "site")
    pages = tmp_path / "site" / "pages"
    assert all((pages / page.relative_to(ROOT)).is_file() for page in DOCS)


def _keys(schema: Any) -> Iterator[str]:
    """Every key of a deployment file, by its JSON schema."""
    if isinstance(schema, list):
        for one in schema:
            yield from _keys(one)
    elif isinstance(schema, dict):
        yield from schema.get("properties", {})
        for one in schema.values():
            yield from _keys(one)


def test_every_key_policy_parameter_and_method_is_in_the_docs() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in DOCS)
    names = {*_keys(Args.model_json_schema()), *METHODS, *POLICIES}
    names |= {field for policy in POLICIES.values() for field in policy.model_fields}
    assert [name for name in sorted(names) if not re.search(rf"\b{name}\b", text)] == []
