"""The site of the pages, by zensical: `make docs`.

README is its first page; `docs/` and what the pages link to keep their places, so that links hold
as in a checkout. `llms.txt` (https://llmstxt.org) lists the pages, each with its Markdown.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)\s]*)?\)")
PAGE = re.compile(r"^\d+\. \[(.+?)\]\((.+?)\)(.*)$", re.MULTILINE)
"""A page in README's list: title, path, and what it is about."""
SETTINGS = """\
[project]
site_name = "Baton"
docs_dir = "pages"
nav = {nav}

[project.theme]
features = ["content.code.copy", "navigation.footer"]
font = false
favicon = "icon.svg"
logo = "icon.svg"

[[project.theme.palette]]
media = "(prefers-color-scheme: light)"
scheme = "default"

[[project.theme.palette]]
media = "(prefers-color-scheme: dark)"
scheme = "slate"
"""


def build(to: Path) -> Path:
    """Build the site in a folder; a link that leads nowhere is an error. Return its first page."""
    stage(to)
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict"]
    if failed := subprocess.run(command, cwd=to).returncode:
        sys.exit(failed)
    site = to / "site"
    (site / "llms.txt").write_text(llms(), encoding="utf-8")
    for page in (to / "pages").rglob("*.md"):
        _copy(page, site / page.relative_to(to / "pages"))
    return site / "index.html"


def stage(to: Path) -> None:
    """Lay out what zensical reads: the pages, what they link to, and its settings."""
    shutil.rmtree(to, ignore_errors=True)
    for file in _reached(ROOT / "README.md", set()):
        _copy(file, to / "pages" / file.relative_to(ROOT))
    _copy(ROOT / "orchestrator/http/console/icon.svg", to / "pages/icon.svg")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    pages = [path for _, path, _ in PAGE.findall(readme)]
    others = [path for path in LINK.findall(readme) if "/" not in path]
    nav = ["README.md", *pages, {"Project": others}]
    settings = SETTINGS.format(nav=str(nav).replace("{'Project':", "{ Project ="))
    (to / "zensical.toml").write_text(settings, encoding="utf-8")


def llms() -> str:
    """Return llms.txt: README's first paragraph and its list of the pages."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    title, summary, _ = readme.split("\n\n", 2)
    listed = "".join(f"- [{name}]({path}){about}\n" for name, path, about in PAGE.findall(readme))
    quoted = summary.replace("\n", "\n> ")
    return f"{title}\n\n> {quoted}\n\n## Pages\n\n{listed}"


def _reached(page: Path, seen: set[Path]) -> set[Path]:
    """Return a page and all files that it links to, one page after the other."""
    if page not in seen and page.is_file():
        seen.add(page)
        if page.suffix == ".md":
            for name in LINK.findall(page.read_text(encoding="utf-8")):
                _reached((page.parent / name).resolve(), seen)
    return seen


def _copy(file: Path, to: Path) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(file, to)


if __name__ == "__main__":
    print(build(ROOT / "build" / "docs"))
