"""Plain English in what users and readers meet: pages, docstrings, comments and messages."""

from __future__ import annotations

import io
import re
import tokenize
from pathlib import Path

from tests.house.measure import PACKAGES
from tests.test_imports import ROOT

WORDS = {  # a pattern: what to write instead
    r"(?:^|[.!?:] |\"\"\"|# |\| |- )Of [a-z`]": "begin with the subject, not with 'Of'",
    r"\bnobody\b": "no client, no test, no ...",
    r"\bwhoever\b": "anyone who, a client that",
    r"\banew\b": "again, new",
    r"\bof (?:its|his|their) own\b": "own, separate",
    r"\btold\b": "gets, is given",
    r"\bstands?\b(?! for)": "is",
    r"\bso many\b": "this many, the number of",
    r"\bgo(?:es)? on\b": "continue",
    r"\b(?i:none|nothing|empty|also|only|even|false|true) where\b": "if",
}
PAGES = {*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("deploy/lab/results/*.md")}
KINDS = ("COMMENT", "STRING", "FSTRING_MIDDLE")


def faults(path: Path, line: int, text: str) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{number}: not {match[0].strip()!r}, but: {instead}"
        for number, words in enumerate(text.splitlines(), line)
        for pattern, instead in WORDS.items()
        if (match := re.search(pattern, words))
    ]


def test_pages_are_in_plain_english() -> None:
    pages = sorted(PAGES)
    found = [fault for page in pages for fault in faults(page, 1, page.read_text("utf-8"))]
    assert not found, "\n".join(found)


def test_sources_are_in_plain_english() -> None:
    paths = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    found = []
    for path in paths:
        for token in tokenize.generate_tokens(io.StringIO(path.read_text("utf-8")).readline):
            if tokenize.tok_name[token.type] in KINDS:
                found += faults(path, token.start[0], token.string)
    assert not found, "\n".join(found)
